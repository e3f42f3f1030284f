"""The one place that knows what time it is.

Everything else is given a Clock, so that tests and the embedded cluster run on virtual time, and the controller on the
API server's time rather than this machine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import anyio

# Linux alone has a clock that goes on while the machine is suspended.
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Tells the time and waits. Times and durations are seconds."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds since some instant in the past; never jumps."""

    def elapsed(self) -> float:
        """Like `monotonic`, but with what that has missed while the machine was asleep or stopped, as far as anything
        here shows it. May jump when somebody sets this machine's clock: where it agrees with `monotonic`, nothing was
        missed; where it is ahead, something may have been."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds; nothing or less is one turn of the event loop."""

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `now` has jumped beside `monotonic`; it must be quick and must not raise."""


class SystemClock:
    """The API server's time, as far as it is known: this machine's, moved by the offset at which the server's was seen.

    This machine's time of day is read once, when the clock is made; from then on `now` runs with `monotonic`. Should
    somebody set the machine's clock (NTP at its first contact, a person, a hypervisor), deadlines must not jump with
    it: they are the server's, whose clock has not moved. What the machine was wrong at the beginning, and what
    `monotonic` has missed while the machine was asleep, is in the offset that the server's answers show; only with that
    offset does `now` jump.
    """

    def __init__(self) -> None:
        self._epoch = time.time() - time.monotonic()
        self._slept_before = time.clock_gettime(_WITH_SLEEP) - time.monotonic()
        self._offset = 0.0
        self._subscribers: list[Callable[[], None]] = []

    def adjust(self, offset: float) -> None:
        """From now on `now` is so many seconds ahead of this machine's clock as it was read at the beginning."""
        self._offset = offset
        for callback in self._subscribers:
            callback()

    def now(self) -> float:
        """See Clock."""
        return self._epoch + time.monotonic() + self._offset

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    def elapsed(self) -> float:
        """See Clock. A machine that was suspended counts that itself; one that was paused from outside learns of it,
        if at all, by its time of day."""
        return max(time.clock_gettime(_WITH_SLEEP) - self._slept_before, time.time() - self._epoch)

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock."""
        self._subscribers.append(callback)


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

    def elapsed(self) -> float:
        """See Clock. This one misses nothing."""
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.sleep(max(seconds, 0.0))

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock. This one never jumps."""


class RelayedClock:
    """Another clock for those who come and go: they are told of its jumps by whoever has it, as long as he does so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._subscribers: list[Callable[[], None]] = []

    def jumped(self) -> None:
        """Tell all subscribers of a jump."""
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

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await self._clock.sleep(seconds)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock."""
        self._subscribers.append(callback)


class ShiftedClock(RelayedClock):
    """Another clock whose time of day is wrong by `offset` seconds, which may change at any moment."""

    def __init__(self, clock: Clock, offset: float = 0.0) -> None:
        super().__init__(clock)
        self._offset = offset

    @property
    def offset(self) -> float:
        """Seconds that this clock is ahead of the other."""
        return self._offset

    @offset.setter
    def offset(self, offset: float) -> None:
        self._offset = offset
        self.jumped()

    def now(self) -> float:
        """See Clock."""
        return super().now() + self._offset

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock. The other clock may jump as well."""
        super().subscribe(callback)
        self._clock.subscribe(callback)
