"""Feels the pulse of the event loop: how late a task gets its turn, and when one last had it."""

from __future__ import annotations

import msgspec

from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram, nothing_in

BEAT_SECONDS = 0.5

LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""


class PulseStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot: how late each beat was (seconds), and the monotonic instant of the last; None before the first."""

    lag: Distribution = nothing_in(LAG_BOUNDS)
    last: float | None = None


class Pulse:
    """Beats twice a second, as long as `run` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lag = Histogram(LAG_BOUNDS)
        self._last: float | None = None

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._last = self._clock.monotonic()
            await self._clock.sleep(BEAT_SECONDS)
            self._lag.observe(max(self._clock.monotonic() - self._last - BEAT_SECONDS, 0.0))

    def statistics(self) -> PulseStatistics:
        """What was felt so far."""
        return PulseStatistics(lag=self._lag.statistics(), last=self._last)
