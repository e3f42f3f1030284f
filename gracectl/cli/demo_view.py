"""How a running demo is shown: a live table on a terminal, lines where there is none, nothing beside JSON.

A view is given the same scene again and again and decides what of it is worth telling.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec
from kubesim.verifier.verifier import BudgetRecord
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gracectl.cli.console import Screen

NEWS_EVERY_SECONDS = 2.0
"""A node whose pods leave, but whose step stays the same, is worth a line this often."""

LONGEST_REASON = 120
"""Characters of a reason on a line of its own."""


class Row(msgspec.Struct, frozen=True):
    """A deleted node. `step` is "" before its termination begins; `seconds` since its deletion."""

    node: str
    step: str
    pods_left: int
    seconds: float
    waits_for: str
    is_gone: bool = False


class Scene(msgspec.Struct, frozen=True):
    """What there is to see at one instant, `seconds` after the first deletion."""

    seconds: float
    rows: tuple[Row, ...]
    budgets: tuple[BudgetRecord, ...]
    evictions: int
    refusals: int
    ready: int
    pods: int


class View(Protocol):
    """Shows a demo while it runs."""

    def echo(self, text: str) -> None:
        """Something happened before or after the show."""

    def showing(self) -> AbstractContextManager[None]:
        """The show is on inside."""

    def show(self, scene: Scene) -> None:
        """The scene as it is now."""


class SilentView:
    """For machines: the result is all they want."""

    def echo(self, text: str) -> None:
        """See View."""

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return nullcontext()

    def show(self, scene: Scene) -> None:
        """See View."""


class LiveView:
    """A table that stands still and changes, as wide as the terminal; one line a node whatever there is to say."""

    def __init__(self, console: Console) -> None:
        self._screen = Screen(console, "a taller terminal shows them")

    def echo(self, text: str) -> None:
        """See View."""
        self._screen.echo(text)

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return self._screen.showing()

    def show(self, scene: Scene) -> None:
        """See View."""
        self._screen.show(drawn(scene))


class PlainView:
    """One line per change worth telling."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, Row] = {}

    def echo(self, text: str) -> None:
        """See View."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return nullcontext()

    def show(self, scene: Scene) -> None:
        """See View."""
        for row in scene.rows:
            news = _news(self._told.get(row.node), row)
            if news:
                self._told[row.node] = row
                counts = f"; {scene.evictions} evictions so far, {scene.refusals} refused" if row.is_gone else ""
                self.echo(f"{scene.seconds:6.1f} s  {row.node}: {news}{counts}")


def _news(told: Row | None, row: Row) -> str:
    """What is worth telling of a node, compared with what was told last; "" for nothing."""
    if row.is_gone:
        return "" if told and told.is_gone else f"gone after {row.seconds:.1f} s"
    if not row.step:
        return ""
    left = f", {_pods(row.pods_left)} left" if row.step == "drain" else ""
    if told is None or told.step != row.step:
        return (f"{told.step} → {row.step}" if told else row.step) + left
    is_due = row.step == "drain" and row.seconds - told.seconds >= NEWS_EVERY_SECONDS
    if is_due and (told.pods_left, told.waits_for) != (row.pods_left, row.waits_for):
        return f"{_pods(row.pods_left)} left: {_shortened(row.waits_for)}"
    return ""


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def drawn(scene: Scene) -> RenderableType:
    """The scene as a live table, about twenty lines however large the cluster is."""
    return Group(Text(), _nodes(scene), Text(), _budgets(scene), Text(), _totals(scene))


def _nodes(scene: Scene) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", expand=True)
    table.add_column("node", no_wrap=True)
    table.add_column("step", no_wrap=True, min_width=9)
    table.add_column("pods left", no_wrap=True, justify="right")
    table.add_column("time", no_wrap=True, justify="right", min_width=6)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in scene.rows:
        left = "" if row.step in ("", "cordon") and not row.pods_left else str(row.pods_left)
        time = f"{row.seconds:.1f} s"
        if row.is_gone:
            table.add_row(row.node, Text("✓ gone", "green"), "0", time, "")
        else:
            table.add_row(row.node, Text(row.step or "deleted", "cyan"), left, time, row.waits_for)
    return table


def _budgets(scene: Scene) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", expand=True)
    table.add_column("budget", no_wrap=True, overflow="ellipsis")
    table.add_column("bound", no_wrap=True)
    table.add_column("healthy, lowest, required", no_wrap=True, overflow="ellipsis", ratio=1)
    for budget in scene.budgets:
        lowest = budget.healthy if budget.lowest is None else budget.lowest
        figures = f"{budget.healthy:>3} of {budget.expected}, lowest {lowest}, required {budget.required}"
        style = "bold red" if budget.violations else "yellow" if budget.healthy <= budget.required else ""
        table.add_row(budget.name, budget.bound, Text(figures, style))
    return table


def _totals(scene: Scene) -> Text:
    return Text(
        f"{scene.evictions} evictions, {scene.refusals} refused (429), {scene.ready} of {scene.pods} pods Ready",
        "bold",
        no_wrap=True,
        overflow="ellipsis",
    )
