"""Plans of small nodes, and what they say."""

from __future__ import annotations

from typing import Any

from gracectl.model import names
from gracectl.model.pod import Pod, Toleration
from gracectl.policy.plan import NodeView, Outcome, Plan, PodPlan, plan
from support.builders import NOW, a_node


def view(*pods: Pod, budgets: dict[str, Any] | None = None, **fields: Any) -> NodeView:
    """Of a node that was cordoned a minute ago; `budgets` by pod uid."""
    return NodeView(node=a_node(), pods=pods, budgets=budgets or {}, **{"cordoned_at": NOW - 60, **fields})


def decide(*pods: Pod, **fields: Any) -> Plan:
    """The plan of such a node now."""
    return plan(view(*pods, **fields), NOW)


def outcomes(decision: Plan) -> dict[str, Outcome]:
    return {entry.pod.name: entry.outcome for entry in decision.pods}


def reason(decision: Plan, name: str) -> str:
    return next(entry.reason for entry in decision.pods if entry.pod.name == name)


def entry(decision: Plan, name: str) -> PodPlan:
    return next(each for each in decision.pods if each.pod.name == name)


def tolerating(
    operator: str, value: str = "", effect: str = "", key: str = names.DISRUPTED_TAINT_KEY
) -> dict[str, Any]:
    """The fields of a pod with this toleration."""
    return {"tolerations": (Toleration(key, operator, value, effect),)}
