"""Two versions of gracectl, by what the same benchmarks have found of them in turns: which has become slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import Final

import msgspec
from rich.table import Table

from benchmarks.micro.budgets import THRESHOLD, THRESHOLDS, YARDSTICK
from benchmarks.micro.result import Report

CANNOT_SAY: Final = 2


class Mark(StrEnum):
    """What is to be said of a benchmark; nothing of most."""

    NONE = ""
    SLOWER = "SLOWER"
    FASTER = "faster"
    NOT_IN_BASE = "not in BASE"


class Row(msgspec.Struct, frozen=True):
    """One benchmark. `base` and `here`: CPU microseconds, None where it could not be measured; `ratio`: here as a
    multiple of base, the median over the rounds, which lie between `lowest` and `highest`; slower is what costs more
    than `threshold` times as much."""

    name: str
    here: float
    mark: Mark = Mark.NONE
    base: float | None = None
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None
    threshold: float = THRESHOLD


class Comparison(msgspec.Struct, frozen=True):
    """All of them. `base`: the revision that was compared with; `notes`: what else people should know."""

    base: str
    rounds: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: nothing is slower, 1: something is, CANNOT_SAY: there is nothing that both can do."""
        if all(row.ratio is None or row.name == YARDSTICK for row in self.rows):
            return CANNOT_SAY
        return int(any(row.mark is Mark.SLOWER for row in self.rows))


def compare(
    base: str,
    pairs: Sequence[tuple[Report, Report]],
    *,
    threshold: float | None = None,
    why_missing: Sequence[str] = (),
) -> Comparison:
    """What `pairs` (of each round what was found of BASE, and here) say. A ratio is one of two runs that were
    neighbours in time.

    `threshold`: of all, instead of each its own; `why_missing`: what pytest said of benchmarks that BASE cannot run.
    """
    names = [name for name in pairs[0][1].results if all(name in here.results for _, here in pairs)]
    rows = tuple(_row(name, pairs, threshold or THRESHOLDS.get(name, THRESHOLD)) for name in names)
    notes = tuple(f"not in BASE: {reason}" for reason in why_missing)
    return Comparison(base, len(pairs), rows, (*notes, *_doubts(rows)))


def _row(name: str, pairs: Sequence[tuple[Report, Report]], threshold: float) -> Row:
    ours = [here.results[name] for _, here in pairs]
    theirs = [base.results[name] for base, _ in pairs if name in base.results]
    micros = median(each.micros for each in ours)
    if len(theirs) < len(ours):
        return Row(name, micros, Mark.NOT_IN_BASE, threshold=threshold)
    ratios = [our.micros / their.micros for our, their in zip(ours, theirs, strict=True)]
    ratio = median(ratios)
    of_least = min(each.least for each in ours) / min(each.least for each in theirs)
    mark = Mark.NONE if name == YARDSTICK else _mark((ratio, of_least), threshold)
    before = median(each.micros for each in theirs)
    return Row(name, micros, mark, before, ratio, min(ratios), max(ratios), threshold)


def _mark(ratios: Sequence[float], threshold: float) -> Mark:
    """By the median of neighbours and by the least of all that was measured: other work on the machine may
    spoil most of one side, and its absence for a moment flatter it, but seldom do both agree."""
    if min(ratios) > threshold:
        return Mark.SLOWER
    return Mark.FASTER if max(ratios) < 1 / threshold else Mark.NONE


def _doubts(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.name == YARDSTICK and row.ratio is not None and not 1 / row.threshold <= row.ratio <= row.threshold:
            yield (
                f"the yardstick, in which nothing is of gracectl, differs as well (× {row.ratio:.2f}): others have "
                "used the machine meanwhile; compare again, with more rounds"
            )


def table_of(found: Comparison) -> Table:
    """For people."""
    caption = f"CPU time; BASE is {found.base}; rounds: {found.rounds} of each, in turns; slower: more than its limit"
    table = Table(caption=caption)
    table.add_column("what", overflow="fold")
    for heading in ("µs in BASE", "µs here", "here / BASE", "lowest–highest", "limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in found.rows:
        table.add_row(
            row.name,
            _micros(row.base),
            _micros(row.here),
            _ratio(row.ratio),
            _spread(row),
            f"{row.threshold:g}",
            row.mark,
        )
    return table


def _micros(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"× {value:.2f}"


def _spread(row: Row) -> str:
    return "" if row.lowest is None or row.highest is None else f"{row.lowest:.2f}–{row.highest:.2f}"


def lost_here(pairs: Sequence[tuple[Report, Report]]) -> Mapping[str, int]:
    """Benchmarks that BASE runs and that fail here, and in how many rounds: nothing can be said before they run."""
    lost: dict[str, int] = {}
    for base, here in pairs:
        for name in base.results.keys() - here.results.keys():
            lost[name] = lost.get(name, 0) + 1
    return lost
