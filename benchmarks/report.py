"""A benchmark's outcome: figures, and the budgets of the design that they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table


class Figure(msgspec.Struct, frozen=True):
    """One measured number; `at_most` or `at_least` is the budget, None where there is none."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps its budget."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    @property
    def budget(self) -> str:
        """The budget in words, "" if there is none."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}{self.unit}"
        return f"≥ {self.at_least:g}{self.unit}" if self.at_least is not None else ""


class Outcome(msgspec.Struct, frozen=True):
    """What one scenario has measured, with everything needed to repeat it."""

    scenario: str
    about: str
    figures: tuple[Figure, ...]
    parameters: dict[str, Any]

    @property
    def is_met(self) -> bool:
        """Whether every figure keeps its budget."""
        return all(figure.is_met for figure in self.figures)


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print the outcomes as tables for people."""
    for outcome in outcomes:
        given = ", ".join(f"{name} {value}" for name, value in outcome.parameters.items())
        table = Table(
            title=f"{outcome.scenario}: {outcome.about}", caption=given, title_justify="left", width=console.width
        )
        table.add_column("figure")
        table.add_column("measured", justify="right")
        table.add_column("budget", justify="right")
        table.add_column("")
        for figure in outcome.figures:
            verdict = "" if not figure.budget else "met" if figure.is_met else "MISSED"
            table.add_row(figure.name, f"{_rounded(figure.value)}{figure.unit}", figure.budget, verdict)
        console.print(table)


def _rounded(value: float) -> str:
    """Three digits, or all of them before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
