"""Takeover of a Lease: its leader stops, and no other process gets it.

The leader finds in its next renewal, or by its watch, that the Lease has another holder, and closes its fence. What
it had sent before may still be carried out until the instant at which its Lease would have run out (see `election`):
only from `quiet_at` on nothing of it can arrive. Invariant: nothing is written but the Lease, under the version that
was read.
"""

from __future__ import annotations

import logging
from typing import Final

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import AlreadyExists, ApiError, Conflict
from gracectl.kube.leader.leases import LeaseLock
from gracectl.kube.requests import Key
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 20
"""A leader renews every few seconds; a Lease that has changed at every attempt is changed by something else."""


class Takeover:
    """Takeover of the Lease `key` by `identity`. Identities of other takeovers begin with `kin`: they write
    nothing but the Lease, but may have begun a moment ago. `duration`: seconds that a leader of this Lease
    counts on.
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
        """The holder before; "" for none."""
        self.quiet_at = clock.monotonic()
        """The monotonic instant from which on no request of an earlier holder can arrive."""

    @property
    def namespace(self) -> str:
        """Namespace of the Lease."""
        return self._key[0]

    async def begin(self) -> bool:
        """Take the Lease; False when there is none. Raises ApiError."""
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
        """Renew it every `period` seconds, until cancelled; take it again from any other holder, and create it
        again when it was deleted.
        """
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
                    logger.warning("Lease %s/%s: cannot renew: %s; retrying", *self._key, complaint)

    async def leave(self, seconds: int) -> float:
        """Let it run out only after so many seconds, during which contenders wait; returns when that is (Unix
        seconds). Raises ApiError.
        """
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
        """Raises ApiError: Conflict if it has changed since it was read."""
        holder, counts_for = self._lock.holder, self._lock.held_for()
        await self._lock.take()
        if not holder or holder == self._identity:
            return
        if not self.previous:
            self.previous = holder
        seconds = self._duration if holder.startswith(self._kin) else max(counts_for, self._duration)
        self.quiet_at = max(self.quiet_at, self._clock.monotonic() + seconds)
