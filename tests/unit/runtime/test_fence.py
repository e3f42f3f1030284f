"""The fence: who may begin, and when what has begun is cut."""

from __future__ import annotations

import math

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import Fence, FenceClosed


class SleepyClock(LoopClock):
    """`monotonic` has missed so many seconds."""

    missed = 0.0

    def elapsed(self) -> float:
        return self.monotonic() + self.missed


async def work(fence: Fence, seconds: float = math.inf, own: float = math.inf) -> float:
    """Something that takes `seconds` and has `own` seconds; the instant of its end."""
    with anyio.move_on_after(own, shield=True) as scope, fence.passage(scope):
        await anyio.sleep(seconds)
    return anyio.current_time()


def leased(clock: LoopClock, begin: float = 10.0, end: float = 12.0) -> Fence:
    fence = Fence(clock)
    fence.extend(fence.mark(), begin, end)
    return fence


async def test_permission_runs_out_by_itself_and_what_has_begun_has_a_little_longer() -> None:
    fence = leased(LoopClock())
    await anyio.sleep(9.75)
    assert fence.is_open()
    async with anyio.create_task_group() as group:
        group.start_soon(work, fence)
        await anyio.sleep(0.25)
        assert not fence.is_open()
        with pytest.raises(FenceClosed):
            await work(fence)
    assert anyio.current_time() == 12.0
    assert fence.statistics().cut == 1
    assert fence.unanswered == 12.0


async def test_what_is_under_way_lives_longer_when_the_fence_does() -> None:
    fence = leased(LoopClock())
    ends: list[float] = []

    async def watched(own: float = math.inf) -> None:
        ends.append(await work(fence, own=own))

    async with anyio.create_task_group() as group:
        group.start_soon(watched)
        group.start_soon(watched, 20.0)
        await anyio.sleep(8)
        mark = fence.mark()
        await anyio.sleep(3)
        fence.extend(mark, 10.0, 12.0)  # from when it was asked for, not from when it was granted
        await anyio.sleep(6.75)
        assert fence.is_open()
        await anyio.sleep(0.25)
        assert not fence.is_open()
    assert ends == [20.0, 20.0]
    assert fence.statistics().cut == 1


async def test_its_own_time_ends_it_before_the_fence_does() -> None:
    fence = leased(LoopClock())
    assert await work(fence, own=3.0) == 3.0
    assert fence.statistics().cut == 0
    assert fence.unanswered == 3.0


async def test_shut_lets_what_is_under_way_go_on_and_close_ends_it() -> None:
    fence = leased(LoopClock())
    async with anyio.create_task_group() as group:
        group.start_soon(work, fence)
        await anyio.sleep(1)
        fence.shut()
        assert not fence.is_open()
        await anyio.sleep(1)
        assert fence.statistics().under_way == 1
        fence.close()
    assert anyio.current_time() == 2.0
    fence.extend(fence.mark(), 10.0, 12.0)
    assert fence.is_open()


async def test_a_limit_is_never_loosened_neither_by_another_nor_by_a_longer_lease() -> None:
    fence = Fence(LoopClock())
    fence.open()
    async with anyio.create_task_group() as group:
        group.start_soon(work, fence)
        await anyio.sleep(100)
        fence.limit(5.0)
        fence.limit(50.0)
        fence.extend(fence.mark(), 10.0, 12.0)
        await anyio.sleep(4.75)
        assert fence.is_open()
    assert anyio.current_time() == 105.0
    assert not fence.is_open()
    fence.open()
    assert not fence.is_open()


async def test_what_is_answered_leaves_no_doubt_and_what_fails_does() -> None:
    fence = Fence(LoopClock())
    fence.open()
    await work(fence, seconds=2.0)
    assert fence.unanswered == -math.inf

    async def fail() -> None:
        await anyio.sleep(1.0)
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"), anyio.CancelScope() as scope, fence.passage(scope):
        await fail()
    assert fence.unanswered == 3.0
    assert fence.statistics().cut == 0


async def test_time_that_was_slept_through_counts() -> None:
    clock = SleepyClock()
    clock.missed = 500.0  # long ago
    fence = leased(clock)
    await anyio.sleep(5)
    assert fence.is_open()
    clock.missed += 4.75
    assert fence.is_open()
    clock.missed += 0.25
    assert not fence.is_open()
    with pytest.raises(FenceClosed):
        await work(fence)
    fence.extend(fence.mark(), 10.0, 12.0)
    assert fence.is_open()
    clock.missed -= 300.0  # the clock was set back: nothing has been missed
    assert fence.is_open()


async def test_the_machine_sleeps_between_the_asking_and_the_answer() -> None:
    clock = SleepyClock()
    fence = Fence(clock)
    mark = fence.mark()
    clock.missed += 60.0
    fence.extend(mark, 10.0, 12.0)
    assert not fence.is_open()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("pass"), st.integers(1, 8)),
            st.tuples(st.just("extend"), st.integers(1, 12)),
            st.tuples(st.just("begin"), st.integers(1, 30)),
            st.tuples(st.just("shut"), st.just(0)),
            st.tuples(st.just("close"), st.just(0)),
            st.tuples(st.just("limit"), st.integers(0, 20)),
        ),
        max_size=25,
    )
)
async def test_nothing_begins_and_nothing_goes_on_when_it_must_not(story: list[tuple[str, int]]) -> None:
    """Against the simplest account of the rules: two instants and a limit."""
    clock = LoopClock()
    fence = Fence(clock)
    begin_until = end_by = -math.inf
    limit = math.inf
    running: dict[int, float] = {}  # since when

    async def one(number: int, seconds: float) -> None:
        running[number] = anyio.current_time()
        await work(fence, seconds)
        assert anyio.current_time() <= max(min(end_by, limit), running[number])
        del running[number]

    async with anyio.create_task_group() as group:
        for number, (verb, value) in enumerate(story):
            now = anyio.current_time()
            match verb:
                case "pass":
                    await anyio.sleep(value)
                    continue
                case "extend":
                    fence.extend(fence.mark(), value, value + 2)
                    begin_until, end_by = now + value, now + value + 2
                case "shut":
                    fence.shut()
                    begin_until = -math.inf
                case "close":
                    fence.close()
                    begin_until, end_by = -math.inf, min(end_by, now)
                case "limit":
                    fence.limit(value)
                    limit = min(limit, now + value)
                case _:
                    assert fence.is_open() == (now < min(begin_until, limit))
                    if fence.is_open():
                        group.start_soon(one, number, value)
            await anyio.wait_all_tasks_blocked()
            assert fence.is_open() == (now < min(begin_until, limit))
            assert not running or now < min(end_by, limit)
    assert running == {}


async def test_waiting_until_it_is_empty_waits_for_the_last_one() -> None:
    fence = Fence(LoopClock())
    fence.open()
    await fence.empty()
    async with anyio.create_task_group() as group:
        group.start_soon(work, fence, 1.0)
        group.start_soon(work, fence, 3.0)
        await anyio.lowlevel.checkpoint()
        await fence.empty()
        assert anyio.current_time() == 3.0
