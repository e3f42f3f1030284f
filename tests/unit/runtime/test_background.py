"""Background: what takes longer than its caller waits goes on, and is not begun twice."""

from __future__ import annotations

import logging
from contextlib import suppress

import anyio
import pytest

from gracectl.runtime.background import Background, BoundedBackground
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import FenceClosed
from gracectl.runtime.supervise import while_running


class Writes:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begun: list[float] = []
        self.ended: list[float] = []

    async def write(self) -> str:
        self.begun.append(anyio.current_time())
        await anyio.sleep(self.seconds)
        self.ended.append(anyio.current_time())
        return "written"


async def test_a_cancelled_waiter_does_not_end_it_and_a_later_one_joins() -> None:
    background, writes = Background(), Writes(10.0)
    async with while_running(background.run):
        with pytest.raises(TimeoutError):
            await background.join("a", writes.write, 1.0)
        assert background.is_under_way("a")
        with anyio.move_on_after(2.0):
            await background.join("a", writes.write)
        assert await background.join("a", writes.write) == "written"
        assert (writes.begun, writes.ended) == ([0.0], [10.0])
        assert not background.is_under_way("a")
        assert await background.join("a", writes.write) == "written"
        assert writes.begun == [0.0, 10.0]


async def test_two_callers_in_one_turn_of_the_loop_share_a_call() -> None:
    """Both found no call under way, began one each, and the second to end failed the component: seed 52."""
    background, writes, results = Background(), Writes(1.0), list[str]()

    async def join() -> None:
        results.append(await background.join("a", writes.write))

    async with while_running(background.run):
        await anyio.sleep(1.0)
        async with anyio.create_task_group() as callers:
            callers.start_soon(join)
            callers.start_soon(join)
        assert (results, writes.begun) == (["written", "written"], [1.0])


async def test_a_failure_is_raised_to_waiters_and_otherwise_logged(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()

    async def fail() -> None:
        await anyio.sleep(5.0)
        raise ValueError("no")

    async with while_running(background.run):
        with pytest.raises(ValueError, match="no"):
            await background.join("a", fail)
        assert caplog.records == []
        with pytest.raises(TimeoutError):
            await background.join("a", fail, 1.0)
        await anyio.sleep(10.0)
        assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, "no")]


async def test_what_is_under_way_ends_with_it_and_nothing_begins_afterwards() -> None:
    background, writes = Background(), Writes(10.0)
    async with anyio.create_task_group() as group:
        async with while_running(background.run):
            with pytest.raises(TimeoutError):
                await background.join("a", writes.write, 1.0)
        assert not background.is_under_way("a")
        with pytest.raises(FenceClosed):
            await background.join("a", writes.write)
        group.cancel_scope.cancel()
    assert writes.ended == []


async def test_bounded_calls_that_hang_leave_room_for_others_once_they_are_known() -> None:
    background, quick, slow = BoundedBackground(LoopClock(), 2), Writes(0.0), Writes(10.0)

    async def join(name: str, writes: Writes) -> None:
        with suppress(TimeoutError):
            await background.join(name, writes.write, 1.0)

    async with anyio.create_task_group() as group:
        group.start_soon(background.run)
        for number in range(6):
            group.start_soon(join, f"slow{number}", slow)
        await anyio.sleep(0.5)
        assert slow.begun == [0.0, 0.0]
        group.start_soon(join, "slow0", slow)  # joined, not begun again
        await anyio.sleep(40.0)
        assert slow.begun == [0.0] * 2 + [1.0] * 2 + [10.0] * 2  # two slots, two for slow ones
        for number in range(6):
            group.start_soon(join, f"slow{number}", slow)
        await anyio.sleep(0.5)
        await background.join("quick", quick.write)
        assert quick.begun == [40.5 + 0.5]
        group.cancel_scope.cancel()


async def test_bounded_calls_without_a_slot_end_with_run() -> None:
    background, writes, outcomes = BoundedBackground(LoopClock(), 1), Writes(10.0), list[str]()

    async def join(name: str) -> None:
        try:
            outcomes.append(await background.join(name, writes.write))
        except FenceClosed:
            outcomes.append("closed")

    async with anyio.create_task_group() as runner:
        runner.start_soon(background.run)
        async with anyio.create_task_group() as callers:
            callers.start_soon(join, "a")
            callers.start_soon(join, "b")
            await anyio.sleep(0.5)
            runner.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)
    assert len(writes.begun) == 1
    assert not background.is_under_way("b")
    with pytest.raises(FenceClosed):
        await background.join("c", writes.write)
