"""Clocks: real time, the event loop's time (which may be virtual), and a clock that is deliberately wrong.

No other module reads the time, so a cluster on a `LoopClock` is as fast as its event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import anyio

NEW_YEAR = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


class Clock(Protocol):
    """What the cluster needs of a clock. Times and durations are seconds."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds since some instant in the past; never jumps."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds; nothing or less is one turn of the event loop."""


class SystemClock:
    """This machine's time of day as it was when the clock was made; from then on it runs with `monotonic`."""

    def __init__(self) -> None:
        self._epoch = time.time() - time.monotonic()

    def now(self) -> float:
        """See Clock."""
        return self._epoch + time.monotonic()

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))


class LoopClock:
    """The event loop's own time, counted from `epoch`: virtual where the loop's time is (there it begins at 0)."""

    def __init__(self, epoch: float = NEW_YEAR) -> None:
        self._epoch = epoch

    def now(self) -> float:
        """See Clock."""
        return self._epoch + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        """See Clock."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))


class ShiftedClock:
    """Another clock with a time of day that is `offset` seconds ahead; the offset may change at any moment."""

    def __init__(self, clock: Clock, offset: float = 0.0) -> None:
        self._clock = clock
        self.offset = offset

    def now(self) -> float:
        """See Clock."""
        return self._clock.now() + self.offset

    def monotonic(self) -> float:
        """See Clock."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await self._clock.sleep(seconds)
