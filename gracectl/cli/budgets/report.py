"""Budgets as a JSON object and as a table; docs/budgets.md explains every field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import Row, Table
from gracectl.cli.format import elapsed
from gracectl.cli.output import command
from gracectl.cli.report import Json, instant
from gracectl.inspect.budget_status import (
    BlockedObject,
    BudgetState,
    NodeBudgetUsage,
    PodBudgetUsage,
    UnavailableObject,
)
from gracectl.inspect.leadership import UNKNOWN_LEADERSHIP, Leadership, LeaderState
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.nodebudgets import NodeCounts, bound_of

LONGEST = 300
"""Characters of a problem with a budget, which quotes foreign text."""


class BudgetUsages(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen budgets, at `at` (Unix seconds by the server's clock).

    `nodes` None: budgets of nodes do not exist in the cluster or may not be read, as `note` says. `leadership`: whether
    a controller counts the budgets. `settings`: source of the settings. `only_blocking`: without budgets that allow
    something; `only_named`: without budgets that the command line does not name.
    """

    at: float
    nodes: tuple[NodeBudgetUsage, ...] | None
    pods: tuple[PodBudgetUsage, ...]
    settings: str = "defaults"
    note: str = ""
    leadership: Leadership = UNKNOWN_LEADERSHIP
    only_blocking: bool = False
    only_named: bool = False
    cluster: ClusterAddress = ClusterAddress()


def budgets_report(usages: BudgetUsages) -> Json:
    """Report of the chosen budgets."""
    return {
        "cluster": usages.cluster,
        "at": format_time(usages.at),
        "settings": usages.settings,
        "nodeBudgets": None if usages.nodes is None else tuple(map(node_budget_report, usages.nodes)),
        "podBudgets": tuple(map(pod_budget_report, usages.pods)),
        "note": usages.note or None,
    }


def node_budget_report(usage: NodeBudgetUsage) -> Json:
    """Report of a budget for nodes. `counted`: current state of the nodes, independent of the budget's status."""
    budget, counted = usage.budget, usage.counted
    return {
        **_common(usage, budget.expected_nodes, budget.desired_available),
        "available": budget.current_available,
        "counted": {
            "expected": counted.expected,
            "available": counted.available,
            "required": counted.desired,
            "allowed": counted.allowed,
        },
    }


def pod_budget_report(usage: PodBudgetUsage) -> Json:
    """Report of a budget for pods."""
    budget = usage.budget
    return {
        **_common(usage, budget.expected_pods, budget.desired_healthy),
        "namespace": budget.namespace,
        "healthy": budget.current_healthy,
        "missing": usage.missing,
    }


def _common(usage: NodeBudgetUsage | PodBudgetUsage, expected: int, required: int) -> Json:
    """Fields of both kinds; `reason` in `blocks`: why the removal is pending, null if it is not."""
    budget = usage.budget
    return {
        "name": budget.name,
        "uid": budget.uid,
        "minAvailable": budget.min_available,
        "maxUnavailable": budget.max_unavailable,
        "state": usage.state.value,
        "problem": harmless(usage.problem, LONGEST) or None,
        "expected": expected,
        "required": required,
        "allowed": budget.disruptions_allowed,
        "unavailable": [
            {"name": each.name, "reason": each.reason, "since": instant(each.since)} for each in usage.unavailable
        ],
        "blocks": [{"name": each.name, "reason": each.reason or None} for each in usage.blocked],
    }


SHOWN = 3
"""So many of the unavailable and of the blocked objects are named."""

STYLES = {
    BudgetState.ALLOWING: "green",
    BudgetState.SPENT: "yellow",
    BudgetState.UNCOUNTED: "red",
    BudgetState.UNOBSERVED: "yellow",
}


def budgets_table(usages: BudgetUsages) -> RenderableType:
    """Table of the chosen budgets."""
    return Group(*_parts(usages))


