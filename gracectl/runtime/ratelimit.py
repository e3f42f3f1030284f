"""Token bucket: a rate, a burst, first come, first served.

Invariant: one number is the whole state, the instant at which the bucket is full again. A grant moves it by the time
that one token takes, so rounding errors do not add up and a cancelled caller has nothing to return.
"""

from __future__ import annotations

import anyio
import anyio.lowlevel
import msgspec

from gracectl.runtime.clock import Clock

_TOLERANCE = 1e-6
"""Tolerance for sums of floats."""


class BucketStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot: tokens granted so far, callers that wait, and seconds until the next token can be granted."""

    granted: int
    waiting: int
    next_in: float


class TokenBucket:
    """Grants `qps` tokens a second and up to `burst` at the same time; `qps` 0 or less: no limit except for pauses.

    Fair: callers get their token in the order of their calls. A caller that is cancelled takes no token and delays no
    other.
    """

    def __init__(self, clock: Clock, qps: float, burst: int) -> None:
        self._clock = clock
        self._burst = max(burst, 1)
        self._interval = _interval(qps)
        self._reserve = (self._burst - 1) * self._interval
        self._full_at = float("-inf")
        self._sleep: anyio.CancelScope | None = None  # of the first waiter
        self._turn = anyio.Lock(fast_acquire=True)
        self._granted = self._waiting = 0

    async def acquire(self) -> None:
        """Wait for a token."""
        await anyio.lowlevel.checkpoint()
        if self.take():
            return
        self._waiting += 1
        try:
            # The first waiter sleeps; the others wait for the lock.
            async with self._turn:
                self._grant(await self._wait_for_token())
        finally:
            self._waiting -= 1

    def take(self) -> bool:
        """Take a token if one is free and nothing waits for it."""
        now = self._clock.monotonic()
        if self._free_at() > now or self._turn.locked():
            return False
        self._grant(now)
        return True

    def configure(self, qps: float, burst: int) -> None:
        """Change the rate. Saved tokens (as far as they fit), progress towards the next token and a pause are kept."""
        now, burst, interval = self._clock.monotonic(), max(burst, 1), _interval(qps)
        wait = max(self._free_at() - now, 0.0)
        tokens = float(burst)
        if self._interval:
            saved = self._burst - max(self._full_at - now, 0.0) / self._interval
            tokens = min(saved, float(burst))
        is_paused = wait > self._interval + _TOLERANCE
        self._burst, self._interval, self._reserve = burst, interval, (burst - 1) * interval
        self._full_at = now + wait + self._reserve if is_paused else now + (burst - tokens) * interval
        if self._sleep is not None:
            self._sleep.cancel()

    def pause(self, seconds: float) -> None:
        """Grant nothing for this many seconds, as the server requested. The longest pause wins; 0: no pause.

        No tokens are saved up meanwhile: a burst at the end would bring back the load that called for the pause.
        """
        if seconds > 0:
            self._full_at = max(self._full_at, self._clock.monotonic() + seconds + self._reserve)

    def statistics(self) -> BucketStatistics:
        """Tokens granted, and callers that wait."""
        next_in = max(0.0, self._free_at() - self._clock.monotonic())
        return BucketStatistics(granted=self._granted, waiting=self._waiting, next_in=next_in)

    async def _wait_for_token(self) -> float:
        """Sleep until a token is free, however often a pause moves that instant; returns the instant of the token.

        That is when it was due: a late timer does not lower the rate, and a timer that fires slightly early (instants
        are sums of floats) is accepted, because waiting for the rest would be a busy loop.
        """
        reached = self._clock.monotonic()
        while (free_at := self._free_at()) > reached:
            with anyio.CancelScope() as self._sleep:
                await self._clock.sleep(free_at - self._clock.monotonic())
                reached = free_at
        self._sleep = None
        return reached

    def _free_at(self) -> float:
        return self._full_at - self._reserve

    def _grant(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self._interval
        self._granted += 1


def _interval(qps: float) -> float:
    """Seconds between two tokens; 0 without a limit."""
    return 1 / qps if qps > 0 else 0.0
