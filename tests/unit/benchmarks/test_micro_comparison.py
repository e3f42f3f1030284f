"""Two versions compared: ratios of runs that were neighbours, what counts as slower, and what cannot be compared."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.micro.budgets import BUDGETS, THRESHOLD, THRESHOLDS, YARDSTICK
from benchmarks.micro.comparison import Comparison, Mark, Row, compare, lost_here, table_of
from benchmarks.micro.result import Report, Result


def a_report(least: dict[str, float] | None = None, **micros: float) -> Report:
    """Of benchmarks by name; what is not in `least` has cost the same in every round."""
    least = least or {}
    return Report("there", {name: Result(name, each, least.get(name, each)) for name, each in micros.items()})


def of_plan(base: list[float], here: list[float], threshold: float = 1.15) -> Comparison:
    """One benchmark in so many rounds."""
    pairs = [(a_report(plan=before), a_report(plan=now)) for before, now in zip(base, here, strict=True)]
    return compare("main", pairs, threshold=threshold)


def only_row(comparison: Comparison) -> Row:
    (row,) = comparison.rows
    return row


def test_a_ratio_is_the_median_of_the_rounds_and_comes_with_its_spread() -> None:
    row = only_row(of_plan([10.0, 20.0, 10.0], [11.0, 20.0, 30.0]))
    assert row.ratio == pytest.approx(1.1)
    assert (row.lowest, row.highest) == (1.0, 3.0)
    assert (row.base, row.here) == (10.0, 20.0)


@pytest.mark.parametrize(("now", "mark", "exit_code"), [
    (12.0, Mark.SLOWER, 1), (11.5, Mark.NONE, 0), (10.0, Mark.NONE, 0), (8.7, Mark.NONE, 0), (8.6, Mark.FASTER, 0),
])  # fmt: skip
def test_beyond_the_threshold_it_is_slower_or_faster(now: float, mark: Mark, exit_code: int) -> None:
    comparison = of_plan([10.0] * 3, [now] * 3)
    assert only_row(comparison).mark is mark
    assert comparison.exit_code == exit_code


def test_each_part_has_a_threshold_of_its_own_unless_one_is_given() -> None:
    scatters = "timer wheel: arm"
    pairs = [(a_report(None, **{scatters: 1.0, "plan": 1.0}), a_report(None, **{scatters: 1.25, "plan": 1.25}))]
    assert {row.name: row.mark for row in compare("main", pairs).rows} == {scatters: Mark.NONE, "plan": Mark.SLOWER}
    assert {row.mark for row in compare("main", pairs, threshold=1.2).rows} == {Mark.SLOWER}


def test_thresholds_are_of_parts_that_there_are() -> None:
    assert set(THRESHOLDS) <= set(BUDGETS)
    assert all(threshold > THRESHOLD for threshold in THRESHOLDS.values())


def test_rounds_that_were_disturbed_make_nothing_slower_if_the_best_ones_are_equal() -> None:
    assert only_row(of_plan([10.0, 10.0, 10.0], [15.0, 15.0, 10.0])).mark is Mark.NONE
    assert only_row(of_plan([15.0, 15.0, 10.0], [10.0, 10.0, 10.0])).mark is Mark.NONE


def test_good_moments_of_both_that_are_alike_make_nothing_slower() -> None:
    pairs = [(a_report({"plan": 6.0}, plan=7.0), a_report({"plan": 6.0}, plan=10.0))]
    assert only_row(compare("main", pairs)).mark is Mark.NONE


def test_the_yardstick_is_never_slower_but_raises_doubts() -> None:
    report = compare("main", [(a_report(yardstick=1.0, plan=1.0), a_report(yardstick=1.5, plan=1.0))])
    assert [row.mark for row in report.rows] == [Mark.NONE, Mark.NONE]
    assert report.exit_code == 0
    (note,) = report.notes
    assert "differs as well (× 1.50)" in note


def test_what_base_cannot_run_is_said_with_the_reason_and_is_not_slower() -> None:
    pairs = [(a_report(plan=1.0), a_report(plan=1.0, lane=2.0))] * 2
    comparison = compare("v1", pairs, why_missing=["test_lanes.py: ImportError: no Lane"])
    assert comparison.rows[1] == Row("lane", 2.0, Mark.NOT_IN_BASE)
    assert comparison.notes == ("not in BASE: test_lanes.py: ImportError: no Lane",)
    assert comparison.exit_code == 0


def test_what_base_ran_in_one_round_only_is_not_compared() -> None:
    pairs = [
        (a_report(plan=1.0, lane=1.0), a_report(plan=1.0, lane=2.0)),
        (a_report(plan=1.0), a_report(plan=1.0, lane=2.0)),
    ]
    assert compare("v1", pairs).rows[1].mark is Mark.NOT_IN_BASE


def test_what_fails_here_and_runs_in_base_is_found() -> None:
    whole = a_report(plan=1.0, lane=1.0)
    assert lost_here([(whole, whole), (whole, a_report(plan=1.0))]) == {"lane": 1}
    assert lost_here([(a_report(plan=1.0), whole)]) == {}


def test_the_table_shows_both_the_ratio_its_spread_and_the_mark() -> None:
    pairs = [
        (a_report(plan=10.0, yardstick=1.0), a_report(plan=now, lane=3.0, yardstick=1.0)) for now in (12.0, 13.0, 14.0)
    ]
    console = Console(file=io.StringIO(), width=120)
    console.print(table_of(compare("v1", pairs)))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]
    assert rows == [
        ["plan", "10.00", "13.00", "× 1.30", "1.20–1.40", "1.15", "SLOWER"],
        ["lane", "", "3.00", "", "", "1.15", "not in BASE"],
        [YARDSTICK, "1.00", "1.00", "× 1.00", "1.00–1.00", "1.15", ""],
    ]
    assert "BASE is v1; rounds: 3 of each, in turns; slower: more than its limit" in " ".join(text.split())
