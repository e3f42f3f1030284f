"""The timer wheel, to the exact instant."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from support.virtual import BlockedClock

from gracectl.runtime.clock import Clock, LoopClock, SystemClock
from gracectl.runtime.timer_wheel import TimerWheel

MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86400.0, 365 * 86400.0
BURST = 10_000
FEW = 300
"""Timers, which take well below a millisecond."""


class Watch:
    """A wheel whose firings are noted with their instants; `then` is what else happens at each."""

    def __init__(self, clock: Clock | None = None, then: Callable[[str], None] = lambda key: None) -> None:
        self.clock = clock or LoopClock()
        self.fired: list[tuple[str, float]] = []
        self.then = then
        self.wheel: TimerWheel[str] = TimerWheel(self.clock, self.note)

    def note(self, key: str) -> None:
        self.fired.append((key, self.clock.monotonic()))
        self.then(key)

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.fired]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TaskGroup]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.wheel.run)
            yield group
            group.cancel_scope.cancel()

    async def run_for(self, seconds: float) -> None:
        async with self.running():
            await self.clock.sleep(seconds)


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.parametrize(("at", "fires"), [
    (0.01, 0.01),
    (0.07, 0.07),  # 0.07 * 100 is a little more than 7
    (0.29, 0.29),  # 0.29 * 100 is a little less than 29
    (0.57, 0.57), (1.1, 1.1), (5.0, 5.0), (5.001, 5.01), (5.009999, 5.01),
    (0.1 + 0.2, 0.31),  # which is more than 0.3
    (2.56, 2.56), (655.36, 655.36), (15 * MINUTE, 15 * MINUTE), (48 * HOUR + 0.25, 48 * HOUR + 0.25),
    (90 * DAY + 0.001, 90 * DAY + 0.01),
])  # fmt: skip
async def test_a_timer_fires_at_the_first_slot_that_is_not_before_its_instant(at: float, fires: float) -> None:
    watch = Watch()
    watch.wheel.arm("a", at)
    await watch.run_for(at + 1)
    assert watch.fired == [("a", fires)]


@pytest.mark.parametrize("first", [0.5, 20.0, HOUR])
@pytest.mark.parametrize("second", [0.5, 20.0, HOUR])
async def test_a_timer_that_is_armed_anew_fires_once_at_its_new_instant(first: float, second: float) -> None:
    watch = Watch()
    watch.wheel.arm("a", first)
    async with watch.running():
        await watch.clock.sleep(0.25)
        watch.wheel.arm("a", second)
        assert watch.wheel.due_at("a") == second
        await watch.clock.sleep(2 * HOUR)
    assert watch.fired == [("a", second)]
    assert watch.wheel.due_at("a") is None


async def test_a_timer_that_is_armed_anew_for_the_same_slot_keeps_its_place() -> None:
    watch = Watch()
    for key, at in (("a", 5.0), ("b", 5.0), ("a", 4.995)):
        watch.wheel.arm(key, at)
    await watch.run_for(6)
    assert watch.fired == [("a", 5), ("b", 5)]


async def test_a_callback_may_arm_and_cancel() -> None:
    def then(key: str) -> None:
        assert key not in watch.wheel
        if key == "every second" and len(watch.fired) < 6:
            watch.wheel.arm(key, watch.clock.monotonic() + 1)
        if key == "killer":
            watch.wheel.cancel("in the same slot")
            watch.wheel.cancel("later")
            watch.wheel.arm("delayed", 4.5)
            watch.wheel.arm("hurried", 0.0)

    watch = Watch(then=then)
    for name, at in (("every second", 1), ("killer", 3), ("in the same slot", 3), ("delayed", 3), ("hurried", 9)):
        watch.wheel.arm(name, at)
    watch.wheel.arm("later", 3.5)
    await watch.run_for(HOUR)
    assert watch.fired == [
        ("every second", 1), ("every second", 2), ("killer", 3), ("every second", 3), ("hurried", 3),
        ("every second", 4), ("delayed", 4.5),
    ]  # fmt: skip


@pytest.mark.parametrize("at", [math.inf, -math.inf, math.nan, 1e308])
async def test_what_is_no_instant_is_refused_and_changes_nothing(at: float) -> None:
    watch = Watch()
    watch.wheel.arm("a", 5)
    with pytest.raises(ValueError, match="no instant"):
        watch.wheel.arm("a", at)
    await watch.run_for(10)
    assert watch.fired == [("a", 5)]
    assert watch.wheel.statistics().armed == 1


async def test_the_wheel_sleeps_from_slot_to_slot_and_not_from_tick_to_tick() -> None:
    watch = Watch()
    await watch.run_for(DAY)
    assert watch.wheel.statistics().turns == 1
    watch.wheel.arm("far", 30 * DAY)
    await watch.run_for(60 * DAY)
    assert watch.fired == [("far", 30 * DAY)]
    assert watch.wheel.statistics().turns < 10


async def test_after_a_long_sleep_what_is_near_needs_no_spreading() -> None:
    watch = Watch()
    watch.wheel.arm("far", 30 * DAY)
    async with watch.running():
        await watch.clock.sleep(DAY + 1)
        watch.wheel.arm("this wakes it", DAY + 1.01)
        await watch.clock.sleep(0.02)
        turns, spread = watch.wheel.statistics().turns, watch.wheel.statistics().spread
        for number, key in enumerate(numbered(100)):
            watch.wheel.arm(key, DAY + 1.03 + number / 100)
        await watch.clock.sleep(5)
    assert len(watch.fired) == 101
    assert watch.wheel.statistics().spread <= spread + 100
    assert watch.wheel.statistics().turns <= turns + 103


async def test_years_ahead_is_no_further_than_a_minute() -> None:
    clock = BlockedClock()
    watch = Watch(clock)
    instants = {"soon": 30.25, "a": 3 * YEAR, "b": 3 * YEAR + 0.07, "c": 100 * YEAR + HOUR, "never": 1e12}
    for key, at in instants.items():
        watch.wheel.arm(key, at)
    await watch.run_for(DAY)
    for years in (3, 100):
        clock.missed += years * YEAR - 2 * DAY - clock.monotonic()
        await watch.run_for(3 * DAY)
    # So far from its beginning a virtual clock steps by a microsecond more than once.
    assert dict(watch.fired) == pytest.approx({key: instants[key] for key in ("soon", "a", "b", "c")}, rel=0, abs=1e-5)
    assert all(instant >= instants[key] for key, instant in watch.fired)
    assert watch.keys == ["soon", "a", "b", "c"]
    assert watch.wheel.statistics().turns < 40


async def test_a_burst_in_one_slot_lets_others_have_their_turn() -> None:
    watch = Watch()
    for key in numbered(BURST):
        watch.wheel.arm(key, 5.0)
    async with watch.running():
        await watch.clock.sleep(5.0)
        seen = [0]
        while len(watch.fired) < BURST:
            seen.append(len(watch.fired))
            await anyio.lowlevel.checkpoint()
    assert max(after - before for before, after in pairwise(seen)) < FEW
    assert watch.fired == [(key, 5) for key in numbered(BURST)]


async def test_many_timers_that_come_near_are_spread_with_turns_for_others() -> None:
    """All of them lie in one wide slot; while it is emptied, some are cancelled and some moved."""
    watch = Watch()
    start, hurried = 655.36, 656.0
    for number, key in enumerate(numbered(BURST)):
        watch.wheel.arm(key, (65536 + number % 200) / 100)
    async with watch.running():
        await watch.clock.sleep(start)
        seen = [0]
        while (spread := watch.wheel.statistics().spread) < BURST - FEW:
            seen.append(spread)
            await anyio.lowlevel.checkpoint()
            assert watch.wheel.cancel(str(len(seen)))
            assert watch.wheel.cancel(str(BURST - len(seen)))
            watch.wheel.arm(str(BURST // 2 + len(seen)), hurried)
        await watch.clock.sleep(HOUR)
    assert max(after - before for before, after in pairwise(seen)) < FEW
    statistics = watch.wheel.statistics()
    assert statistics.cancelled > 20
    assert statistics.fired == BURST - statistics.cancelled == len(set(watch.keys))
    for key, instant in watch.fired:
        assert instant in ((65536 + int(key) % 200) / 100, hurried)


async def test_the_cancellation_of_run_loses_nothing() -> None:
    """Not even in the middle of a burst."""
    watch = Watch()
    for key in numbered(BURST):
        watch.wheel.arm(key, 5.0)
    async with watch.running():
        await watch.clock.sleep(5)
        while not watch.fired:
            await anyio.lowlevel.checkpoint()
    fired = len(watch.fired)
    assert 0 < fired < FEW
    assert len(watch.wheel) == BURST - fired
    assert watch.wheel.cancel(str(BURST - 1))
    watch.wheel.arm(str(BURST - 2), 9.0)
    await watch.clock.sleep(2)
    assert len(watch.fired) == fired
    await watch.run_for(3)
    rest = [(key, 7.0) for key in numbered(BURST - 2)[fired:]]
    assert watch.fired[fired:] == [*rest, (str(BURST - 2), 9.0)]


async def test_a_failure_of_a_callback_ends_the_run_and_costs_no_other_timer() -> None:
    def then(key: str) -> None:
        if key == "bad":
            raise LookupError(key)

    watch = Watch(then=then)
    for key in ("before", "bad", "after"):
        watch.wheel.arm(key, 5)
    with pytest.raises(LookupError):
        await watch.wheel.run()
    await watch.run_for(10)
    assert watch.fired == [("before", 5), ("bad", 5), ("after", 5)]


async def test_the_clock_decides_and_not_the_length_of_the_sleep() -> None:
    class SlowClock(LoopClock):
        """The event loop wakes too early by this clock."""

        def monotonic(self) -> float:
            return super().monotonic() * 0.75

    watch = Watch(SlowClock())
    watch.wheel.arm("a", 30)
    async with watch.running():
        await watch.clock.sleep(41)
    [(_, instant)] = watch.fired
    assert instant == pytest.approx(30, abs=1e-5)
    assert instant >= 30


async def test_timers_are_counted_by_their_instants_and_not_by_their_slots() -> None:
    watch = Watch()
    watch.wheel.arm("fired", 5.0)
    await watch.run_for(5.5)
    for key, at in (("overdue", 3.0), ("soon", 6.001), ("later", 6.009), ("far", HOUR)):
        watch.wheel.arm(key, at)
    counts = [watch.wheel.due_by(instant) for instant in (2.0, 3.0, 6.0, 6.005, 6.009, MINUTE, HOUR, DAY)]
    assert counts == [0, 1, 1, 2, 3, 3, 4, 4]


async def test_statistics() -> None:
    watch = Watch()
    for key, at in (("a", 5.0), ("b", 5.004), ("c", 50.0), ("d", 60.0), ("a", 6.004), ("e", 1000.0)):
        watch.wheel.arm(key, at)
    watch.wheel.cancel("d")
    await watch.run_for(100)
    statistics = watch.wheel.statistics()
    assert (statistics.armed, statistics.rearmed, statistics.cancelled) == (6, 1, 1)
    assert (statistics.fired, statistics.pending) == (3, 1)
    assert statistics.spread == 3  # a, b and c, once each
    assert statistics.lateness_total == pytest.approx(0.012)
    assert statistics.lateness_maximum == pytest.approx(0.006)


@pytest.mark.real_time
async def test_on_the_real_clock_no_timer_fires_early() -> None:
    watch = Watch(SystemClock())
    rng = random.Random(4)
    begin = watch.clock.monotonic()
    instants = {key: begin + rng.uniform(0.0, 0.2) for key in numbered(200)}
    for key, at in instants.items():
        watch.wheel.arm(key, at)
    await watch.run_for(0.3)
    assert len(watch.fired) == len(instants)
    assert all(instant >= instants[key] for key, instant in watch.fired)


async def test_statistics_tell_when_the_wheel_is_to_be_turned_next() -> None:
    watch = Watch()
    assert watch.wheel.statistics().next_turn is None
    watch.wheel.arm("a", 2.0)
    assert watch.wheel.statistics().next_turn == 2.0
    await watch.clock.sleep(5)
    assert watch.wheel.statistics().next_turn == 2.0, "no task turns it"
    await watch.run_for(1)
    assert watch.keys == ["a"]
    assert watch.wheel.statistics().next_turn is None


def test_no_slot_lies_before_its_instant_however_floats_are_rounded() -> None:
    wheel = Watch().wheel
    for number in range(1, 20_000):
        for instant in (number / 100, math.nextafter(number / 100, math.inf), math.nextafter(number / 100, 0)):
            tick = wheel._tick(instant)
            assert (tick - 1) / 100 < instant <= tick / 100
