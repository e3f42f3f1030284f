"""Shares: whatever hangs in some groups, keys of the others begin in time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.virtual import VirtualLoop

from gracectl.runtime.clock import LoopClock
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.shares import REMEMBERED_SECONDS, SLOW_SECONDS, Shares
from gracectl.runtime.supervise import while_running
from gracectl.runtime.workers import run_workers


def group_of(key: str) -> str:
    return key.split("/")[0]


class Office:
    """Workers over shares; a key takes as long as its group. When each key was begun, by key."""

    def __init__(self, places: int, parent_of: Callable[[Hashable], Hashable] | None = None) -> None:
        self.clock = LoopClock()
        self.queue: WorkQueue[str] = WorkQueue(self.clock)
        self.shares = Shares(self.clock, places, group_of, parent_of)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.begun: dict[str, float] = {}
        self.most: dict[str, int] = {"quick": 0, "slow": 0}

    async def reconcile(self, key: str) -> None:
        self.begun[key] = self.clock.monotonic()
        for kind, taken in self.shares.taken().items():
            self.most[kind] = max(self.most[kind], taken)
        await self.clock.sleep(self.seconds[group_of(key)])

    def add(self, group: str, count: int) -> None:
        for number in range(count):
            self.queue.add(f"{group}/{number}")

    async def work(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await run_workers(self.queue, self.reconcile, self.shares, in_bursts=True)

    def instants(self, group: str) -> list[float]:
        return [at for key, at in self.begun.items() if group_of(key) == group]


async def test_a_group_that_hangs_leaves_room_for_the_others() -> None:
    office = Office(8)
    office.seconds["bad"] = 9.0
    office.add("bad", 20)
    office.add("good", 1)
    await office.work(100.0)
    # One group alone has half of the places; once it is slow as many of the slow ones, and leaves half of the others.
    assert office.instants("bad") == [float(at) for at in (0, 1, 2, 9, 10) for _ in range(4)]
    assert office.instants("good") == [0.0]
    assert office.most["slow"] <= 8


def first_letter(group: Hashable) -> str:
    return str(group)[0]


async def test_groups_that_hang_leave_room_for_others_of_their_parent_and_for_other_parents() -> None:
    office = Office(40, first_letter)
    for number in range(3):
        office.seconds[f"a{number}"] = 9.0
        office.add(f"a{number}", 50)
        office.add(f"a-good{number}", 1)
    office.add("b", 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(office.work, 60.0)
        for number in range(10):
            await anyio.sleep(0.75)
            office.add(f"a-late{number}", 1)
            office.add(f"b-late{number}", 1)
    assert [office.instants(f"a-good{number}") for number in range(3)] == [[0.0]] * 3
    assert office.instants("b") == [0.0]
    for number in range(10):
        assert office.instants(f"a-late{number}") == office.instants(f"b-late{number}") == [0.75 * (number + 1)]


async def test_one_group_of_a_parent_has_half_and_one_parent_three_quarters() -> None:
    office = Office(40, first_letter)
    office.seconds["a0"] = 0.5
    office.add("a0", 100)
    await office.work(0.4)
    assert office.most["quick"] == 20
    office = Office(40, first_letter)
    for number in range(100):
        office.seconds[f"a{number}"] = 0.5
        office.add(f"a{number}", 1)
    await office.work(0.4)
    assert office.most["quick"] == 30


async def test_the_groups_of_a_parent_that_has_all_it_gets_are_not_looked_at() -> None:
    """There may be thousands of workloads in one namespace; those known to be slow have slots of their own."""

    class Unread(dict[Hashable, None]):
        def __iter__(self) -> Iterator[Hashable]:
            raise AssertionError

    clock = LoopClock()
    shares: Shares[str] = Shares(clock, 8, group_of, first_letter)
    for number in range(6):
        assert shares.admits(f"a{number}")
        shares.begin(f"a{number}/0", f"a{number}", 0.0)
    groups = Unread.fromkeys([f"a{number}" for number in range(5000)])
    assert shares.first({"a": groups}) is None
    assert shares.first({"a": groups, "b": {"b0": None}}) == "b0"
    shares.end("a3/0", 2.0)
    shares.begin("a9/0", "a9", 2.0)
    assert shares.first({"a": groups}) == "a3"


async def test_many_groups_that_hang_for_the_first_time_cost_a_second() -> None:
    office = Office(4)
    for number in range(7):
        office.seconds[f"bad{number}"] = 30.0
        office.add(f"bad{number}", 1)
    office.add("good", 1)
    await office.work(5.0)
    assert [office.instants(f"bad{number}") for number in range(7)] == [[0.0]] * 4 + [[SLOW_SECONDS]] * 3
    assert office.instants("good") == [SLOW_SECONDS]


async def test_groups_that_are_known_to_be_slow_cost_nothing() -> None:
    office = Office(4)
    bad = [f"bad{number}" for number in range(20)]
    for group in bad:
        office.seconds[group] = 30.0
        office.add(group, 1)
    async with while_running(partial(office.work, 1000.0)):
        await anyio.sleep(400.0)
        assert all(office.shares.is_slow(group) for group in bad)
        for group in bad:
            office.queue.add(f"{group}/again")
        await anyio.sleep(0.5)
        office.add("good", 1)
        await anyio.sleep(0.5)
        assert office.instants("good") == [400.5]


async def test_a_slow_group_becomes_quick_again_by_quick_work() -> None:
    office = Office(4)
    office.seconds["a"] = 5.0
    office.add("a", 1)
    async with while_running(partial(office.work, 1000.0)):
        await anyio.sleep(1.5)
        office.shares.move_slow(office.clock.monotonic())  # as the queue does before it hands out anything
        assert office.shares.is_slow("a")
        assert office.shares.taken() == {"quick": 0, "slow": 1}
        office.seconds["a"] = 0.1
        office.queue.add("a/next")
        await anyio.sleep(1.0)
        assert not office.shares.is_slow("a")
        await anyio.sleep(4.0)  # what has hung until now is a sign again
        assert office.shares.is_slow("a")
        office.seconds["b"] = 2.0
        await anyio.sleep(REMEMBERED_SECONDS)
        office.add("b", 1)
        await anyio.sleep(2.5)
        assert not office.shares.is_slow("a")


async def test_work_that_waits_for_something_of_ours_is_not_slow() -> None:
    clock = LoopClock()
    shares: Shares[str] = Shares(clock, 2, group_of)
    shares.begin("a/1", "a", clock.monotonic())
    shares.pause("a/1")
    await anyio.sleep(60.0)
    shares.move_slow(clock.monotonic())
    assert shares.next_change() == 61.0
    shares.resume("a/1")
    await anyio.sleep(0.5)
    shares.end("a/1", clock.monotonic())
    assert not shares.is_slow("a")
    assert shares.taken() == {"quick": 0, "slow": 0}


async def test_a_group_keeps_its_order_and_a_key_that_is_added_twice_is_worked_on_once() -> None:
    office = Office(2)
    office.seconds["a"] = 0.5
    office.add("a", 5)
    async with while_running(partial(office.work, 100.0)):
        await anyio.sleep(0.1)
        office.add("a", 5)  # one is under way, the others wait already
        statistics = office.queue.statistics()
        assert (statistics.ready, statistics.processing) == (4, 1)
        assert statistics.oldest_wait == pytest.approx(0.1)
        await anyio.sleep(10.0)
    assert list(office.begun) == ["a/0", "a/1", "a/2", "a/3", "a/4"]
    assert office.queue.statistics().handed_out == 6


async def test_more_room_is_used_at_once_by_skipped_keys() -> None:
    office = Office(2)
    office.seconds["a"] = 10.0
    office.add("a", 3)
    async with while_running(partial(office.work, 100.0)):
        await anyio.sleep(0.5)
        assert office.instants("a") == [0.0]
        office.shares.resize(6)
        await anyio.sleep(0.1)
        assert office.instants("a") == [0.0, 0.5, 0.5]


@given(
    places=st.integers(1, 6),
    groups=st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.5, 9.0]), st.integers(1, 8)), min_size=1, max_size=8),
)
def test_nothing_is_lost_and_no_place_is_taken_twice(places: int, groups: list[tuple[float, int]]) -> None:
    async def play() -> Office:
        office = Office(places)
        for number, (seconds, count) in enumerate(groups):
            office.seconds[f"g{number}"] = seconds
            office.add(f"g{number}", count)
        await office.work(2000.0)
        return office

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        office = runner.run(play())
    assert len(office.begun) == sum(count for _, count in groups)
    assert office.most["quick"] <= places
    assert office.most["slow"] <= places
    assert office.shares.taken() == {"quick": 0, "slow": 0}
