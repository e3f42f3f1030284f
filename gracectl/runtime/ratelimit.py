"""A token bucket: so many a second, a few more in a burst, in the order of asking."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from gracectl.runtime.clock import Clock


class TokenBucket:
    """Grants `qps` tokens a second and up to `burst` at once; `qps` 0 or less is no limit but for pauses.

    Fair: callers get their token in the order in which they asked. A caller that is cancelled while it waits takes no
    token and holds nobody up.
    """

    def __init__(self, clock: Clock, qps: float, burst: int) -> None:
        self._clock = clock
        self._qps = qps
        self._burst = max(burst, 1)
        self._tokens = float(self._burst)
        self._filled_at: float | None = None
        self._paused_until = float("-inf")
        self._turn = anyio.Lock()

    async def acquire(self) -> None:
        """Return when the caller may go ahead."""
        if self._qps <= 0 and self._clock.monotonic() >= self._paused_until and not self._turn.locked():
            await anyio.lowlevel.checkpoint()
            return
        async with self._turn:
            while (seconds := self._missing()) > 0:
                await self._clock.sleep(seconds)
            self._tokens -= 1

    def pause(self, seconds: float) -> None:
        """Grant nothing for so many seconds: the other side has asked for patience. The longest pause wins."""
        self._paused_until = max(self._paused_until, self._clock.monotonic() + seconds)

    def _missing(self) -> float:
        """Seconds until the next token, after filling the bucket up to now; 0 when there is one."""
        now = self._clock.monotonic()
        if now < self._paused_until:
            return self._paused_until - now
        if self._qps <= 0:
            self._tokens = float(self._burst)
            return 0.0
        if self._filled_at is not None:
            self._tokens = min(self._tokens + (now - self._filled_at) * self._qps, float(self._burst))
        self._filled_at = now
        # A sum of floats may miss a whole token by a hair; waiting for the hair would be a busy loop.
        return 0.0 if self._tokens >= 1 - 1e-9 else (1 - self._tokens) / self._qps
