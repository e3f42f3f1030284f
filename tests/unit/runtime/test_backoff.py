"""Backoff: the sizes, the bounds, and the same waits from the same seed; repeated calls."""

from __future__ import annotations

import random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import RetryCallState, stop_after_attempt
from tenacity.wait import wait_base

from gracectl.runtime import backoff as module
from gracectl.runtime.backoff import Backoff, requested_wait, retried


def waits(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next() for _ in range(count)]


def test_without_jitter_waits_double_up_to_the_maximum() -> None:
    assert waits(Backoff(0.5, 5.0, jitter=0.0), 6) == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_another_multiplier() -> None:
    assert waits(Backoff(1.0, 50.0, multiplier=3.0, jitter=0.0), 5) == [1.0, 3.0, 9.0, 27.0, 50.0]


def test_after_a_reset_it_begins_anew() -> None:
    backoff = Backoff(1.0, 60.0, jitter=0.0)
    waits(backoff, 4)
    backoff.reset()
    assert backoff.next() == 1.0


@given(initial=st.floats(0.001, 10.0), growth=st.floats(1.0, 1000.0), jitter=st.floats(0.0, 1.0), seed=st.integers())
def test_every_wait_lies_within_its_bounds(initial: float, growth: float, jitter: float, seed: int) -> None:
    maximum = initial * growth
    backoff = Backoff(initial, maximum, jitter=jitter, rng=random.Random(seed))
    for number in range(40):
        size = min(maximum, initial * 2.0**number)
        assert size * (1 - jitter) * (1 - 1e-9) <= backoff.next() <= size * (1 + 1e-9)


def test_a_wait_stays_at_the_maximum_however_long_it_goes_on() -> None:
    backoff = Backoff(0.1, 10.0, jitter=0.0)
    assert waits(backoff, 5000)[-1] == 10.0


def test_the_same_seed_gives_the_same_waits() -> None:
    first = Backoff(0.1, 10.0, rng=random.Random(7))
    second = Backoff(0.1, 10.0, rng=random.Random(7))
    other = Backoff(0.1, 10.0, rng=random.Random(8))
    assert waits(first, 10) == waits(second, 10) != waits(other, 10)


@pytest.mark.parametrize("jitter", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        Backoff(0.1, 1.0, jitter=jitter)


def test_other_sizes_count_from_the_next_wait_on_for_as_many_failures_as_there_were() -> None:
    backoff = Backoff(1.0, 100.0, jitter=0.0)
    assert [backoff.next() for _ in range(3)] == [1, 2, 4]
    backoff.configure(1.0, 5.0)
    assert [backoff.next() for _ in range(2)] == [5, 5]
    backoff.configure(0.5, 100.0)
    assert backoff.next() == 16
    backoff.reset()
    assert backoff.next() == 0.5


def test_the_wait_after_a_number_of_failures_changes_nothing() -> None:
    backoff = Backoff(1.0, 60.0, jitter=0.0)
    assert [backoff.after(failures) for failures in (3, 1, 2, 100)] == [4, 1, 2, 60]
    assert backoff.next() == 1


class Calls:
    """A call with these outcomes, and the seconds that were waited between them."""

    def __init__(self, *outcomes: Exception | str) -> None:
        self._outcomes = list(outcomes)
        self.slept: list[float] = []
        self.made = 0

    async def call(self) -> str:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def wait(self) -> wait_base:
        self.made += 1
        return requested_wait(_requested, Backoff(1.0, 4.0, jitter=0.0))

    async def run(self, attempts: int = 10) -> str:
        stop = stop_after_attempt(attempts)
        return await retried(self.call, may_repeat=_is_busy, wait=self.wait, sleep=self.sleep, stop=stop)


class Busy(Exception):
    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, Busy)


def _requested(error: BaseException | None) -> float | None:
    return error.seconds if isinstance(error, Busy) else None


async def test_a_call_is_repeated_after_growing_waits_or_those_that_are_requested() -> None:
    calls = Calls(Busy(), Busy(), Busy(0.25), Busy(), "done")
    assert await calls.run() == "done"
    assert calls.slept == [1, 2, 0.25, 4]
    assert calls.made == 1


async def test_a_call_without_a_failure_that_may_be_repeated_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module, "AsyncRetrying")
    assert await Calls("done").run() == "done"
    calls = Calls(KeyError("gone"))
    with pytest.raises(KeyError):
        await calls.run()
    assert calls.made == 0


async def test_the_last_failure_is_raised() -> None:
    last = Busy()
    calls = Calls(Busy(), Busy(), last)
    with pytest.raises(Busy) as raised:
        await calls.run(attempts=3)
    assert raised.value is last
    assert calls.slept == [1, 2]
    calls = Calls(Busy(), KeyError("gone"))
    with pytest.raises(KeyError):
        await calls.run()


async def test_a_repeated_call_can_be_cancelled() -> None:
    async def sleep(seconds: float) -> None:
        await anyio.sleep_forever()

    calls = Calls(Busy())
    with anyio.move_on_after(0) as scope:
        await retried(calls.call, may_repeat=_is_busy, wait=calls.wait, sleep=sleep)
    assert scope.cancelled_caught


def test_a_state_of_tenacity_does_as_well() -> None:
    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    assert Backoff(1.0, 60.0, jitter=0.0)(state) == 1
    state.prepare_for_next_attempt()
    assert Backoff(1.0, 60.0, jitter=0.0)(state) == 2
