"""The axis of time: even where all can be seen on it, logarithmic where not; round ticks on any width."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.cli.format import DAY
from gracectl.cli.plan.chart import Axis, axis_of, tick_label

INSTANTS = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


def labels(axis: Axis, most: int) -> list[str]:
    return [tick.label for tick in axis.ticks(most)]


def test_what_can_be_seen_stands_on_an_even_scale() -> None:
    axis = axis_of([300.0, 900.0], is_open=False)
    assert axis.unit is None
    assert axis.end == pytest.approx(954)
    assert axis.place(477) == pytest.approx(0.5)
    assert labels(axis, 4) == ["0:00", "5:00", "10:00", "15:00"]
    assert labels(axis, 2) == ["0:00", "10:00"]
    assert labels(axis, 10) == ["0:00", "2:00", "4:00", "6:00", "8:00", "10:00", "12:00", "14:00"]


def test_seconds_beside_a_day_need_a_logarithmic_scale() -> None:
    axis = axis_of([5.0, 30.0, 30.0, 60.0, float(DAY), DAY + 30.0], is_open=False)
    assert axis.unit == 30
    assert axis.place(30) - axis.place(5) > 0.05
    assert labels(axis, 6) == ["0:00", "2:00", "15:00", "1:00:00", "6:00:00", "1d"]
    assert labels(axis, 1) == ["0:00"]


def test_one_pod_of_seconds_among_many_of_hours_is_no_reason_for_another_scale() -> None:
    assert axis_of([5.0, *[3600.0 * n for n in range(1, 9)]], is_open=False).unit is None


def test_what_goes_on_for_ever_has_room_behind_the_last_instant() -> None:
    assert axis_of([900.0], is_open=True).end > axis_of([900.0], is_open=False).end


def test_without_any_instant_there_is_a_minute() -> None:
    assert axis_of([0.0, 0.3], is_open=True) == Axis(60.0)


def test_what_is_beyond_an_end_lies_at_that_end() -> None:
    assert (Axis(60.0).place(-5), Axis(60.0).place(99)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("at", "label"), [(0, "0:00"), (90, "1:30"), (3600, "1:00:00"), (2 * DAY, "2d"), (DAY + 6 * 3600, "1d 6h")]
)
def test_ticks_are_written_as_times_are_everywhere_but_for_days(at: float, label: str) -> None:
    assert tick_label(at) == label


@given(INSTANTS, st.booleans(), st.integers(1, 30))
def test_places_grow_with_time_and_ticks_keep_their_distance(instants: list[float], is_open: bool, most: int) -> None:
    axis = axis_of(instants, is_open=is_open)
    places = [axis.place(at) for at in sorted(instants)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    ticks = axis.ticks(most)
    assert ticks[0].at == 0
    assert len(ticks) <= most + 1
    for one, other in pairwise(ticks):
        assert axis.place(other.at) - axis.place(one.at) >= 0.9 / (most + 1)