def _parts(usages: BudgetUsages) -> Iterator[RenderableType]:
    yield Text(f"Budgets at {format_time(usages.at)} by the server's clock")
    if usages.nodes is None:
        yield Text()
        yield Text(f"NodeDisruptionBudgets: {usages.note}", "dim")
    elif usages.nodes:
        yield Text()
        rows = [_node_row(each, usages.leadership, usages.at) for each in usages.nodes]
        yield _table("nodedisruptionbudget", "available", rows)
    elif not usages.only_named:
        yield Text()
        yield Text(_none(usages, "NodeDisruptionBudget"))
    if usages.pods:
        yield Text()
        yield _table("poddisruptionbudget", "healthy", [_pod_row(each, usages.at) for each in usages.pods])
    elif not usages.only_named:
        yield Text()
        yield Text(_none(usages, "PodDisruptionBudget"))


def _none(usages: BudgetUsages, kind: str) -> str:
    return f"No {kind} blocks anything." if usages.only_blocking else f"There is no {kind}."


def _table(kind: str, available: str, rows: Sequence[Row]) -> Table:
    figures = (available, "required", "allowed")
    return Table((kind, "bound", *figures), rows, frozenset(figures))


def _node_row(usage: NodeBudgetUsage, leadership: Leadership, at: float) -> Row:
    budget, counted = usage.budget, usage.counted
    figures = (budget.expected_nodes, budget.current_available, budget.desired_available)
    problem = ""
    if usage.state is BudgetState.UNOBSERVED:
        is_led = leadership.state is LeaderState.ACTIVE
        problem = "changed just now, not counted yet" if is_led else f"not counted yet{_no_counter(leadership)}"
    elif counted != NodeCounts(*figures):
        now = f"{counted.available} of {counted.expected} are available now"
        problem = f"status out of date ({now}){_no_counter(leadership)}"
    return _row(budget.name, figures, usage, problem, at)


def _no_counter(leadership: Leadership) -> str:
    """Why no controller has counted a budget, as far as is known."""
    if leadership.state is LeaderState.NONE:
        return f": no controller leads, {harmless(leadership.reason, LONGEST)}"
    return "" if leadership.state is LeaderState.ACTIVE else f"; is `{command('controller')}` running?"


def _pod_row(usage: PodBudgetUsage, at: float) -> Row:
    budget = usage.budget
    figures = (budget.expected_pods, budget.current_healthy, budget.desired_healthy)
    is_changed = usage.state is BudgetState.UNOBSERVED
    problem = "changed just now, not counted by Kubernetes yet" if is_changed else ""
    return _row(f"{budget.namespace}/{budget.name}", figures, usage, problem, at)


def _row(
    name: str, figures: tuple[int, int, int], usage: NodeBudgetUsage | PodBudgetUsage, problem: str, at: float
) -> Row:
    expected, available, required = figures
    allowed = Text(str(usage.budget.disruptions_allowed), STYLES[usage.state])
    missing = usage.missing if isinstance(usage, PodBudgetUsage) else 0
    problems = filter(None, (harmless(usage.problem, LONGEST), problem))
    notes = [Text(f"! {each}", "red" if usage.state is BudgetState.UNCOUNTED else "yellow") for each in problems]
    if usage.unavailable or missing:
        notes.append(Text(f"unavailable: {_unavailable(usage.unavailable, missing, at)}", "dim"))
    if usage.blocked:
        notes.append(Text(f"blocks: {_blocked(usage.blocked)}", "dim"))
    bound = harmless(bound_of(usage.budget))
    return Row((name, bound, f"{available}/{expected}", str(required), allowed), notes)


def _unavailable(found: Sequence[UnavailableObject], missing: int, at: float) -> str:
    named = [f"{each.name} ({each.reason}{_age(each, at)})" for each in found]
    return listed([f"{missing} missing", *named] if missing else named, SHOWN)


def _age(found: UnavailableObject, at: float) -> str:
    return "" if found.since is None else f" for {elapsed(max(at - found.since, 0.0))}"


def _blocked(blocked: Sequence[BlockedObject]) -> str:
    """Objects with a pending removal and its reason; the number of others."""
    waiting = [f"{each.name} ({each.reason})" for each in blocked if each.reason]
    others = len(blocked) - len(waiting)
    if not waiting:
        return f"{listed([each.name for each in blocked], SHOWN)}; no removal pending"
    return listed(waiting, SHOWN) + (f"; and {others} without a pending removal" if others else "")
