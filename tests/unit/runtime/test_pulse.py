"""The pulse of the event loop: what it feels of a loop that is held up, and of one that is not."""

from __future__ import annotations

import time

import anyio
import pytest

from gracectl.runtime.clock import Clock, LoopClock, SystemClock
from gracectl.runtime.pulse import BEAT_SECONDS, Pulse

pytestmark = pytest.mark.anyio


async def beating(clock: Clock, beats: int) -> Pulse:
    """One that has beaten so often."""
    pulse = Pulse(clock)
    async with anyio.create_task_group() as group:
        group.start_soon(pulse.run)
        await clock.sleep(BEAT_SECONDS * beats + 0.1)
        group.cancel_scope.cancel()
    return pulse


async def test_it_beats_twice_a_second() -> None:
    pulse = Pulse(LoopClock())
    assert pulse.statistics().last is None
    statistics = (await beating(LoopClock(), 7)).statistics()
    assert statistics.last == 7 * BEAT_SECONDS
    assert (statistics.lag.count, statistics.lag.total) == (7, 0.0)


@pytest.mark.real_time
async def test_it_feels_how_long_the_loop_was_held_up() -> None:
    pulse = Pulse(SystemClock())
    async with anyio.create_task_group() as group:
        group.start_soon(pulse.run)
        await anyio.sleep(0.3)
        time.sleep(0.5)  # noqa: ASYNC251  holding the loop up is the point
        await anyio.sleep(0.1)
        group.cancel_scope.cancel()
    lag = pulse.statistics().lag
    assert lag.count == 1
    assert lag.total >= 0.25
