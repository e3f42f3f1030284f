"""The deadlines of waves: what is kept for the pods that go last."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gracectl.policy.waves import DEFAULT_ORDER, by_priority, wave_deadlines

BEGAN = 1_000_000.0
D = BEGAN + 3600
KEP = by_priority([(100_000, 300.0), (10_000, 180.0), (1_000, 120.0), (0, 60.0)])
ALL = range(4)


def test_a_wave_ends_before_the_periods_of_those_behind_it() -> None:
    limits = wave_deadlines(KEP, ALL, D, BEGAN)
    assert [limits.of(wave) for wave in ALL] == [D - 600, D - 480, D - 300, D]


def test_a_wave_without_pods_needs_no_time() -> None:
    limits = wave_deadlines(KEP, {0, 3}, D, BEGAN)
    assert [limits.of(wave) for wave in (0, 3)] == [D - 300, D]
    assert wave_deadlines(KEP, {0}, D, BEGAN).of(0) == D


def test_a_pod_may_have_been_told_as_if_later_waves_had_pods() -> None:
    assert wave_deadlines(KEP, {0}, D, BEGAN).earliest_of(0) == D - 600


def test_the_default_waves_have_one_deadline() -> None:
    limits = wave_deadlines(DEFAULT_ORDER, ALL, D, BEGAN)
    assert {limits.of(wave) for wave in ALL} == {D}


def test_without_a_deadline_there_is_none() -> None:
    limits = wave_deadlines(KEP, ALL, None, BEGAN)
    assert {limits.of(wave) for wave in ALL} == {limits.earliest_of(wave) for wave in ALL} == {None}


def test_too_little_time_is_shared_in_proportion() -> None:
    """330 s for periods of 660 s: half of each."""
    limits = wave_deadlines(KEP, ALL, BEGAN + 330, BEGAN)
    assert [limits.of(wave) for wave in ALL] == [BEGAN + 30, BEGAN + 90, BEGAN + 180, BEGAN + 330]


def test_a_pod_that_leaves_makes_no_other_deadline_earlier() -> None:
    """Shares count all ranges, whether or not they have pods: else each range that is done would tighten the rest."""
    limits = wave_deadlines(KEP, {1, 2, 3}, BEGAN + 330, BEGAN)
    assert [limits.of(wave) for wave in (1, 2, 3)] == [BEGAN + 90, BEGAN + 180, BEGAN + 330]


def test_just_enough_time_is_not_shared() -> None:
    assert wave_deadlines(KEP, ALL, BEGAN + 660, BEGAN).of(0) == BEGAN + 60


def test_a_deadline_in_the_past_holds_for_all_pods() -> None:
    limits = wave_deadlines(KEP, ALL, BEGAN - 100, BEGAN)
    assert {limits.of(wave) for wave in ALL} == {BEGAN - 100}


@given(
    ranges=st.dictionaries(st.integers(-100, 100), st.floats(0, 10_000), min_size=1, max_size=5),
    seconds=st.floats(-100, 50_000),
    data=st.data(),
)
def test_waves_end_in_order_and_before_the_node(ranges: dict[int, float], seconds: float, data: st.DataObject) -> None:
    order = by_priority(list(ranges.items()))
    waves = range(len(order.waves))
    occupied = data.draw(st.sets(st.sampled_from(waves), min_size=1))
    limits = wave_deadlines(order, occupied, BEGAN + seconds, BEGAN)
    assert all(a <= b for a, b in pairwise(limits.latest))
    assert limits.latest[-1] == BEGAN + seconds
    assert all(early <= late for early, late in zip(limits.earliest, limits.latest, strict=True))
    if seconds >= 0:
        # Waves with pods have time: no deadline lies before the deletion.
        assert limits.latest[min(occupied)] >= BEGAN
