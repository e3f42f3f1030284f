"""Monitor of the event loop: one that is blocked, and one that is not."""

from __future__ import annotations

import time

import anyio
import pytest

from gracectl.runtime.clock import Clock, LoopClock, SystemClock
from gracectl.runtime.loop_monitor import INTERVAL_SECONDS, LoopMonitor

pytestmark = pytest.mark.anyio


async def running(clock: Clock, turns: int) -> LoopMonitor:
    """A monitor after so many turns."""
    monitor = LoopMonitor(clock)
    async with anyio.create_task_group() as group:
        group.start_soon(monitor.run)
        await clock.sleep(INTERVAL_SECONDS * turns + 0.1)
        group.cancel_scope.cancel()
    return monitor


async def test_it_turns_twice_a_second() -> None:
    monitor = LoopMonitor(LoopClock())
    assert monitor.statistics().last_turn is None
    statistics = (await running(LoopClock(), 7)).statistics()
    assert statistics.last_turn == 7 * INTERVAL_SECONDS
    assert (statistics.lag.count, statistics.lag.total) == (7, 0.0)


@pytest.mark.real_time
async def test_it_measures_how_long_the_loop_was_blocked() -> None:
    monitor = LoopMonitor(SystemClock())
    async with anyio.create_task_group() as group:
        group.start_soon(monitor.run)
        await anyio.sleep(0.3)
        time.sleep(0.5)  # noqa: ASYNC251  blocking the loop is the point
        await anyio.sleep(0.1)
        group.cancel_scope.cancel()
    lag = monitor.statistics().lag
    assert lag.count == 1
    assert lag.total >= 0.25
