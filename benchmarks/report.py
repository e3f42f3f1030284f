"""A benchmark's outcome: figures, the budgets of the design that they are held against, and how each contender did."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.contenders.contender import EVICTION
from benchmarks.trial import Trial

UNITS = "seconds: median round (quartiles); requests per pod; CPU in seconds for 1,000 pods; memory at its peak, MiB"


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


class Series(msgspec.Struct, frozen=True):
    """A line of a plot: points (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]


class Machine(msgspec.Struct, frozen=True):
    """The machine of a run. `load`: runnable processes per processor, over the minute before the run."""

    processors: int
    python: str
    load: float

    @classmethod
    def here(cls) -> Machine:
        """This machine, now."""
        processors = os.cpu_count() or 1
        return cls(processors, platform.python_version(), round(os.getloadavg()[0] / processors, 2))

    @property
    def in_words(self) -> str:
        """Of one line."""
        load = f"{rounded(self.load)} for each of {self.processors} processors"
        return f"Before the run, the load was {load}; Python {self.python}."


class Outcome(msgspec.Struct, frozen=True):
    """What one scenario has measured, with everything needed to repeat it. The first of the `trials` is the ideal, or
    the yardstick, with which the others are compared."""

    scenario: str
    about: str
    figures: tuple[Figure, ...]
    parameters: dict[str, Any]
    trials: tuple[Trial, ...] = ()
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    machine: Machine | None = None

    @property
    def is_met(self) -> bool:
        """Whether every figure keeps its budget."""
        return all(figure.is_met for figure in self.figures)


def save(outcomes: Sequence[Outcome], file: Path) -> None:
    """Keep outcomes in a file, for `make bench-page` and for machines."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)) + b"\n")


def saved(file: Path) -> list[Outcome]:
    """What a file has kept; nothing if there is none."""
    return msgspec.json.decode(file.read_bytes(), type=list[Outcome]) if file.exists() else []


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
            table.add_row(figure.name, f"{rounded(figure.value)}{figure.unit}", figure.budget, verdict)
        console.print(table)
        if outcome.trials:
            console.print(_of_trials(outcome.trials, console.width))
        for note in outcome.notes:
            console.print(note)


def _of_trials(trials: Sequence[Trial], width: int) -> Table:
    table = Table(
        width=width,
        padding=(0, 0),
        caption=UNITS,
    )
    table.add_column("contender", ratio=1, min_width=18)
    for heading in ("seconds", "×", "evict/s", "POST", "GET", "all", "429", "CPU", "MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in trials:
        table.add_row(one.contender + one.failings, *cells(one, trials[0]))
    return table


def cells(one: Trial, first: Trial) -> tuple[str, ...]:
    """A trial in figures, compared with the first one of its kind."""
    usage, pods = one.usage, one.pods
    reads = sum(count for name, count in usage.requests.items() if name.startswith(("get ", "list ", "watch ")))
    lower, upper = one.quartiles
    spread = f" ({rounded(lower)}–{rounded(upper)})" if lower != upper else ""
    return (
        rounded(one.seconds) + spread,
        rounded(one.seconds / first.seconds),
        rounded(one.rate),
        rounded(usage.per_pod(EVICTION, pods)),
        rounded(reads / pods),
        rounded(sum(usage.requests.values()) / pods),
        str(usage.refused),
        "" if usage.cpu is None else rounded(1000 * usage.cpu / pods),
        "" if usage.memory is None else f"{usage.memory:.0f}",
    )


def rounded(value: float) -> str:
    """Three digits, or all of them before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
