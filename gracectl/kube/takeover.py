"""Takes a Lease out of the hands of whoever leads, so that he stops, and keeps it from him and all others.

Who leads finds in his next renewal, or by his watch, that the Lease is another's, and closes his fence. What he had
sent before may still be carried out until the instant at which his Lease would have run out (see `election`): nobody
may rely upon his silence before `quiet_at`. Invariant: nothing is written but the Lease, and it under the version that
was read.
"""

from __future__ import annotations

import logging
from typing import Final

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import AlreadyExists, ApiError, Conflict
from gracectl.kube.leases import LeaseLock
from gracectl.kube.requests import Key
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 20
"""Whoever leads renews every few seconds; a Lease that has changed each time is not his doing."""


class Takeover:
    """Of the Lease `key`, by `identity`; what other takers call themselves begins with `kin`: they write as little as
    we do, but may have begun a moment ago. `duration`: seconds that a leader of this Lease counts on.
    """

    def __init__(self, client: KubeClient, clock: Clock, key: Key, identity: str, *, duration: int, kin: str) -> None:
        self._client = client
        self._clock = clock
        self._key = key
        self._identity = identity
        self._duration = duration
        self._kin = kin
        self._lock = LeaseLock(client, clock, key, identity, duration)
        self.previous = ""
        """Whose it was before us; "" for nobody."""
        self.quiet_at = clock.monotonic()
        """The monotonic instant from which on nothing can arrive any more that another has sent as its holder."""

    @property
    def namespace(self) -> str:
        """Where the Lease is."""
        return self._key[0]

    async def begin(self) -> bool:
        """Take it; False when there is none. Raises ApiError."""
        for attempt in range(ATTEMPTS):
            if not await self._lock.look():
                return False
            try:
                await self._take()
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            return True
        raise AssertionError("the last attempt returns or raises")

    async def hold(self, period: float) -> None:
        """Renew it every `period` seconds, until cancelled; take it again from whoever has taken it, and make it again
        when somebody has deleted it."""
        complaint = ""
        while True:
            await self._clock.sleep(period)
            try:
                await self._renew()
                complaint = ""
            except (Conflict, AlreadyExists):
                continue
            except ApiError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    logger.warning("the Lease %s/%s cannot be renewed: %s; tried again", *self._key, complaint)

    async def leave(self, seconds: int) -> float:
        """Let it run out only after so many seconds, so that whoever contends for it waits; when that is (Unix
        seconds). Raises ApiError."""
        last = LeaseLock(self._client, self._clock, self._key, self._identity, seconds)
        for attempt in range(ATTEMPTS):
            try:
                if await last.look():
                    await last.take()
                else:
                    await last.create()
                break
            except (Conflict, AlreadyExists):
                if attempt == ATTEMPTS - 1:
                    raise
        return self._clock.now() + seconds

    async def _renew(self) -> None:
        if await self._lock.look():
            await self._take()
        else:
            await self._lock.create()

    async def _take(self) -> None:
        """Raises ApiError: Conflict if it has changed since it was seen."""
        holder, counts_for = self._lock.holder, self._lock.held_for()
        await self._lock.take()
        if not holder or holder == self._identity:
            return
        if not self.previous:
            self.previous = holder
        seconds = self._duration if holder.startswith(self._kin) else max(counts_for, self._duration)
        self.quiet_at = max(self.quiet_at, self._clock.monotonic() + seconds)
