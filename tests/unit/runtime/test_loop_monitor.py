"""Monitor of the event loop: one that is blocked, and one that is not."""

from __future__ import annotations

import anyio
from support.virtual import BlockedClock

from gracectl.runtime.clock import Clock, LoopClock
from gracectl.runtime.loop_monitor import INTERVAL_SECONDS, LoopMonitor
from gracectl.runtime.supervise import while_running


async def running(clock: Clock, turns: int) -> LoopMonitor:
    """A monitor after so many turns."""
    monitor = LoopMonitor(clock)
    async with while_running(monitor.run):
        await clock.sleep(INTERVAL_SECONDS * turns + 0.1)
    return monitor


async def test_it_turns_twice_a_second() -> None:
    monitor = LoopMonitor(LoopClock())
    assert monitor.statistics().last_turn is None
    statistics = (await running(LoopClock(), 7)).statistics()
    assert statistics.last_turn == 7 * INTERVAL_SECONDS
    assert (statistics.lag.count, statistics.lag.total) == (7, 0.0)


async def test_it_measures_how_long_the_loop_was_blocked() -> None:
    clock = BlockedClock()
    monitor = LoopMonitor(clock)
    async with while_running(monitor.run):
        await anyio.sleep(INTERVAL_SECONDS - 0.1)
        clock.missed = 0.75
        await anyio.sleep(0.2)
    lag = monitor.statistics().lag
    assert (lag.count, lag.total) == (1, 0.75)
