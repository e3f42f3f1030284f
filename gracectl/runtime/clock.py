"""The one place that knows what time it is.

Everything else is given a Clock, so that tests and the embedded cluster run on virtual time, and the controller on the
API server's time rather than this machine's.
"""

from __future__ import annotations

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """Tells the time and waits. Times and durations are seconds."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds since some instant in the past; never jumps."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds; nothing or less is one turn of the event loop."""


class SystemClock:
    """This machine's clock, moved by the offset at which the API server's was seen."""

    def __init__(self) -> None:
        self._offset = 0.0

    def adjust(self, offset: float) -> None:
        """From now on `now` is so many seconds ahead of this machine's clock."""
        self._offset = offset

    def now(self) -> float:
        """See Clock."""
        return time.time() + self._offset

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))


class LoopClock:
    """The event loop's own time, counted from `epoch`: virtual where the loop's time is (there it begins at 0)."""

    def __init__(self, epoch: float = 1_767_225_600.0) -> None:
        self._epoch = epoch

    def now(self) -> float:
        """See Clock."""
        return self._epoch + anyio.current_time()

    def monotonic(self) -> float:
        """See Clock."""
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))


class ShiftedClock:
    """Another clock whose time of day is wrong by `offset` seconds, which may change at any moment."""

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
