"""Every answer that Go 1.19's and Kubernetes 1.24's own libraries gave (kubesim/tests/oracles) is ours too."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gracectl.model.budget import scaled_value
from gracectl.model.durations import format_duration, parse_duration
from gracectl.model.node import Taint, tolerates
from gracectl.model.pod import Toleration
from gracectl.model.selectors import parse_selector, read_selector, selects
from gracectl.policy.budget_index import BudgetIndex, Names

Row = dict[str, Any]
REFUSED = "refused"
ORACLES = Path(__file__).parents[3] / "kubesim/tests/oracles"


def differences(name: str, ours: Callable[[Row], object], theirs: Callable[[Row], object]) -> list[str]:
    """Each row whose answer is another one here; ValueError counts as the answer REFUSED."""
    rows: list[Row] = json.loads((ORACLES / name).read_text(encoding="utf-8"))
    assert len(rows) > 100
    texts = []
    for row in rows:
        try:
            answer = ours(row)
        except ValueError:
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


def test_an_index_finds_the_budgets_that_select_as_in_kubernetes() -> None:
    index = BudgetIndex()

    def ours(row: Row) -> bool:
        index.put("web", read_selector(row["selector"]))
        return bool(run_to_end(index.search(row["labels"])))

    assert not differences("label-selectors.json", ours, lambda row: REFUSED if row.get("error") else row["matches"])


@pytest.mark.parametrize(("few", "most_values"), [(64, 5_000), (0, 1), (10_000, 5_000)])
def test_an_index_of_all_selectors_finds_two(few: int, most_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gracectl.policy.budget_index._FEW", few)
    monkeypatch.setattr("gracectl.policy.budget_index.MOST_VALUES", most_values)
    rows: list[Row] = json.loads((ORACLES / "label-selectors.json").read_text(encoding="utf-8"))
    read = {f"{number:04}": read_selector(row["selector"]) for number, row in enumerate(rows) if not row.get("error")}
    index = BudgetIndex()
    for name in sorted(read, key=lambda name: name[::-1]):
        index.put(name, read[name])
    for name in sorted(read)[::3]:  # some go, so that others are the first two
        index.put(name, None)
        del read[name]
    for row in rows:
        expected = islice((name for name, selector in read.items() if selects(selector, row["labels"])), 2)
        assert run_to_end(index.search(row["labels"])) == tuple(expected)


def run_to_end(search: Generator[int, None, Names]) -> Names:
    while True:
        try:
            next(search)
        except StopIteration as end:
            names: Names = end.value
            return names


def test_selector_texts_match_as_in_kubernetes() -> None:
    assert not differences(
        "selector-strings.json",
        lambda row: parse_selector(row["selector"]).matches(row["labels"]),
        lambda row: REFUSED if row.get("error") else row["matches"],
    )


def test_tolerations_tolerate_as_in_kubernetes() -> None:
    assert not differences(
        "tolerations.json",
        lambda row: tolerates([Toleration(**entry) for entry in row["tolerations"] or ()], Taint(**row["taint"])),
        lambda row: row["tolerates"],
    )
