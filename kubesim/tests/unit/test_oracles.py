"""Every answer that Go 1.19's and Kubernetes 1.24's own libraries gave (tests/oracles) is ours too."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubesim.controllers.objects import is_tolerated
from kubesim.server.selectors import label_query, read_selector, selects
from kubesim.server.status import Refusal
from kubesim.values import (
    EARLIEST,
    LATEST,
    format_duration,
    format_micro_time,
    format_time,
    parse_duration,
    parse_time,
    scaled_value,
)

Row = dict[str, Any]
REFUSED = "refused"
NEW_YEAR = 1_767_225_600.0


def differences(name: str, ours: Callable[[Row], object], theirs: Callable[[Row], object]) -> list[str]:
    """Each row whose answer is another one here; a refusal counts as the answer REFUSED."""
    rows: list[Row] = json.loads((Path(__file__).parents[1] / "oracles" / name).read_text(encoding="utf-8"))
    assert len(rows) > 100
    texts = []
    for row in rows:
        try:
            answer = ours(row)
        except (ValueError, Refusal):
            answer = REFUSED
        if answer != theirs(row):
            texts.append(f"{answer!r} instead of {theirs(row)!r}: {row}")
    return texts


def test_durations_are_parsed_as_go_parses_them() -> None:
    assert not differences(
        "go-durations.json",
        lambda row: parse_duration(row["in"]),
        lambda row: REFUSED if row["ns"] is None else int(row["ns"]),
    )


def test_durations_are_written_as_go_writes_them() -> None:
    assert not differences(
        "go-durations.json",
        lambda row: None if row["ns"] is None else format_duration(int(row["ns"])),
        lambda row: row.get("format"),
    )


def test_int_or_percent_scales_as_in_kubernetes() -> None:
    assert not differences(
        "int-or-percent.json",
        lambda row: scaled_value(row["value"], row["total"], round_up=row["roundUp"]),
        lambda row: REFUSED if row.get("error") else row["scaled"],
    )


def test_label_selectors_match_as_in_kubernetes() -> None:
    assert not differences(
        "label-selectors.json",
        lambda row: selects(read_selector(row["selector"]), row["labels"]),
        lambda row: REFUSED if row.get("error") else row["matches"],
    )


def test_selector_texts_match_as_in_kubernetes() -> None:
    assert not differences(
        "selector-strings.json",
        lambda row: label_query(row["selector"]).matches(row["labels"]),
        lambda row: REFUSED if row.get("error") else row["matches"],
    )


def test_tolerations_tolerate_as_in_kubernetes() -> None:
    assert not differences(
        "tolerations.json",
        lambda row: is_tolerated(row["taint"], row["tolerations"] or []),
        lambda row: row["tolerates"],
    )


@pytest.mark.parametrize("text", ["", "-", "+", ".", "1", "1h30", "1d", "h", "9223372036854775808ns", "9" * 5000 + "h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize("nanoseconds", [0, 1, -1, 999, 1_000, 999_999, 10**9 - 1, 3_600 * 10**9, -(2**63), 2**63 - 1])
def test_every_duration_reads_as_it_was_written(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:00Z", NEW_YEAR),
        ("2026-01-01T02:00:00+02:00", NEW_YEAR),
        ("2026-01-01T00:00:00.123456789Z", NEW_YEAR + 0.123456),
        ("0001-01-01T00:00:00Z", EARLIEST),
    ],
)
def test_times_have_zones_and_fractions(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "2026-01-01", "2026-01-01T00:00:00", "2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no RFC 3339 time"):
        parse_time(text)


def test_times_are_written_within_their_range() -> None:
    assert format_time(NEW_YEAR + 0.9) == "2026-01-01T00:00:00Z"
    assert format_micro_time(NEW_YEAR + 0.25) == "2026-01-01T00:00:00.250000Z"
    assert format_time(math.inf) == format_time(LATEST) == "9999-12-31T23:59:59Z"
    assert format_time(-math.inf) == "0001-01-01T00:00:00Z"
