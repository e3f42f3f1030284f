"""Sleepers: who wakes, when, and in which order."""

from __future__ import annotations

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.sleepers import Sleepers

pytestmark = pytest.mark.anyio


async def test_all_that_sleep_wake_in_their_order() -> None:
    sleepers, woken = Sleepers(), []

    async def sleep(name: str) -> None:
        await sleepers.sleep()
        woken.append(name)

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(sleep, name)
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        sleepers.wake()
    assert woken == ["a", "b", "c"]


async def test_a_sleep_ends_after_its_seconds_and_a_wake_before_is_not_kept() -> None:
    sleepers, clock = Sleepers(), LoopClock()
    sleepers.wake()
    await sleepers.sleep(5.0)
    assert clock.monotonic() == 5.0
    await sleepers.sleep(-1.0)
    assert clock.monotonic() == 5.0


async def test_what_is_cancelled_or_over_is_woken_no_more() -> None:
    sleepers, clock = Sleepers(), LoopClock()
    with anyio.move_on_after(1.0) as scope:
        await sleepers.sleep(5.0)
    assert scope.cancelled_caught
    await sleepers.sleep(1.0)
    sleepers.wake()
    await sleepers.sleep(3.0)
    assert clock.monotonic() == 5.0
