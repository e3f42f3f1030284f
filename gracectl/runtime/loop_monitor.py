"""Monitor of the event loop: how late tasks get their turn, and when one last did."""

from __future__ import annotations

import msgspec

from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram, empty_distribution

INTERVAL_SECONDS = 0.5

LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""


class LoopStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot: how late each turn was (seconds), and the monotonic instant of the last; None before the first."""

    lag: Distribution = empty_distribution(LAG_BOUNDS)
    last_turn: float | None = None


class LoopMonitor:
    """Measures the lag of the event loop twice a second, as long as `run` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lag = Histogram(LAG_BOUNDS)
        self._last_turn: float | None = None

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._last_turn = self._clock.monotonic()
            await self._clock.sleep(INTERVAL_SECONDS)
            self._lag.observe(max(self._clock.monotonic() - self._last_turn - INTERVAL_SECONDS, 0.0))

    def statistics(self) -> LoopStatistics:
        """Lag measured so far."""
        return LoopStatistics(lag=self._lag.statistics(), last_turn=self._last_turn)
