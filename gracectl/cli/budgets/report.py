"""How budgets stand as one JSON object, under names that stay; docs/budgets.md explains every field.

Invariant: fields are added, never renamed or taken away; the order of lists is that of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gracectl.cli.plan.report import Reported
from gracectl.inspect.budget_status import Blocked, Holder, NodeBudgetUsage, PodBudgetUsage
from gracectl.inspect.leadership import NOTHING_KNOWN, Leadership
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time

LONGEST = 300
"""Characters of what is wrong with a budget, in which others' words stand."""


class Standings(msgspec.Struct, frozen=True, kw_only=True):
    """All that was asked for. `nodes` None: the cluster does not know budgets for nodes, or nobody lets us see them,
    as `unseen` says. `leadership`: who counts budgets for nodes, if anybody. `at`: Unix seconds by the server's clock.
    `only_blocking`: those that allow something are left out."""

    at: float
    nodes: tuple[NodeBudgetUsage, ...] | None
    pods: tuple[PodBudgetUsage, ...]
    unseen: str = ""
    leadership: Leadership = NOTHING_KNOWN
    only_blocking: bool = False


class HolderReport(Reported, frozen=True):
    """Who counts as unavailable."""

    name: str
    reason: str
    since: str | None


class BlockedReport(Reported, frozen=True):
    """Who may not go now; `waits`: why it is to go, null if nobody wants that."""

    name: str
    waits: str | None


class CountReport(Reported, frozen=True):
    """What the nodes say now, whoever has or has not counted them."""

    expected: int
    available: int
    required: int
    allowed: int


class BudgetReport(Reported, frozen=True, kw_only=True):
    """What budgets of both kinds have in common; the figures are those of the status."""

    name: str
    min_available: int | str | None
    max_unavailable: int | str | None
    state: str
    problem: str | None
    expected: int
    required: int
    allowed: int
    held_by: tuple[HolderReport, ...]
    blocks: tuple[BlockedReport, ...]


class NodeBudgetReport(BudgetReport, frozen=True, kw_only=True):
    """A budget for nodes."""

    available: int
    counted: CountReport


class PodBudgetReport(BudgetReport, frozen=True, kw_only=True):
    """A PodDisruptionBudget."""

    namespace: str
    healthy: int
    missing: int


class Report(Reported, frozen=True, kw_only=True):
    """All of it. `nodeBudgets` null: see `unseen`."""

    at: str
    node_budgets: tuple[NodeBudgetReport, ...] | None
    pod_budgets: tuple[PodBudgetReport, ...]
    unseen: str | None


def report(told: Standings) -> Report:
    """As JSON has it."""
    return Report(
        at=format_time(told.at),
        node_budgets=None if told.nodes is None else tuple(map(_of_nodes, told.nodes)),
        pod_budgets=tuple(map(_of_pods, told.pods)),
        unseen=told.unseen or None,
    )


def _of_nodes(holding: NodeBudgetUsage) -> NodeBudgetReport:
    budget, counted = holding.budget, holding.counted
    return NodeBudgetReport(
        **_common(holding),
        available=budget.current_available,
        expected=budget.expected_nodes,
        required=budget.desired_available,
        counted=CountReport(counted.expected, counted.available, counted.desired, counted.allowed),
    )


def _of_pods(holding: PodBudgetUsage) -> PodBudgetReport:
    budget = holding.budget
    return PodBudgetReport(
        **_common(holding),
        namespace=budget.namespace,
        healthy=budget.current_healthy,
        expected=budget.expected_pods,
        required=budget.desired_healthy,
        missing=holding.missing,
    )


def _common(holding: NodeBudgetUsage | PodBudgetUsage) -> dict[str, Any]:
    budget = holding.budget
    return {
        "name": budget.name,
        "min_available": budget.min_available,
        "max_unavailable": budget.max_unavailable,
        "state": holding.state.value,
        "problem": harmless(holding.problem, LONGEST) or None,
        "allowed": budget.disruptions_allowed,
        "held_by": _holders(holding.holders),
        "blocks": _blocked(holding.blocked),
    }


def _holders(holders: Sequence[Holder]) -> tuple[HolderReport, ...]:
    return tuple(
        HolderReport(each.name, each.reason, None if each.since is None else format_time(each.since))
        for each in holders
    )


def _blocked(blocked: Sequence[Blocked]) -> tuple[BlockedReport, ...]:
    return tuple(BlockedReport(each.name, each.waits or None) for each in blocked)
