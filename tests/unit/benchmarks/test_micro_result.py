"""What a run of the micro-benchmarks has found: read from its report, held against budgets, shown as a table."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.micro.budgets import BUDGETS as OURS
from benchmarks.micro.budgets import GROWTH, YARDSTICK
from benchmarks.micro.result import Result, Unreadable, growth_of, is_missed, read_report, table_of

FAST, SLOW, FREE = Result("fast", 10.0, 9.0), Result("slow", 30.0, 20.0), Result("free", 5.0, 5.0)
STICK = Result(YARDSTICK, 0.5, 0.4)
BUDGETS = {YARDSTICK: None, "slow": 25.0, "fast": 25.0, "free": None}


def lines_of(table: Table) -> list[str]:
    """The rows as they are printed, cells parted by bars."""
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line for line in console.file.getvalue().splitlines() if line.startswith("│")]


def a_report(**changes: Any) -> bytes:
    """One benchmark of 1,000 things a round, as pytest-benchmark writes it (with more fields, which are not read)."""
    stats = {"median": 0.02, "min": 0.015, "mean": 0.03, "rounds": 15}
    benchmark = {"name": "fast", "fullname": "test_fast", "stats": stats, "extra_info": {"count": 1000}}
    whole = {"gracectl": "/x/gracectl/__init__.py", "failures": ["test_a: x"], "benchmarks": [benchmark]}
    return msgspec.json.encode(whole | changes)


def test_a_report_tells_what_one_thing_costs_in_microseconds() -> None:
    report = read_report(a_report(), "it")
    (result,) = report.results.values()
    assert (result.name, round(result.micros, 6), round(result.least, 6)) == ("fast", 20.0, 15.0)
    assert report.gracectl == "/x/gracectl/__init__.py"
    assert report.failures == ("test_a: x",)


@pytest.mark.parametrize("text", [b"", b"[]", a_report(benchmarks=[{"name": "fast"}]), a_report(gracectl=None)])
def test_what_is_no_report_is_called_by_its_name(text: bytes) -> None:
    with pytest.raises(Unreadable, match=r"^report-1.json is no report of these benchmarks: "):
        read_report(text, "report-1.json")


@pytest.mark.parametrize(("micros", "missed"), [(24.9, False), (25.0, False), (25.1, True)])
def test_a_budget_is_missed_by_what_costs_more(micros: float, missed: bool) -> None:
    assert is_missed(Result("slow", micros, 1.0), BUDGETS) is missed


def test_the_table_says_of_each_what_it_costs_and_whether_its_budget_is_met() -> None:
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines_of(_table())]
    assert rows == [
        [YARDSTICK, "0.50", "1.00", "", ""], ["slow", "30.00", "60.00", "≤ 25", "MISSED"],
        ["fast", "10.00", "20.00", "≤ 25", "met"], ["free", "5.00", "10.00", "", ""], ["new", "1.00", "2.00", "", ""],
    ]  # fmt: skip


def _table() -> Table:
    """Measured in another order than that of the budgets."""
    return table_of([Result("new", 1.0, 1.0), FREE, FAST, SLOW, STICK], BUDGETS)


@pytest.mark.parametrize(("limit", "verdict"), [(2.0, "MISSED"), (2.5, "met")])
def test_growth_is_held_against_a_limit_by_the_least_of_both(limit: float, verdict: str) -> None:
    (growth,) = growth_of([SLOW, FAST], {"slow": ("fast", limit), "free": ("fast", 1.0)})
    assert growth.line == f"slow: 2.22 × fast (≤ {limit:g}): {verdict}"
    assert growth.is_missed is (verdict == "MISSED")


def test_limits_of_growth_name_benchmarks_that_there_are() -> None:
    assert {*GROWTH, *(small for small, _ in GROWTH.values())} <= OURS.keys()
