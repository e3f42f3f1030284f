"""The JSON object of `gracectl plan -o json`: all that the table says, and more; docs/plan.md explains every field."""

from __future__ import annotations

from gracectl.cli.format import blocked_by
from gracectl.cli.plan.groups import in_order
from gracectl.cli.plan.messages import TimeOrigin, budgets_of, removal_text, time_origin_of
from gracectl.cli.report import (
    Json,
    answer_report,
    instant,
    owner_report,
    protection_report,
    queue_position_report,
    warning_report,
)
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.times import format_time
from gracectl.policy.budgets import failure_of
from gracectl.policy.deadlines import grace_of
from gracectl.policy.fit import WindowFit
from gracectl.policy.forecast import PodForecast
from gracectl.policy.remedies import pod_remedy
from gracectl.policy.scenario import PodRemoval


def plan_report(
    forecast: DrainForecast,
    cluster: ClusterAddress,
    settings: str = "defaults",
    note: str = "",
    fit: WindowFit | None = None,
) -> Json:
    """The report of a forecast. `drained`: when the last node is drained that ever is; null: there are no nodes.

    `unknown`: names of the nodes of which that is unknown; `never`: of the nodes that are never drained.
    `alsoDraining`: other draining nodes, with pods under the same budgets. `note`: that no controller leads, or that
    gracectl is not installed. `settings`: `file PATH`, `configmap NAMESPACE/NAME` or `defaults`. `window`: which nodes
    are drained within it; null: none was given.
    """
    origin, whole, total = time_origin_of(forecast), forecast.whole, forecast.total
    chosen = {node.name for node in forecast.nodes}
    return {
        "cluster": cluster,
        "at": format_time(whole.at),
        "note": note or None,
        "assumptions": {
            "replacementSeconds": whole.assumptions.replacement_seconds,
            "evictionQps": whole.assumptions.rate.qps,
            "evictionBurst": whole.assumptions.rate.burst,
            "settings": settings,
        },
        "drained": answer_report(total.drained, origin.at),
        "unknown": total.unknown,
        "never": total.never,
        "window": None if fit is None else _window(fit, origin),
        "nodes": tuple(_node(node, origin) for node in forecast.nodes),
        "alsoDraining": tuple(node.name for node in whole.nodes if node.name not in chosen),
        "budgets": tuple(_budget(budget, forecast) for budget in budgets_of(forecast)),
    }


def _window(fit: WindowFit, origin: TimeOrigin) -> Json:
    return {
        "opens": format_time(fit.opens),
        "closes": instant(fit.closes),
        "atOnce": fit.at_once,
        "nodes": tuple(
            {"name": each.name, "fits": each.fit.value, "drained": answer_report(each.drained, origin.at)}
            for each in fit.nodes
        ),
    }


def _node(node: NodeDrainForecast, origin: TimeOrigin) -> Json:
    waves = node.forecast.plan.order.waves
    return {
        "name": node.name,
        "terminating": node.is_terminating,
        "owner": owner_report(node.owner, is_assisted=node.is_assisted),
        "deletedAt": format_time(node.forecast.draining.since),
        "deadline": _deadline(node, origin),
        "drained": answer_report(node.forecast.drained, origin.at),
        "warnings": tuple(map(warning_report, node.warnings)),
        "waves": tuple({"name": wave.name, "periodSeconds": wave.period} for wave in waves),
        "pods": tuple(_pod(node, pod, origin) for pod in in_order(node.forecast.pods, origin)),
    }


def _pod(node: NodeDrainForecast, pod: PodForecast, origin: TimeOrigin) -> Json:
    """Report of a pod. `removalWindow`: when it is evicted or deleted, null: it stays, or was before.

    `terminatedWindow`: when it blocks its node no longer, null: it does not. `blockedBy`: what keeps it in the end, if
    a scenario does not remove it.
    """
    entry = pod.entry
    budgets = node.forecast.draining.view.budgets.get(entry.pod.uid, ())
    return {
        "namespace": entry.pod.namespace,
        "name": entry.pod.name,
        "uid": entry.pod.uid,
        "wave": node.forecast.plan.order.waves[entry.wave].name,
        "outcome": entry.outcome.value,
        "reason": entry.reason,
        "until": instant(entry.until),
        "message": removal_text(pod, origin),
        "removalWindow": answer_report(pod.leaves, origin.at),
        "terminatedWindow": answer_report(pod.gone, origin.at),
        "certain": pod.is_certain,
        "methods": tuple(method.value for method in pod.methods),
        "requests": tuple(_request(request, origin) for request in pod.removals),
        "graceSeconds": grace_of(entry.pod),
        "deleteAt": instant(entry.delete_at),
        "deadline": instant(entry.deadline),
        "budgets": tuple("/".join(key) for key in entry.budgets),
        "queuePosition": queue_position_report(origin.positions.get(entry.pod.uid)),
        "protection": protection_report(entry.protection),
        "blockedBy": None if pod.final_entry is None else blocked_by(pod.final_entry),
        "remedy": pod_remedy(pod.final_entry or entry, budgets) or None,
    }


def _deadline(node: NodeDrainForecast, origin: TimeOrigin) -> Json | None:
    if node.deadline is None or node.deadline_origin is None:
        return None
    return {
        "at": format_time(node.deadline.at),
        "atSeconds": _seconds(node.deadline.at, origin),
        "source": node.deadline_origin.source,
        "holder": node.deadline_origin.object,
        "gracePeriodSeconds": node.deadline.grace_period,
    }


def _budget(budget: PodDisruptionBudget, forecast: DrainForecast) -> Json:
    """Report of a budget. `queue`: the pods of all draining nodes that wait for it now, in order."""
    waiting = [each for keys, queue in forecast.whole.queues.items() if budget.key in keys for each in queue]
    return {
        "namespace": budget.namespace,
        "name": budget.name,
        "allowed": budget.disruptions_allowed,
        "healthy": budget.current_healthy,
        "required": budget.desired_healthy,
        "expected": budget.expected_pods,
        "failure": failure_of(budget),
        "queue": tuple({"node": each.node, "pod": "/".join(each.entry.pod.key)} for each in waiting),
    }


def _request(request: PodRemoval, origin: TimeOrigin) -> Json:
    return {
        "at": format_time(request.at),
        "atSeconds": _seconds(request.at, origin),
        "method": request.method.value,
        "graceSeconds": request.grace,
    }


def _seconds(at: float, origin: TimeOrigin) -> float:
    return round(at - origin.at, 3)
