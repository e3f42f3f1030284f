"""Backoff: the sizes, the bounds, and the same chance from the same seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.runtime.backoff import Backoff


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


@given(
    initial=st.floats(0.001, 10.0),
    growth=st.floats(1.0, 1000.0),
    jitter=st.floats(0.0, 1.0),
    seed=st.integers(),
)
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
