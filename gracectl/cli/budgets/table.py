"""How budgets stand as a table, as wide as the terminal, with a line below each for who holds it and what it blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gracectl.cli.budgets.report import LONGEST, Standings
from gracectl.cli.format import elapsed
from gracectl.cli.output import command
from gracectl.cli.plan.table import GAP, INDENT, name_width
from gracectl.inspect.budget_status import Blocked, Holder, NodeBudgetUsage, PodBudgetUsage, State
from gracectl.inspect.leadership import Lead, Leadership
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.nodebudgets import NodeCounts, bound_of

SHOWN = 3
"""Of those who hold a budget and of those whom it blocks, so many are named."""

STYLES = {State.ALLOWING: "green", State.SPENT: "yellow", State.UNCOUNTED: "red", State.UNOBSERVED: "yellow"}
IS_COUNTED = "it has just changed, and is being counted"
IS_NOT_COUNTED = "it is not counted yet"
IS_OUT_OF_DATE = "its status is out of date ({} of {} are available now)"


def table(told: Standings, width: int) -> RenderableType:
    """All that is to be said, for so many columns."""
    return Group(*_parts(told, width))


def _parts(told: Standings, width: int) -> Iterator[RenderableType]:
    yield Text(f"Budgets as they are {format_time(told.at)} by the server's clock")
    yield Text()
    if told.nodes is None:
        yield Text(f"Budgets for nodes: {told.unseen}", "dim")
    elif told.nodes:
        yield from _section(
            "budget for nodes", "available", [_node_row(each, told.leadership) for each in told.nodes], width, told.at
        )
    else:
        yield Text(_none(told, "budget for nodes"))
    yield Text()
    if told.pods:
        yield from _section("budget for pods", "healthy", [_pod_row(each) for each in told.pods], width, told.at)
    else:
        yield Text(_none(told, "PodDisruptionBudget"))


def _none(told: Standings, kind: str) -> str:
    return f"No {kind} blocks anything." if told.only_blocking else f"There is no {kind}."


class _Row:
    """A budget as the table has it."""

    def __init__(
        self, name: str, bound: str, figures: tuple[int, int, int, int], holding: NodeBudgetUsage | PodBudgetUsage
    ) -> None:
        expected, available, required, allowed = figures
        self.cells = (name, bound, f"{available} of {expected}", str(required), str(allowed))
        self.state = holding.state
        self.holders = holding.holders
        self.blocked = holding.blocked
        self.complaints = [harmless(holding.problem, LONGEST)] if holding.problem else []
        self.missing = holding.missing if isinstance(holding, PodBudgetUsage) else 0


def _node_row(holding: NodeBudgetUsage, leadership: Leadership) -> _Row:
    budget, counted = holding.budget, holding.counted
    figures = (budget.expected_nodes, budget.current_available, budget.desired_available, budget.disruptions_allowed)
    row = _Row(budget.name, harmless(bound_of(budget)), figures, holding)
    if holding.state is State.UNOBSERVED and leadership.state is Lead.LEADS:
        row.complaints.append(IS_COUNTED)
    elif holding.state is State.UNOBSERVED:
        row.complaints.append(IS_NOT_COUNTED + _who_counts(leadership))
    elif counted != NodeCounts(*figures[:3]):
        out_of_date = IS_OUT_OF_DATE.format(counted.available, counted.expected)
        row.complaints.append(out_of_date + _who_counts(leadership))
    return row


def _who_counts(leadership: Leadership) -> str:
    """Why nobody has counted a budget for nodes, as far as that is known."""
    if leadership.state is Lead.NOBODY:
        return f": no controller leads, {harmless(leadership.words, LONGEST)}"
    return "" if leadership.state is Lead.LEADS else f"; is `{command('controller')}` running?"


def _pod_row(holding: PodBudgetUsage) -> _Row:
    budget = holding.budget
    figures = (budget.expected_pods, budget.current_healthy, budget.desired_healthy, budget.disruptions_allowed)
    row = _Row(f"{budget.namespace}/{budget.name}", harmless(bound_of(budget)), figures, holding)
    if holding.state is State.UNOBSERVED:
        row.complaints.append("it has just changed, and Kubernetes counts it anew")
    return row


def _section(head: str, good: str, rows: Sequence[_Row], width: int, at: float) -> Iterator[RenderableType]:
    """The lines of one kind of budget. One table for each budget, of the same columns: so that sentences may stand
    between them."""
    heads = (head, "bound", good, "required", "allowed")
    widest = [max(len(cell) for cell in column) for column in zip(heads, *(row.cells for row in rows), strict=True)]
    widest[0] = name_width(widest[0], width)
    yield _line(tuple(Text(each, "bold") for each in heads), widest)
    for row in rows:
        cells = [Text(cell) for cell in row.cells]
        cells[-1].stylize(STYLES[row.state])
        yield _line(tuple(cells), widest)
        for complaint in row.complaints:
            yield _said(f"! {complaint}", "red" if row.state is State.UNCOUNTED else "yellow")
        if row.holders or row.missing:
            yield _said(f"held by {_holders(row.holders, row.missing, at)}")
        if row.blocked:
            yield _said(f"blocks {_blocked(row.blocked)}")


def _line(cells: tuple[Text, ...], widest: Sequence[int]) -> Table:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for number, most in enumerate(widest):
        grid.add_column(width=most, overflow="fold", justify="left" if number < 2 else "right")
    grid.add_row(*cells)
    return grid


def _said(text: str, style: str = "dim") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, INDENT))


def _holders(holders: Sequence[Holder], missing: int, at: float) -> str:
    named = [f"{each.name} ({each.reason}{_since(each, at)})" for each in holders]
    if missing:
        named.insert(0, f"{missing} that {'is' if missing == 1 else 'are'} not there")
    return listed(named, SHOWN)


def _since(holder: Holder, at: float) -> str:
    return "" if holder.since is None else f", for {elapsed(max(at - holder.since, 0.0))}"


def _blocked(blocked: Sequence[Blocked]) -> str:
    """Those that wait by name and reason; the others by number."""
    waiting = [f"{each.name} ({each.waits})" for each in blocked if each.waits]
    others = len(blocked) - len(waiting)
    if not waiting:
        return f"{listed([each.name for each in blocked], SHOWN)}; none of them is to go"
    return listed(waiting, SHOWN) + (f"; and {others} that nobody wants to go" if others else "")
