"""Clocks. The one module that reads the time of the machine.

Everything else is given a Clock, so that tests and the embedded cluster run on virtual time, and the controller on the
API server's time rather than this machine's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import anyio

# Only Linux has a clock that runs on while the machine is suspended.
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Tells the time and sleeps. Times and durations are seconds."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds since some instant in the past; never jumps."""

    def elapsed(self) -> float:
        """Like `monotonic`, plus what that has missed while the machine was suspended or paused, as far as it can be
        detected. May jump when this machine's clock is set: where it agrees with `monotonic`, nothing was missed; where
        it is ahead, something may have been."""

    def is_disputed(self) -> bool:
        """Whether clocks contradict each other by more than can be corrected. `now` is then the earlier time, and
        deadlines are paused."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds; 0 or less is one turn of the event loop."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `now` has jumped relative to `monotonic`, or `is_disputed` has changed; it must be
        quick and must not raise."""


class SystemClock:
    """The API server's time as far as known: this machine's, plus the offset of the server's.

    This machine's time of day is read once, when the clock is made; from then on `now` runs with `monotonic`. Deadlines
    are the server's, so they must not jump when this machine's clock is set (NTP, an operator, a hypervisor). An
    initial error of the machine, and the time that `monotonic` has missed while it was suspended, are in the offset
    that the server's responses show; `now` jumps only with that offset.
    """

    def __init__(self) -> None:
        self._epoch = time.time() - time.monotonic()
        self._slept_before = time.clock_gettime(_WITH_SLEEP) - time.monotonic()
        self._offset = 0.0
        self._is_disputed = False
        self._subscribers: list[Callable[[], None]] = []

    def adjust(self, offset: float, is_disputed: bool) -> None:
        """Set how far `now` is ahead of this machine's clock as it was read at the beginning."""
        self._offset, self._is_disputed = offset, is_disputed
        for callback in self._subscribers:
            callback()

    def now(self) -> float:
        """See Clock."""
        return self._epoch + time.monotonic() + self._offset

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    def elapsed(self) -> float:
        """See Clock. A suspended machine counts that time itself; a machine paused from outside shows it by its time of
        day, if at all."""
        return max(time.clock_gettime(_WITH_SLEEP) - self._slept_before, time.time() - self._epoch)

    def is_disputed(self) -> bool:
        """See Clock."""
        return self._is_disputed

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock."""
        self._subscribers.append(callback)


class LoopClock:
    """The event loop's time, counted from `epoch`: virtual where the loop's time is (there it begins at 0)."""

    def __init__(self, epoch: float = 1_767_225_600.0) -> None:
        self._epoch = epoch

    def now(self) -> float:
        """See Clock."""
        return self._epoch + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        """See Clock."""
        return asyncio.get_running_loop().time()

    def elapsed(self) -> float:
        """See Clock. Misses nothing."""
        return asyncio.get_running_loop().time()

    def is_disputed(self) -> bool:
        """See Clock. There is no other clock."""
        return False

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock. Never jumps."""


class RelayedClock:
    """Another clock, for subscribers that come and go: its owner passes jumps on by `jumped`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._subscribers: list[Callable[[], None]] = []

    def jumped(self) -> None:
        """Notify all subscribers of a jump."""
        for callback in self._subscribers:
            callback()

    def now(self) -> float:
        """See Clock."""
        return self._clock.now()

    def monotonic(self) -> float:
        """See Clock."""
        return self._clock.monotonic()

    def elapsed(self) -> float:
        """See Clock."""
        return self._clock.elapsed()

    def is_disputed(self) -> bool:
        """See Clock."""
        return self._clock.is_disputed()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await self._clock.sleep(seconds)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock."""
        self._subscribers.append(callback)
