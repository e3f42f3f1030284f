"""The JSON object of `gracectl budgets -o json`; docs/budgets.md explains every field."""

from __future__ import annotations

import msgspec

from gracectl.cli.report import Json, instant
from gracectl.inspect.budget_status import NodeBudgetUsage, PodBudgetUsage
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
