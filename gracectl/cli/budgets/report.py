"""The JSON object of `gracectl budgets -o json`; docs/budgets.md explains every field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gracectl.cli.report import ClusterReport, JsonObject, cluster_report, instant
from gracectl.inspect.budget_status import BlockedObject, NodeBudgetUsage, PodBudgetUsage, UnavailableObject
from gracectl.inspect.leadership import UNKNOWN_LEADERSHIP, Leadership
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time

LONGEST = 300
"""Characters of a problem with a budget, which quotes foreign text."""


class BudgetUsages(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen budgets, at `at` (Unix seconds by the server's clock).

    `nodes` None: budgets of nodes do not exist in the cluster or may not be read, as `note` says. `leadership`: whether
    a controller counts them. `settings`: where they are from. `only_blocking`: without budgets that allow something;
    `only_named`: without budgets that the command line does not name.
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


class UnavailableReport(JsonObject, frozen=True):
    """A node or pod that counts as unavailable."""

    name: str
    reason: str
    since: str | None


class BlockedReport(JsonObject, frozen=True):
    """A node or pod that may not be removed now; `reason`: why its removal is pending, null if it is not."""

    name: str
    reason: str | None


class CountReport(JsonObject, frozen=True):
    """Current state of the nodes, independent of the budget's status."""

    expected: int
    available: int
    required: int
    allowed: int


class BudgetReport(JsonObject, frozen=True, kw_only=True):
    """Fields of both kinds of budgets; the figures are from the status."""

    name: str
    uid: str
    min_available: int | str | None
    max_unavailable: int | str | None
    state: str
    problem: str | None
    expected: int
    required: int
    allowed: int
    unavailable: tuple[UnavailableReport, ...]
    blocks: tuple[BlockedReport, ...]


class NodeBudgetReport(BudgetReport, frozen=True, kw_only=True):
    """A NodeDisruptionBudget."""

    available: int
    counted: CountReport


class PodBudgetReport(BudgetReport, frozen=True, kw_only=True):
    """A PodDisruptionBudget."""

    namespace: str
    healthy: int
    missing: int


class BudgetsReport(JsonObject, frozen=True, kw_only=True):
    """The whole object. `nodeBudgets` null: see `note`."""

    cluster: ClusterReport
    at: str
    settings: str
    node_budgets: tuple[NodeBudgetReport, ...] | None
    pod_budgets: tuple[PodBudgetReport, ...]
    note: str | None


def budgets_report(usages: BudgetUsages) -> BudgetsReport:
    """Report of the chosen budgets."""
    return BudgetsReport(
        cluster=cluster_report(usages.cluster),
        at=format_time(usages.at),
        settings=usages.settings,
        node_budgets=None if usages.nodes is None else tuple(map(node_budget_report, usages.nodes)),
        pod_budgets=tuple(map(pod_budget_report, usages.pods)),
        note=usages.note or None,
    )


def node_budget_report(usage: NodeBudgetUsage) -> NodeBudgetReport:
    """The report of a budget for nodes."""
    budget, counted = usage.budget, usage.counted
    return NodeBudgetReport(
        **_common(usage),
        available=budget.current_available,
        expected=budget.expected_nodes,
        required=budget.desired_available,
        counted=CountReport(counted.expected, counted.available, counted.desired, counted.allowed),
    )


def pod_budget_report(usage: PodBudgetUsage) -> PodBudgetReport:
    """The report of a budget for pods."""
    budget = usage.budget
    return PodBudgetReport(
        **_common(usage),
        namespace=budget.namespace,
        healthy=budget.current_healthy,
        expected=budget.expected_pods,
        required=budget.desired_healthy,
        missing=usage.missing,
    )


def _common(usage: NodeBudgetUsage | PodBudgetUsage) -> dict[str, Any]:
    budget = usage.budget
    return {
        "name": budget.name,
        "uid": budget.uid,
        "min_available": budget.min_available,
        "max_unavailable": budget.max_unavailable,
        "state": usage.state.value,
        "problem": harmless(usage.problem, LONGEST) or None,
        "allowed": budget.disruptions_allowed,
        "unavailable": _unavailable(usage.unavailable),
        "blocks": _blocked(usage.blocked),
    }


def _unavailable(found: Sequence[UnavailableObject]) -> tuple[UnavailableReport, ...]:
    return tuple(UnavailableReport(each.name, each.reason, instant(each.since)) for each in found)


def _blocked(found: Sequence[BlockedObject]) -> tuple[BlockedReport, ...]:
    return tuple(BlockedReport(each.name, each.reason or None) for each in found)
