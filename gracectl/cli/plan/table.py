"""A forecast as tables and sentences, as wide as the terminal: what does not fit is folded, never cut off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gracectl.cli.plan.messages import BudgetLine
from gracectl.cli.plan.text import NodeTelling, PodLine, Summary, Telling
from gracectl.policy.warnings import PlanWarning

INDENT = 2
GAP = 2
NEVER = "never"
MANY_NAMES = 30
"""Columns for the names of several pods, where no single one needs more."""

WIDEST_NAME = 0.36
"""The part of the width that names of pods may take: the reasons need the rest."""

LEAST_NAME = 12
"""Columns that they get however narrow it is."""


def table(told: Telling, width: int) -> RenderableType:
    """All that is told, for so many columns."""
    return Group(*_parts(told, width))


def _parts(told: Telling, width: int) -> Iterator[RenderableType]:
    yield from head(told)
    for node in told.nodes:
        yield Text()
        yield from node_head(node)
        yield from _pods(node, width)
    yield from foot(told)


def head(told: Telling) -> Iterator[RenderableType]:
    """What is said before the nodes."""
    yield Text(told.title)
    if told.summary:
        yield Text()
        yield _summary(told.summary)


def node_head(node: NodeTelling) -> Iterator[RenderableType]:
    """What is said of a node before its pods."""
    yield Text.assemble((f"{node.name}: ", "bold"), (node.headline, _style(node)))
    for fact in node.facts:
        yield Padding(Text(fact), (0, 0, 0, INDENT))
    for caution in node.cautions:
        yield caution_line(caution)


def foot(told: Telling) -> Iterator[RenderableType]:
    """What is said behind the nodes: budgets, and what all of it rests on."""
    if told.budgets or told.others:
        yield Text()
        yield from _budgets(told.budgets, told.others)
    for remark in told.remarks:
        yield Text()
        yield Text(remark, "dim")


def _style(node: NodeTelling) -> str:
    return "bold red" if any(caution.kind.is_blocking for caution in node.cautions) else "bold"


def caution_line(caution: PlanWarning) -> RenderableType:
    """One thing to know."""
    return marked(caution.message, is_grave=caution.kind.is_blocking)


def marked(message: str, *, is_grave: bool) -> RenderableType:
    """With a hanging indent behind its mark."""
    style = "red" if is_grave else "yellow"
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row(Text("!", f"bold {style}"), Text(message, style))
    return Padding(grid, (0, 0, 0, INDENT))


def _pods(node: NodeTelling, width: int) -> Iterator[RenderableType]:
    lines = [line for wave in node.waves for line in wave.lines]
    if lines:
        when = max(len("when"), *(len(line.when) for line in lines))
        longest = max(len("pod"), *(len(line.name) if line.count == 1 else MANY_NAMES for line in lines))
        columns = _Columns(when, name_width(longest, width))
        yield Text()
        yield _lines([PodLine("when", "pod", "how and why")], columns, "bold")
        for wave in node.waves:
            if wave.title:
                yield Padding(Text(wave.title, "bold cyan"), (0, 0, 0, INDENT))
            yield _lines(wave.lines, columns)
    if node.ignored:
        yield Padding(Text(node.ignored, "dim"), (0, 0, 0, INDENT))


def name_width(longest: int, width: int) -> int:
    """The columns for names, the longest of which needs so many, on paper that is so wide."""
    return min(longest, max(int(width * WIDEST_NAME), LEAST_NAME))


class _Columns(NamedTuple):
    """Widths that the waves of a node share."""

    when: int
    name: int


def _lines(lines: Iterable[PodLine], columns: _Columns, style: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(width=columns.when, no_wrap=True)
    grid.add_column(width=columns.name, overflow="fold")
    grid.add_column(overflow="fold")
    for line in lines:
        when = Text(line.when, style or ("red" if line.when == NEVER else ""))
        grid.add_row(when, Text(line.name, style), Text(line.how, style))
    return Padding(grid, (0, 0, 0, INDENT))


def _summary(nodes: Sequence[Summary]) -> Table:
    found = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    found.add_column("node", overflow="fold")
    found.add_column("drained", no_wrap=True)
    found.add_column("deadline", no_wrap=True)
    found.add_column("pods", no_wrap=True, justify="right")
    found.add_column("cautions" if any(node.kinds for node in nodes) else "", overflow="fold")
    for node in nodes:
        drained = Text(node.drained, "red" if node.drained in (NEVER, "not drained") else "")
        found.add_row(Text(node.node), drained, node.deadline, str(node.pods), Text(", ".join(node.kinds), "yellow"))
    return found


def _budgets(budgets: Iterable[BudgetLine], others: str) -> Iterator[RenderableType]:
    found = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    found.add_column("budget", overflow="fold")
    found.add_column("what it says", overflow="fold")
    for line in budgets:
        found.add_row(Text(line.name), Text(line.says))
    if found.row_count:
        yield found
    if others:
        yield Text(others, "dim")
