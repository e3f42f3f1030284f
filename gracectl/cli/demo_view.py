"""View of a running demo: a live table on a terminal, a line for each change without one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import msgspec
from kubesim.verifier.verifier import BudgetRecord
from rich.console import Console, Group, RenderableType
from rich.text import Text

from gracectl.cli import console
from gracectl.cli.console import Screen, Table
from gracectl.cli.format import counted

LINE_SECONDS = 2.0
"""Between two lines about a node while pods leave and its step stays the same."""

LONGEST_REASON = 120
"""Characters of a reason on a line of its own."""


class NodeRow(msgspec.Struct, frozen=True):
    """A deleted node. `step` is "" before its termination begins; `seconds` since its deletion."""

    node: str
    step: str
    pods_left: int
    seconds: float
    waits_for: str
    is_gone: bool = False


class DemoFrame(msgspec.Struct, frozen=True):
    """The demo at one instant, `seconds` after the first deletion."""

    seconds: float
    rows: tuple[NodeRow, ...]
    budgets: tuple[BudgetRecord, ...]
    evictions: int
    refusals: int
    ready: int
    pods: int


class DemoView:
    """Shows frames as they come. `is_live`: as a table that is redrawn."""

    def __init__(self, target: Console, *, is_live: bool) -> None:
        self._screen = Screen(target, "a taller terminal shows them")
        self._is_live = is_live
        self._printed: dict[str, NodeRow] = {}

    def echo(self, text: str) -> None:
        """Print a line that stays."""
        self._screen.echo(text)

    def showing(self) -> AbstractContextManager[None]:
        """The view is on inside."""
        return self._screen.showing() if self._is_live else nullcontext()

    def show(self, frame: DemoFrame) -> None:
        """Show the newest frame."""
        if self._is_live:
            self._screen.show(frame_table(frame))
            return
        for row in frame.rows:
            if change := _change(self._printed.get(row.node), row):
                self._printed[row.node] = row
                counts = f"; {frame.evictions} evictions so far, {frame.refusals} refused" if row.is_gone else ""
                self.echo(f"{frame.seconds:6.1f} s  {row.node}: {change}{counts}")


def _change(printed: NodeRow | None, row: NodeRow) -> str:
    """What to print of a node, compared with what was printed last; "" for nothing."""
    if row.is_gone:
        return "" if printed and printed.is_gone else f"gone after {row.seconds:.1f} s"
    if not row.step:
        return ""
    left = f", {counted(row.pods_left, 'pod')} left" if row.step == "drain" else ""
    if printed is None or printed.step != row.step:
        return (f"{printed.step} → {row.step}" if printed else row.step) + left
    is_due = row.step == "drain" and row.seconds - printed.seconds >= LINE_SECONDS
    if is_due and (printed.pods_left, printed.waits_for) != (row.pods_left, row.waits_for):
        why = row.waits_for
        shortened = why if len(why) <= LONGEST_REASON else f"{why[: LONGEST_REASON - 1]}…"
        return f"{counted(row.pods_left, 'pod')} left: {shortened}"
    return ""


def frame_table(frame: DemoFrame) -> RenderableType:
    """All of a frame, a line for each node and budget."""
    totals = f"{frame.evictions} evictions, {frame.refusals} refused (429), {frame.ready} of {frame.pods} pods Ready"
    return Group(
        Text(), _nodes(frame), Text(), _budgets(frame), Text(), Text(totals, "bold", no_wrap=True, overflow="ellipsis")
    )


def _nodes(frame: DemoFrame) -> Table:
    rows = []
    for row in frame.rows:
        step = Text("✓ gone", "green") if row.is_gone else Text(row.step or "deleted", "cyan")
        step.pad_right(max(len("finalizer") - len(step), 0))
        left = "" if row.step in ("", "cordon") and not (row.is_gone or row.pods_left) else str(row.pods_left)
        reason = Text(row.waits_for, no_wrap=True, overflow="ellipsis")
        rows.append(console.Row([row.node, step, left, f"{row.seconds:4.1f} s", reason]))
    headers = ("node", "step", "pods left", "time", "waiting for")
    return Table(headers, rows, frozenset({"pods left", "time"}), has_message=True)


def _budgets(frame: DemoFrame) -> Table:
    rows = []
    for budget in frame.budgets:
        lowest = budget.healthy if budget.lowest is None else budget.lowest
        figures = f"{budget.healthy:>3} of {budget.expected}, lowest {lowest}, required {budget.required}"
        style = "bold red" if budget.violations else "yellow" if budget.healthy <= budget.required else ""
        rows.append(console.Row([budget.name, budget.bound, Text(figures, style, no_wrap=True, overflow="ellipsis")]))
    return Table(("budget", "bound", "healthy, lowest, required"), rows, has_message=True)
