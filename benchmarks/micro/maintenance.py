"""What a run of the micro-benchmarks has found, kept as the outcomes of scenarios are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.micro.budgets import BUDGETS
from benchmarks.micro.result import Result
from benchmarks.report import Figure, Outcome, save


def keep(results: Sequence[Result], file: Path, budgets: Mapping[str, float | None] = BUDGETS) -> None:
    """Write them to `file`."""
    figures = tuple(Figure(each.name, each.micros, " µs", budgets.get(each.name)) for each in results)
    save(
        [Outcome(scenario="micro", about="CPU time of one, median of all rounds", figures=figures, parameters={})], file
    )
