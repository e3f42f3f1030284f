"""Tasks that sleep until a change or a timeout: half the cost of an event in a cancel scope."""

from __future__ import annotations

import asyncio
import math


class Sleepers:
    """See the module. They wake in the order in which they went to sleep."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def sleep(self, seconds: float = math.inf) -> None:
        """Return at the next `wake`, or after so many seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + max(seconds, 0.0)
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting[waiting] = None
        timer: asyncio.TimerHandle | None = None

        def ring() -> None:
            nonlocal timer
            if loop.time() < until:  # a loop may be early by its resolution: who looks at the time would sleep again
                timer = loop.call_at(until, ring)
            else:
                _wake(waiting)

        if seconds < math.inf:
            timer = loop.call_at(until, ring)
        try:
            await waiting
        finally:
            self._waiting.pop(waiting, None)
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Wake all that sleep now."""
        sleeping, self._waiting = self._waiting, {}
        for waiting in sleeping:
            _wake(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
