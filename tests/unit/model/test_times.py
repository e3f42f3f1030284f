"""RFC 3339 instants, both ways."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.model.times import EARLIEST, LATEST, format_micro_time, format_time, parse_time

NEW_YEAR = 1_767_225_600.0
# From the year 1 to the year 9999, in which RFC 3339 is at home.
SECONDS = st.integers(min_value=-62_135_596_800, max_value=253_402_300_799)
# To the microsecond a float holds instants until 2106; from then on two of them can be one float.
MICROSECONDS = st.integers(min_value=0, max_value=2**32 * 1_000_000)


@given(SECONDS)
def test_whole_seconds_are_read_back(seconds: int) -> None:
    text = format_time(seconds)
    assert len(text) == len("2026-01-01T00:00:00Z")
    assert parse_time(text) == seconds


@given(MICROSECONDS)
def test_microseconds_are_read_back(microseconds: int) -> None:
    seconds = microseconds / 1_000_000
    assert parse_time(format_micro_time(seconds)) == seconds


def test_parts_of_a_second_are_cut_off_not_rounded_up() -> None:
    assert format_time(NEW_YEAR + 0.9) == "2026-01-01T00:00:00Z"
    assert format_time(-0.5) == "1969-12-31T23:59:59Z"


def test_a_micro_time_always_has_its_six_digits() -> None:
    assert format_micro_time(NEW_YEAR) == "2026-01-01T00:00:00.000000Z"
    assert format_micro_time(NEW_YEAR + 0.25) == "2026-01-01T00:00:00.250000Z"


@pytest.mark.parametrize(("text", "seconds"), [
    ("2026-01-01T00:00:00Z", NEW_YEAR), ("2026-01-01T02:00:00+02:00", NEW_YEAR),
    ("2025-12-31T19:30:00-04:30", NEW_YEAR), ("2026-01-01T00:00:00.5Z", NEW_YEAR + 0.5),
    ("2026-01-01T00:00:00.123456789Z", NEW_YEAR + 0.123456),
    ("1970-01-01T00:00:00Z", 0.0), ("0001-01-01T00:00:00Z", -62_135_596_800.0),
])  # fmt: skip
def test_zones_and_fractions(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", [
    "", "soon", "2026-01-01",
    "2026-01-01T00:00:00",  # no zone
    "2026-01-01T00:00Z", "2026-01-01 00:00:00Z", "2026-01-01t00:00:00z", "20260101T000000Z", "2026-W01-1T00:00:00Z",
    "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:60Z", "2026-01-01T00:00:00.Z",
    "2026-01-01T00:00:00Z\n", "٢٠٢٦-01-01T00:00:00Z",
])  # fmt: skip
def test_what_is_no_rfc_3339_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no RFC 3339 time"):
        parse_time(text)


@pytest.mark.parametrize(
    "text", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-23:59", "10000-01-01T00:00:00Z"]
)
def test_a_text_that_asks_for_an_instant_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no RFC 3339 time"):
        parse_time(text)


@given(
    st.from_regex(
        r"\A[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,12})?(Z|[+-][0-2][0-9]:[0-5][0-9])\Z"
    )
    | st.sampled_from(["9999-12-31T23:59:59.999999999Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"])
)
def test_every_time_that_is_read_can_be_written_and_reads_the_same(text: str) -> None:
    try:
        seconds = parse_time(text)
    except ValueError:
        return
    assert EARLIEST <= seconds <= LATEST
    assert parse_time(format_time(seconds)) == math.floor(seconds)
    assert abs(parse_time(format_micro_time(seconds)) - seconds) < 1e-4


@pytest.mark.parametrize(("seconds", "text"), [
    (1e12, "9999-12-31T23:59:59Z"), (1e300, "9999-12-31T23:59:59Z"), (math.inf, "9999-12-31T23:59:59Z"),
    (-1e12, "0001-01-01T00:00:00Z"), (-math.inf, "0001-01-01T00:00:00Z"),
])  # fmt: skip
def test_an_instant_out_of_range_is_written_as_the_end_of_the_range(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
    assert format_micro_time(seconds) == text.replace("Z", ".000000Z")
