"""Durations beyond the oracle's rows: the whole range, any text, and words that people understand."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gracectl.model.durations import format_duration, parse_duration

INT64 = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@given(INT64)
@example(-(1 << 63))
@example((1 << 63) - 1)
@example(0)
def test_what_is_written_is_read_back(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(("text", "words"), [
    ("", "there is no number in it"), ("-", "there is no number in it"),
    ("10", "a number has no unit (ns, us, ms, s, m, h)"),
    ("1h30", "a number has no unit (ns, us, ms, s, m, h)"),
    ("1d", "there is no unit 'd' (ns, us, ms, s, m, h)"),
    ("forever", "a number is missing before 'forever'"),
    (".", "a dot has no digits"),
    ("300000000h", "it is longer than the 292 years that a duration can hold"),
])  # fmt: skip
def test_a_refusal_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="is no duration") as refusal:
        parse_duration(text)
    assert str(refusal.value) == f"{text!r} is no duration: {words}"


def test_a_huge_annotation_is_neither_slow_nor_repeated_in_the_refusal() -> None:
    assert parse_duration("1ns" * 80_000) == 80_000
    with pytest.raises(ValueError, match="292 years") as refusal:
        parse_duration("9" * 250_000 + "h")
    assert len(str(refusal.value)) < 200
