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


def title(text: PlanText) -> Iterator[RenderableType]:
    """The first lines."""
    if text.note:
        yield Text(text.note, "yellow")
        yield Text()
    yield Text(text.title)
    if text.fit:
        yield Text(text.fit, "bold")


def head(text: PlanText) -> Iterator[RenderableType]:
    """Lines before the nodes."""
    yield from title(text)
    if text.summary:
        yield Text()
        yield summary_table(text.summary)
        yield Text(text.all_drained, "bold")


def node_head(node: NodeText) -> Iterator[RenderableType]:
    """Lines before the pods of a node."""
    is_blocked = any(warning.kind.is_blocking for warning in node.warnings)
    yield Text.assemble((f"{node.name}: ", "bold"), (node.headline, "bold red" if is_blocked else "bold"))
    for fact in node.facts:
        yield indented(Text(fact))
    for warning in node.warnings:
        yield marked(warning.message, warning.remedy, is_blocking=warning.kind.is_blocking)


def foot(text: PlanText) -> Iterator[RenderableType]:
    """Lines after the nodes: budgets and assumptions."""
    if text.budgets or text.other_budgets:
        yield Text()
        if text.budgets:
            yield budget_table(text.budgets)
        if text.other_budgets:
            yield Text(text.other_budgets, "dim")
    for remark in text.remarks:
        yield Text()
        yield Text(remark, "dim")


def _pods(node: NodeText) -> Iterator[RenderableType]:
    table = pod_table(node)
    if table is not None:
        yield Text()
        yield table
    if node.ignored:
        yield indented(Text(node.ignored, "dim"))


def pod_table(node: NodeText) -> Table | None:
    """A line for each pod or group of pods, wave by wave; None without pods."""
    rows: list[Row] = []
    for wave in node.waves:
        if wave.title:
            rows.append(Row(notes=[Text(wave.title, "bold cyan")]))
        rows += [
            Row([Text(line.when, "red" if line.when == NEVER else ""), line.name, line.text]) for line in wave.lines
        ]
    return Table(("when", "pod", "how"), rows, has_message=True, indent=INDENT) if rows else None


def is_never(node: NodeSummary) -> bool:
    """Whether it is not drained unless something is changed."""
    return node.drained in (NEVER, "not drained")


def summary_table(nodes: Sequence[NodeSummary]) -> Table:
    """A line for each node."""
    rows = []
    for node in nodes:
        drained = Text(node.drained, "red" if is_never(node) else "")
        rows.append(Row([node.node, drained, node.deadline, str(node.pods), Text(", ".join(node.kinds), "yellow")]))
    headers = ("node", "drained", "deadline", "pods", "warnings" if any(node.kinds for node in nodes) else "")
    return Table(headers, rows, frozenset({"pods"}), has_message=True, droppable=("deadline", "pods"))


def budget_table(budgets: Iterable[BudgetLine]) -> Table:
    """A line for each budget."""
    return Table(("budget", "status"), [Row([line.name, line.text]) for line in budgets], has_message=True)
