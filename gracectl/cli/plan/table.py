"""A forecast as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import INDENT, Row, Table, indented, marked
from gracectl.cli.plan.messages import BudgetLine
from gracectl.cli.plan.text import NodeSummary, NodeText, PlanText

NEVER = "never"


def plan_table(text: PlanText) -> RenderableType:
    """All of a forecast."""
    return Group(*_parts(text))


def _parts(text: PlanText) -> Iterator[RenderableType]:
    yield from head(text)
    for node in text.nodes:
        yield Text()
        yield from node_head(node)
        yield from _pods(node)
    yield from foot(text)


def head(text: PlanText) -> Iterator[RenderableType]:
    """What comes before the nodes."""
    if text.note:
        yield Text(text.note, "yellow")
        yield Text()
    yield Text(text.title)
    if text.summary:
        yield Text()
        yield summary_table(text.summary)
        yield Text(text.all_drained, "bold")


def node_head(node: NodeText) -> Iterator[RenderableType]:
    """What comes before the pods of a node."""
    is_blocked = any(warning.kind.is_blocking for warning in node.warnings)
    yield Text.assemble((f"{node.name}: ", "bold"), (node.headline, "bold red" if is_blocked else "bold"))
    for fact in node.facts:
        yield indented(Text(fact))
    for warning in node.warnings:
        yield marked(warning.message, warning.remedy, is_blocking=warning.kind.is_blocking)


def foot(text: PlanText) -> Iterator[RenderableType]:
    """What comes after the nodes: budgets, and what all of it rests on."""
    if text.budgets or text.other_budgets:
        yield Text()
        yield from _budgets(text.budgets, text.other_budgets)
    for remark in text.remarks:
        yield Text()
        yield Text(remark, "dim")


def _pods(node: NodeText) -> Iterator[RenderableType]:
    rows: list[Row] = []
    for wave in node.waves:
        if wave.title:
            rows.append(Row(notes=[Text(wave.title, "bold cyan")]))
        rows += [
            Row([Text(line.when, "red" if line.when == NEVER else ""), line.name, line.text]) for line in wave.lines
        ]
    if rows:
        yield Text()
        yield Table(("when", "pod", "how"), rows, has_message=True, indent=INDENT)
    if node.ignored:
        yield indented(Text(node.ignored, "dim"))


def summary_table(nodes: Sequence[NodeSummary]) -> Table:
    """A line for each node."""
    rows = []
    for node in nodes:
        drained = Text(node.drained, "red" if node.drained in (NEVER, "not drained") else "")
        rows.append(Row([node.node, drained, node.deadline, str(node.pods), Text(", ".join(node.kinds), "yellow")]))
    headers = ("node", "drained", "deadline", "pods", "warnings" if any(node.kinds for node in nodes) else "")
    return Table(headers, rows, frozenset({"pods"}), has_message=True, droppable=("deadline", "pods"))


def _budgets(budgets: Iterable[BudgetLine], others: str) -> Iterator[RenderableType]:
    if rows := [Row([line.name, line.text]) for line in budgets]:
        yield Table(("budget", "status"), rows, has_message=True)
    if others:
        yield Text(others, "dim")
