"""The token bucket, to the exact instant."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.virtual import BlockedClock

from gracectl.runtime.clock import LoopClock
from gracectl.runtime.ratelimit import TokenBucket


class Callers:
    """Asks a bucket as many callers, and notes who was let through when."""

    def __init__(self, qps: float, burst: int) -> None:
        self.clock = LoopClock()
        self.bucket = TokenBucket(self.clock, qps, burst)
        self.granted: list[tuple[str, float]] = []

    async def ask(self, name: str) -> None:
        await self.bucket.acquire()
        self.granted.append((name, self.clock.monotonic()))

    @property
    def instants(self) -> list[float]:
        return [instant for _, instant in self.granted]


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate() -> None:
    callers = Callers(qps=4, burst=3)
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(callers.ask, str(number))
    assert callers.granted == [("0", 0), ("1", 0), ("2", 0), ("3", 0.25), ("4", 0.5), ("5", 0.75)]


async def test_the_bucket_fills_while_idle_but_not_above_the_burst() -> None:
    callers = Callers(qps=2, burst=2)
    for _ in range(2):
        await callers.ask("early")
    await callers.clock.sleep(100)
    for _ in range(4):
        await callers.ask("late")
    assert callers.instants == [0, 0, 100, 100, 100.5, 101]


async def test_a_rate_that_is_no_binary_fraction_does_not_drift() -> None:
    callers = Callers(qps=3, burst=1)
    for _ in range(301):
        await callers.ask("x")
    assert callers.instants[-1] == pytest.approx(100.0, abs=2e-6)


@pytest.mark.parametrize("qps", [0, 4])
async def test_nothing_is_granted_during_a_pause(qps: float) -> None:
    callers = Callers(qps, burst=5)
    callers.bucket.pause(3)
    await callers.ask("x")
    assert callers.instants == [3]


async def test_a_pause_reaches_earlier_waiters_and_ends_without_a_burst() -> None:
    callers = Callers(qps=2, burst=2)
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(callers.ask, str(number))
        await callers.clock.sleep(0.25)
        callers.bucket.pause(10)
    assert callers.granted == [("0", 0), ("1", 0), ("2", 10.25), ("3", 10.75), ("4", 11.25)]


async def test_the_longest_pause_wins() -> None:
    callers = Callers(qps=0, burst=1)
    callers.bucket.pause(5)
    callers.bucket.pause(1)
    await callers.ask("x")
    assert callers.instants == [5]


@pytest.mark.parametrize("seconds", [0, -5])
async def test_a_pause_of_nothing_takes_nothing_from_the_burst(seconds: float) -> None:
    callers = Callers(qps=1, burst=3)
    callers.bucket.pause(seconds)
    for _ in range(4):
        await callers.ask("x")
    assert callers.instants == [0, 0, 0, 1]


async def test_a_pause_may_be_extended_while_a_caller_sleeps_and_a_cancelled_one_frees_the_queue() -> None:
    callers = Callers(qps=1, burst=1)
    callers.bucket.pause(5)
    async with anyio.create_task_group() as group:
        group.start_soon(callers.ask, "patient")
        with anyio.move_on_after(4):
            await callers.ask("impatient")
        callers.bucket.pause(6)
    assert callers.granted == [("patient", 10)]


@pytest.mark.parametrize("leaver", [0, 1, 2])
async def test_a_caller_that_leaves_takes_no_token_and_delays_no_other(leaver: int) -> None:
    callers = Callers(qps=1, burst=1)
    await callers.ask("first")
    scopes = [anyio.CancelScope() for _ in range(3)]

    async def wait(number: int) -> None:
        with scopes[number]:
            await callers.ask(str(number))

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(wait, number)
        await callers.clock.sleep(0.5)
        scopes[leaver].cancel()
    stayed = [str(number) for number in range(3) if number != leaver]
    assert callers.granted == [("first", 0), (stayed[0], 1), (stayed[1], 2)]


async def test_a_later_caller_does_not_overtake() -> None:
    callers = Callers(qps=1, burst=1)
    await callers.ask("first")
    async with anyio.create_task_group() as group:
        group.start_soon(callers.ask, "second")
        await callers.clock.sleep(1)  # the very instant of the next token
        group.start_soon(callers.ask, "third")
    assert [name for name, _ in callers.granted] == ["first", "second", "third"]


async def test_after_a_blocked_event_loop_waiters_come_before_new_callers() -> None:
    callers = Callers(qps=1, burst=5)
    clock = BlockedClock()
    callers.bucket = TokenBucket(clock, qps=1, burst=5)
    for _ in range(5):
        await callers.ask("burst")
    callers.granted.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(callers.ask, "first")
        group.start_soon(callers.ask, "second")
        await callers.clock.sleep(0.5)
        clock.missed = 3.0
        group.start_soon(callers.ask, "late")
    assert [name for name, _ in callers.granted] == ["first", "second", "late"]


async def test_statistics_count_waiters_and_say_until_when() -> None:
    callers = Callers(qps=0.5, burst=1)
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(callers.ask, str(number))
        await callers.clock.sleep(0.5)
        statistics = callers.bucket.statistics()
    assert (statistics.granted, statistics.waiting, statistics.next_in) == (1, 2, 1.5)
    after = callers.bucket.statistics()
    assert (after.granted, after.waiting) == (3, 0)


@pytest.mark.parametrize(("qps", "burst", "instants"), [
    (1, 1, [0, 10, 15.5, 16.5, 17.5]),  # half of the token that comes at 20 had come
    (0.05, 1, [0, 10, 25, 45, 65]), (0, 1, [0, 10, 15, 15, 15]),
    (0.1, 5, [0, 10, 20, 30, 40]),  # more room is no token
    (2, 9, [0, 10, 15.25, 15.75, 16.25]),
])  # fmt: skip
async def test_another_rate_counts_at_once_for_all_waiters(qps: float, burst: int, instants: list[float]) -> None:
    callers = Callers(qps=0.1, burst=1)
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(callers.ask, str(number))
        await callers.clock.sleep(15)
        callers.bucket.configure(qps, burst)
    assert callers.instants == pytest.approx(instants)


async def test_what_was_saved_up_stays_as_far_as_there_is_room() -> None:
    callers = Callers(qps=1, burst=10)
    for _ in range(4):
        await callers.ask("early")
    callers.bucket.configure(1, 3)
    for _ in range(4):
        await callers.ask("late")
    assert callers.instants == [0] * 7 + [1]
    callers.bucket.configure(0, 3)
    for _ in range(10):
        await callers.ask("without a limit")
    assert callers.instants[8:] == [1] * 10
    callers.bucket.configure(1, 3)
    for _ in range(4):
        await callers.ask("limited again")
    assert callers.instants[18:] == [1, 1, 1, 2]


async def test_a_pause_outlasts_another_rate() -> None:
    callers = Callers(qps=1, burst=1)
    callers.bucket.pause(30)
    async with anyio.create_task_group() as group:
        group.start_soon(callers.ask, "a")
        await callers.clock.sleep(5)
        callers.bucket.configure(100, 50)
        await callers.clock.sleep(5)
        callers.bucket.configure(0, 1)
    assert callers.instants == [30]


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 3.0, 10.0]), st.integers(1, 8), st.floats(0, 3)), max_size=8))
async def test_changing_rates_let_no_more_pass_than_they_allow(changes: list[tuple[float, int, float]]) -> None:
    callers = Callers(qps=2, burst=4)
    allowed, rate = 4.0, 2.0
    async with anyio.create_task_group() as group:

        async def ask_for_ever() -> None:
            while True:
                await callers.ask("x")

        group.start_soon(ask_for_ever)
        await callers.clock.sleep(0.01)
        allowed += 0.02
        for qps, burst, seconds in changes:
            await callers.clock.sleep(seconds)
            allowed += rate * seconds
            rate = qps
            callers.bucket.configure(qps, burst)
            assert len(callers.granted) <= allowed + 1e-6
        await callers.clock.sleep(3)
        assert len(callers.granted) <= allowed + 3 * rate + 1e-6
        # And none is lost: a caller that asks all the time never lets the bucket be full.
        assert len(callers.granted) >= allowed + 3 * rate - 1 - 1e-6
        group.cancel_scope.cancel()
