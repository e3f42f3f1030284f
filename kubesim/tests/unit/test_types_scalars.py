"""Values that Go reads and writes in a way of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kubesim.types.scalars import (
    base64_text,
    duration_text,
    quantity_text,
    time_text,
)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("0", "0"),
        ("0.0m", "0"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        (0.5, "500m"),
        (3, "3"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("12e6", "12e6"),
        ("1E3", "1e3"),
        ("0.1n", "1n"),
        ("-250m", "-250m"),
        ("+5", "5"),
        (".5", "500m"),
        ("5.", "5"),
        ("1G", "1G"),
        (None, "0"),
    ],
)
def test_a_quantity_in_its_canonical_form(given: Any, canonical: str) -> None:
    assert quantity_text(given) == canonical


@given(some.integers(0, 10**9), some.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_the_canonical_form_is_its_own(number: int, suffix: str) -> None:
    once = quantity_text(f"{number}{suffix}")
    assert quantity_text(once) == once


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ("yesterday", 'as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"'),
        ("2026-01-01", 'as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T"'),
        ("2026-01-01T00:00:00", 'as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00"'),
        ("2026-13-01T00:00:00Z", ": month out of range"),
        ("2026-02-30T00:00:00Z", ": day out of range"),
        ("2026-02-03T24:00:00Z", ": hour out of range"),
        ("2026-02-03T00:60:00Z", ": minute out of range"),
        ("2026-02-03T00:00:60Z", ": second out of range"),
        ("2026-02-03T00:00:00ZZ", ': extra text: "Z"'),
    ],
)
def test_what_is_no_time(wrong: str, fault: str) -> None:
    with pytest.raises(ValueError, match="parsing time") as refused:
        time_text(wrong)
    assert str(refused.value).removeprefix(f'parsing time "{wrong}"').lstrip() == fault.lstrip()


def test_a_duration_in_gos_own_words() -> None:
    assert duration_text("90s") == "1m30s"
    with pytest.raises(ValueError, match='time: invalid duration "soon"'):
        duration_text("soon")


@pytest.mark.parametrize(("read", "wanted"), [(time_text, "string"), (base64_text, r"\[\]uint8")])
def test_another_type_is_told_by_the_right_one(read: Any, wanted: str) -> None:
    with pytest.raises(TypeError, match=wanted):
        read(5)
