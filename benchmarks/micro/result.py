"""What a run of the micro-benchmarks has found, as its table shows it and as other programs read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.table import Table

from benchmarks.micro.budgets import BUDGETS, GROWTH, YARDSTICK

COUNT: Final = "count"
"""The entry of a benchmark's extra_info that says how many things one round does."""


class Unreadable(Exception):
    """A file that is no report of pytest-benchmark; says which, and what is wrong with it."""


class Result(msgspec.Struct, frozen=True):
    """What one thing of its kind costs: CPU microseconds, the median of all rounds and the least."""

    name: str
    micros: float
    least: float


class Report(msgspec.Struct, frozen=True):
    """All results of one run; `gracectl`: the file of the package that was measured; `failures`: which benchmarks could
    not run, and why."""

    gracectl: str
    results: Mapping[str, Result]
    failures: tuple[str, ...] = ()


def result_of(name: str, count: int, median: float, least: float) -> Result:
    """Of rounds that each do `count` things; `median` and `least` are seconds of a round."""
    return Result(name, 1e6 * median / count, 1e6 * least / count)


def times_yardstick(result: Result, results: Iterable[Result]) -> float | None:
    """How many times as much as the yardstick of the same run; None if that was not measured."""
    found = [each.micros for each in results if each.name == YARDSTICK]
    return result.micros / found[0] if found else None


def is_missed(result: Result, budgets: Mapping[str, float | None] = BUDGETS) -> bool:
    """Whether it costs more than its budget; without one nothing can be missed."""
    budget = budgets.get(result.name)
    return budget is not None and result.micros > budget


class Growth(msgspec.Struct, frozen=True):
    """How many times as much as `small` `large` costs in the same run, by the least of each; and may cost."""

    large: str
    small: str
    times: float
    limit: float

    @property
    def is_missed(self) -> bool:
        """Whether it costs more than it may."""
        return self.times > self.limit

    @property
    def line(self) -> str:
        """For people."""
        verdict = "MISSED" if self.is_missed else "met"
        return f"{self.large}: {self.times:.2f} × {self.small} (≤ {self.limit:g}): {verdict}"


def growth_of(results: Iterable[Result], limits: Mapping[str, tuple[str, float]] = GROWTH) -> list[Growth]:
    """Growth of those of which both were measured."""
    least = {each.name: each.least for each in results}
    return [
        Growth(large, small, least[large] / least[small], limit)
        for large, (small, limit) in limits.items()
        if large in least and small in least
    ]


def table_of(results: Sequence[Result], budgets: Mapping[str, float | None] = BUDGETS) -> Table:
    """What people see at the end of a run."""
    table = Table(caption="CPU time of one, median of all rounds; the budgets are for a machine of today")
    table.add_column("what", overflow="fold")
    for heading in ("µs each", "× yardstick", "budget"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    places = {name: place for place, name in enumerate(budgets)}
    for result in sorted(results, key=lambda each: places.get(each.name, len(places))):
        times, budget = times_yardstick(result, results), budgets.get(result.name)
        table.add_row(
            result.name,
            f"{result.micros:.2f}",
            "" if times is None else f"{times:.2f}",
            "" if budget is None else f"≤ {budget:g}",
            "" if budget is None else "MISSED" if is_missed(result, budgets) else "met",
        )
    return table


class _Stats(msgspec.Struct):
    median: float
    min: float


class _Info(msgspec.Struct):
    count: int


class _Benchmark(msgspec.Struct):
    name: str
    stats: _Stats
    extra_info: _Info


class _File(msgspec.Struct):
    gracectl: str
    failures: tuple[str, ...]
    benchmarks: list[_Benchmark]


def read_report(text: bytes, called: str) -> Report:
    """Read what --benchmark-json has written; `called` says of what, in messages. Raises Unreadable."""
    try:
        read = msgspec.json.decode(text, type=_File)
    except msgspec.DecodeError as error:
        raise Unreadable(f"{called} is no report of these benchmarks: {error}") from error
    results = (
        result_of(each.name, each.extra_info.count, each.stats.median, each.stats.min) for each in read.benchmarks
    )
    return Report(read.gracectl, {result.name: result for result in results}, read.failures)
