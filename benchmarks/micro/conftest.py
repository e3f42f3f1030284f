"""How each benchmark is measured, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console

import gracectl
from benchmarks.micro.budgets import BUDGETS
from benchmarks.micro.result import COUNT, Result, growth_of, is_missed, result_of, table_of

RESULTS = pytest.StashKey[list[Result]]()
FAILURES = pytest.StashKey[list[str]]()
ROUNDS = 15


class Measure(Protocol):
    """Measures `work`, which does `count` things, several times, each time after `prepare`; `name` is for people."""

    def __call__(
        self, name: str, count: int, work: Callable[[], object], prepare: Callable[[], object] = ..., rounds: int = ...
    ) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """As that of `benchmarks/run.py`."""
    parser.addoption("--save", type=Path, metavar="FILE", help="Write what was found there, for make bench-page.")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no results."""
    no_results: list[Result] = []
    no_failures: list[str] = []
    config.stash[RESULTS], config.stash[FAILURES] = no_results, no_failures


@pytest.fixture
def measure(benchmark: BenchmarkFixture, pytestconfig: pytest.Config) -> Measure:
    """See Measure."""

    def measured(
        name: str,
        count: int,
        work: Callable[[], object],
        prepare: Callable[[], object] = lambda: None,
        rounds: int = ROUNDS,
    ) -> None:
        def set_up() -> None:
            prepare()

        assert name in BUDGETS, f"{name}: to be entered into BUDGETS, with None if it has no budget"
        benchmark.name = name
        benchmark.extra_info[COUNT] = count
        # pytest-benchmark says no types of it.
        benchmark.pedantic(work, setup=set_up, rounds=rounds, warmup_rounds=2)  # type: ignore[no-untyped-call]
        if benchmark.stats is not None:  # None with --benchmark-disable
            found = benchmark.stats.stats
            pytestconfig.stash[RESULTS].append(result_of(name, count, found.median, found.min))

    return measured


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector, call: pytest.CallInfo[Any], report: pytest.TestReport | pytest.CollectReport
) -> None:
    """Note what could not be measured: a package of another time may lack what is asked of it."""
    if call.excinfo is not None:
        error = call.excinfo.value.__cause__ or call.excinfo.value
        reason = str(error).strip().splitlines()[-1:] or [""]
        node.config.stash[FAILURES].append(f"{node.name}: {type(error).__name__}: {reason[0]}")


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """The report shows that the right package was measured, and what could not be."""
    output_json["gracectl"] = gracectl.__file__
    output_json["failures"] = config.stash[FAILURES]


def pytest_terminal_summary(config: pytest.Config) -> None:
    """The table."""
    if results := config.stash[RESULTS]:
        console = Console(width=100)
        console.print(table_of(results))
        for growth in growth_of(results):
            console.print(growth.line, markup=False, highlight=False, soft_wrap=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """As `make bench`: exit code 1 when a budget is missed, or something grows more than it may."""
    results: list[Result] = session.config.stash[RESULTS]
    if results and (file := session.config.getoption("save")):
        # Only here: it stands on much of gracectl, and a package of another time may lack what it needs.
        from benchmarks.micro.maintenance import keep

        keep(results, file)
    is_any_missed = any(map(is_missed, results)) or any(growth.is_missed for growth in growth_of(results))
    if exitstatus == pytest.ExitCode.OK and is_any_missed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
