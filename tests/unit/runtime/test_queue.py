"""The work queue, to the exact instant."""

from __future__ import annotations

import anyio
import pytest

from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.queue import URGENT_SLOTS, WorkQueue
from gracectl.runtime.shares import Shares


class Line:
    """A queue whose takings are noted with their instant."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.queue: WorkQueue[str] = WorkQueue(self.clock, lambda: Backoff(1.0, 8.0, jitter=0.0))

    async def take(self) -> tuple[str, float]:
        key = await self.queue.get()
        return key, self.clock.monotonic()

    async def take_and_finish(self) -> tuple[str, float]:
        key, instant = await self.take()
        self.queue.done(key)
        return key, instant

    async def is_empty_for(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self.queue.get()
            return False
        return True


@pytest.mark.parametrize(("first", "second"), [(5, 60), (60, 5), (5, 5)])
async def test_of_two_wake_ups_the_earlier_one_wins_and_is_the_only_one(first: float, second: float) -> None:
    line = Line()
    line.queue.add_after("a", first)
    line.queue.add_after("a", second)
    assert await line.take_and_finish() == ("a", 5)
    assert await line.is_empty_for(1000)


async def test_an_earlier_wake_up_reaches_a_worker_that_sleeps_towards_a_later_one() -> None:
    line = Line()
    line.queue.add_after("late", 100)
    taken: list[tuple[str, float]] = []

    async def work() -> None:
        taken.append(await line.take())
        taken.append(await line.take())

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await line.clock.sleep(1)
        line.queue.add_after("early", 2)
    assert taken == [("early", 3), ("late", 100)]


async def test_backoffs_are_the_same_in_every_run_and_differ_between_keys() -> None:
    async def wake_ups() -> list[float]:
        clock = LoopClock()
        start = clock.monotonic()
        queue: WorkQueue[str] = WorkQueue(clock)
        for key in "abc":
            queue.add_rate_limited(key)
        instants = []
        for _ in range(3):
            await queue.get()
            instants.append(round(clock.monotonic() - start, 5))
        return instants

    first = await wake_ups()
    assert len(set(first)) == 3
    assert all(0.025 <= wait <= 0.05 + 1e-5 for wait in first)
    assert await wake_ups() == pytest.approx(first, abs=2e-5)


@pytest.mark.parametrize("is_cancelled_first", [True, False])
async def test_a_key_and_a_cancellation_in_the_same_turn_lose_nothing(is_cancelled_first: bool) -> None:
    line = Line()
    scope = anyio.CancelScope()
    taken: list[str] = []

    async def leave() -> None:
        with scope:
            taken.append(await line.queue.get())

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        await line.clock.sleep(1)
        if is_cancelled_first:
            scope.cancel()
        line.queue.add("a")
        scope.cancel()
    # In either order, the key is with the cancelled task or still in the queue.
    assert len(taken) + line.queue.statistics().ready == 1
    assert taken == [] or not is_cancelled_first


async def test_a_waiter_that_leaves_takes_no_key_from_the_others() -> None:
    line = Line()
    taken: list[str] = []
    scopes = [anyio.CancelScope() for _ in range(3)]

    async def work(scope: anyio.CancelScope) -> None:
        with scope:
            taken.append((await line.take())[0])

    async with anyio.create_task_group() as group:
        for scope in scopes:
            group.start_soon(work, scope)
        await line.clock.sleep(1)
        scopes[0].cancel()
        line.queue.add("a")
        line.queue.add("b")
    assert taken == ["a", "b"]


async def test_done_with_a_key_that_is_not_taken_is_a_mistake() -> None:
    line = Line()
    line.queue.add("a")
    with pytest.raises(KeyError):
        line.queue.done("a")


async def test_statistics_tell_depth_latency_and_work() -> None:
    line = Line()
    line.queue.add("a")
    line.queue.add("b")
    line.queue.add_after("c", 100)
    line.queue.add_rate_limited("d")
    await line.clock.sleep(0.5)
    await line.take()
    await line.clock.sleep(0.25)
    line.queue.done("a")
    statistics = line.queue.statistics()
    assert (statistics.ready, statistics.delayed, statistics.processing, statistics.failing) == (1, 2, 0, 1)
    assert (statistics.adds, statistics.handed_out, statistics.retries) == (2, 1, 1)
    assert statistics.latency.total == 0.5
    assert (statistics.oldest_wait, statistics.work_total) == (0.75, 0.25)
    assert (statistics.latency.count, statistics.latency.total) == (1, 0.5)


async def test_statistics_tell_for_how_long_no_worker_has_moved() -> None:
    line = Line()

    def stalled() -> tuple[float, float]:
        statistics = line.queue.statistics()
        return statistics.stalled, statistics.longest_work

    await line.clock.sleep(100)
    assert stalled() == (0.0, 0.0), "no key is ready"
    for key in "abc":
        line.queue.add(key)
    await line.clock.sleep(10)
    assert stalled() == (10.0, 0.0)
    await line.take()
    await line.clock.sleep(3)
    await line.take()
    await line.clock.sleep(2)
    assert stalled() == (2.0, 5.0)
    line.queue.done("a")
    assert stalled() == (0.0, 2.0)
    await line.take()
    await line.clock.sleep(20)
    assert stalled() == (0.0, 22.0), "no key is ready, so no worker is waited for"


async def test_a_key_that_is_armed_ever_earlier_leaves_no_heap_of_void_wake_ups() -> None:
    line = Line()
    largest = 0
    for number in range(10_000):
        line.queue.add_after("a", 20_000 - number)
        largest = max(largest, len(line.queue._heap))
    assert largest < 100
    assert await line.take_and_finish() == ("a", 10_001)
    assert await line.is_empty_for(100_000)


async def test_wake_ups_that_are_void_behind_an_earlier_one_do_not_pile_up() -> None:
    line = Line()
    line.queue.add_after("early", 10)
    largest = 0
    for number in range(2000):
        line.queue.add("a")
        await line.take_and_finish()
        line.queue.add_after("a", 20 + number % 7)
        largest = max(largest, len(line.queue._heap))
    assert largest < 100
    assert await line.take() == ("early", 10)
    assert await line.take() == ("a", 20 + 1_999 % 7)


async def test_taking_without_waiting_returns_only_what_is_ready() -> None:
    line = Line()
    line.queue.add_after("later", 1)
    with pytest.raises(anyio.WouldBlock):
        line.queue.get_nowait()
    line.queue.add("now")
    assert line.queue.get_nowait() == "now"
    with pytest.raises(anyio.WouldBlock):
        line.queue.get_nowait()
    await anyio.sleep(1)
    assert line.queue.get_nowait() == "later"


# -- urgent keys -------------------------------------------------------------------------------------------------------


class Hurried(Line):
    """A queue with one worker's place, and keys that are urgent when they are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.urgent: set[str] = set()
        self.queue = WorkQueue(self.clock, is_urgent=self.urgent.__contains__)
        self.queue.share(Shares(self.clock, 1, has_slow_slots=False))


