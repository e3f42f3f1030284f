"""Opener of connections to the API server, shortly before many deletions are due at the same time.

A TLS handshake costs this process eight times what a request costs, and deadlines are whole seconds: over connections
that are not open yet the last of fifty pods would be deleted 60 ms late. A GET of /version opens one, and needs no
right.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Notifier
from gracectl.runtime.timer_wheel import TimerWheel

AHEAD_SECONDS: Final = 2.0
"""How long before an instant its connections are opened at the latest; twice as long at most."""

FEWEST: Final = 8
"""Deletions due within two seconds for which it is worth while."""

MOST: Final = 100
"""Maximum connections to open, for any number of deletions."""

FRESH_SECONDS: Final = 30.0
"""Seconds for which opened connections count as open: the transport keeps unused connections for longer."""


class ConnectionOpener:
    """Opens one connection for each timer of `wheel` that is about to fire."""

    def __init__(self, client: KubeClient, clock: Clock, wheel: TimerWheel[str]) -> None:
        self._client = client
        self._clock = clock
        self._wheel = wheel
        self._armed = Notifier()
        self._opened, self._opened_at = 0, 0.0

    def armed(self) -> None:
        """A timer has been armed: there may be something to do again."""
        self._armed.notify()

    async def run(self) -> None:
        """Look ahead while timers are armed, until cancelled."""
        while True:
            if not self._wheel:
                await self._armed.wait()
            near = self._clock.monotonic() + AHEAD_SECONDS
            due = self._wheel.due_by(near + AHEAD_SECONDS) - self._wheel.due_by(near)
            await self._open(min(due, MOST))
            await self._clock.sleep(near - self._clock.monotonic())

    async def _open(self, count: int) -> None:
        now = self._clock.monotonic()
        if count < FEWEST or (count <= self._opened and now < self._opened_at + FRESH_SECONDS):
            return
        self._opened, self._opened_at = count, now
        with anyio.move_on_after(AHEAD_SECONDS):
            async with anyio.create_task_group() as group:
                for _ in range(count):
                    group.start_soon(self._ask)

    async def _ask(self) -> None:
        with suppress(ApiError):  # the deletions will tell
            await self._client.server_version()