async def test_an_urgent_key_passes_the_others_and_their_limit() -> None:
    line = Hurried()
    line.queue.add("hangs")
    assert (await line.take())[0] == "hangs"
    for key in ("a", "b"):
        line.queue.add(key)
    assert await line.is_empty_for(10)
    line.urgent.add("b")
    line.queue.add("b")
    assert await line.take() == ("b", 10)
    assert await line.is_empty_for(10)  # "a" waits for a place still
    line.queue.done("hangs")
    assert await line.take_and_finish() == ("a", 20)
    line.queue.done("b")
    assert await line.is_empty_for(10)


async def test_an_urgent_key_that_fails_is_urgent_again() -> None:
    line = Hurried()
    line.urgent.add("b")
    line.queue.add("hangs")
    await line.take()
    line.queue.add("b")
    await line.take()
    line.queue.add_rate_limited("b")
    line.queue.done("b")
    assert (await line.take())[0] == "b"


async def test_no_more_urgent_keys_are_handed_out_than_there_are_slots_for_them() -> None:
    line = Hurried()
    keys = [str(number) for number in range(URGENT_SLOTS + 1)]
    line.urgent.update(keys)
    for key in keys:
        line.queue.add(key)
    for key in keys[:-1]:
        assert (await line.take())[0] == key
    assert line.queue.statistics().ready == 1
    assert await line.is_empty_for(10)
    line.queue.done(keys[0])
    assert (await line.take())[0] == keys[-1]


async def test_a_key_that_was_added_during_its_work_is_ready_again() -> None:
    queue: WorkQueue[str] = WorkQueue(LoopClock())
    queue.add("a")
    assert queue.get_nowait() == "a"
    queue.add("a")
    assert queue.statistics().ready == 0
    queue.done("a")
    assert queue.statistics().ready == 1


async def test_an_urgent_key_is_handed_out_first() -> None:
    queue: WorkQueue[str] = WorkQueue(LoopClock(), is_urgent=lambda key: key == "urgent")
    queue.add("a")
    queue.add("urgent")
    assert queue.get_nowait() == "urgent"
