"""The JSON object of `gracectl plan -o json`: all that the table says, and more; docs/plan.md explains every field."""

from __future__ import annotations

from gracectl.cli.format import blocked_by
from gracectl.cli.plan.groups import in_order
from gracectl.cli.plan.messages import TimeOrigin, budgets_of, removal_text, time_origin_of
from gracectl.cli.report import (
    AnswerReport,
    ClusterReport,
    JsonObject,
    PlanWarningReport,
    ProtectionReport,
    QueuePositionReport,
    answer_report,
    cluster_report,
    instant,
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
from gracectl.policy.forecast import PodForecast
from gracectl.policy.remedies import pod_remedy
from gracectl.policy.simulation import PodRemoval


class RequestReport(JsonObject, frozen=True):
    """A request to remove a pod. `method`: evicted or deleted; `graceSeconds`: granted grace."""

    at: str
    at_seconds: float
    method: str
    grace_seconds: int


class PodReport(JsonObject, frozen=True, kw_only=True):
    """A pod. `removalWindow`: when it is evicted or deleted, null: it stays, or was before; `terminatedWindow`: when it
    blocks its node no longer, null: it does not. `blockedBy`: what keeps it in the end, if a scenario does not remove
    it.
    """

    namespace: str
    name: str
    uid: str
    wave: str
    outcome: str
    reason: str
    until: str | None
    message: str
    removal_window: AnswerReport | None
    terminated_window: AnswerReport | None
    certain: bool
    methods: tuple[str, ...]
    requests: tuple[RequestReport, ...]
    grace_seconds: int
    delete_at: str | None
    deadline: str | None
    budgets: tuple[str, ...]
    queue_position: QueuePositionReport | None
    protection: ProtectionReport | None
    blocked_by: str | None
    remedy: str | None


class DeadlineReport(JsonObject, frozen=True):
    """A deadline. `source`: claim, nodeGroup or annotation; `holder`: which one has it."""

    at: str
    at_seconds: float
    source: str
    holder: str
    grace_period_seconds: float | None


class WaveReport(JsonObject, frozen=True):
    """Pods that leave together, the first ones first."""

    name: str
    period_seconds: float


class NodeReport(JsonObject, frozen=True, kw_only=True):
    """A node. `deletedAt`: when it was deleted, or is assumed to be."""

    name: str
    terminating: bool
    deleted_at: str
    deadline: DeadlineReport | None
    drained: AnswerReport | None
    warnings: tuple[PlanWarningReport, ...]
    waves: tuple[WaveReport, ...]
    pods: tuple[PodReport, ...]


class QueuedPodReport(JsonObject, frozen=True):
    """A pod that waits for a budget."""

    node: str
    pod: str


class BudgetReport(JsonObject, frozen=True, kw_only=True):
    """A budget over pods of these nodes. `queue`: the pods of all draining nodes that wait for it now, in order."""

    namespace: str
    name: str
    allowed: int
    healthy: int
    required: int
    expected: int
    failure: str | None
    queue: tuple[QueuedPodReport, ...]


class AssumptionsReport(JsonObject, frozen=True):
    """Assumptions in addition to the cluster's objects. `settings`: `file PATH`, `configmap NAMESPACE/NAME` or
    `defaults`."""

    replacement_seconds: float
    eviction_qps: float
    eviction_burst: int
    settings: str


class PlanReport(JsonObject, frozen=True, kw_only=True):
    """The whole object. `drained`: when the last node is drained that ever is; null: there are no nodes.

    `unknown`: names of the nodes of which that is unknown; `never`: of the nodes that are never drained.
    `alsoDraining`: other draining nodes, with pods under the same budgets. `note`: that no controller leads, or that
    gracectl is not installed.
    """

    cluster: ClusterReport
    at: str
    note: str | None
    assumptions: AssumptionsReport
    drained: AnswerReport | None
    unknown: tuple[str, ...]
    never: tuple[str, ...]
    nodes: tuple[NodeReport, ...]
    also_draining: tuple[str, ...]
    budgets: tuple[BudgetReport, ...]


def plan_report(
    forecast: DrainForecast, cluster: ClusterAddress, settings: str = "defaults", note: str = ""
) -> PlanReport:
    """The report of a forecast. `settings`: where they are from."""
    origin, whole, total = time_origin_of(forecast), forecast.whole, forecast.total
    chosen = {node.name for node in forecast.nodes}
    return PlanReport(
        cluster=cluster_report(cluster),
        at=format_time(whole.at),
        note=note or None,
        assumptions=AssumptionsReport(
            replacement_seconds=whole.assumptions.replacement_seconds,
            eviction_qps=whole.assumptions.rate.qps,
            eviction_burst=whole.assumptions.rate.burst,
            settings=settings,
        ),
        drained=answer_report(total.drained, origin.at),
        unknown=total.unknown,
        never=total.never,
        nodes=tuple(_node(node, origin) for node in forecast.nodes),
        also_draining=tuple(node.name for node in whole.nodes if node.name not in chosen),
        budgets=tuple(_budget(budget, forecast) for budget in budgets_of(forecast)),
    )


def _node(node: NodeDrainForecast, origin: TimeOrigin) -> NodeReport:
    waves = node.forecast.plan.order.waves
    return NodeReport(
        name=node.name,
        terminating=node.is_terminating,
        deleted_at=format_time(node.forecast.draining.since),
        deadline=_deadline(node, origin),
        drained=answer_report(node.forecast.drained, origin.at),
        warnings=tuple(map(warning_report, node.warnings)),
        waves=tuple(WaveReport(wave.name, wave.period) for wave in waves),
        pods=tuple(_pod(node, pod, origin) for pod in in_order(node.forecast.pods, origin)),
    )


def _pod(node: NodeDrainForecast, pod: PodForecast, origin: TimeOrigin) -> PodReport:
    entry = pod.entry
    budgets = node.forecast.draining.view.budgets.get(entry.pod.uid, ())
    return PodReport(
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        uid=entry.pod.uid,
        wave=node.forecast.plan.order.waves[entry.wave].name,
        outcome=entry.outcome.value,
        reason=entry.reason,
        until=instant(entry.until),
        message=removal_text(pod, origin),
        removal_window=answer_report(pod.leaves, origin.at),
        terminated_window=answer_report(pod.gone, origin.at),
        certain=pod.is_certain,
        methods=tuple(method.value for method in pod.methods),
        requests=tuple(_request(request, origin) for request in pod.removals),
        grace_seconds=grace_of(entry.pod),
        delete_at=instant(entry.delete_at),
        deadline=instant(entry.deadline),
        budgets=tuple("/".join(key) for key in entry.budgets),
        queue_position=queue_position_report(origin.positions.get(entry.pod.uid)),
        protection=protection_report(entry.protection),
        blocked_by=None if pod.final_entry is None else blocked_by(pod.final_entry),
        remedy=pod_remedy(pod.final_entry or entry, budgets) or None,
    )


def _deadline(node: NodeDrainForecast, origin: TimeOrigin) -> DeadlineReport | None:
    if node.deadline is None or node.deadline_origin is None:
        return None
    return DeadlineReport(
        at=format_time(node.deadline.at),
        at_seconds=_seconds(node.deadline.at, origin),
        source=node.deadline_origin.source,
        holder=node.deadline_origin.object,
        grace_period_seconds=node.deadline.grace_period,
    )


def _budget(budget: PodDisruptionBudget, forecast: DrainForecast) -> BudgetReport:
    waiting = [each for keys, queue in forecast.whole.queues.items() if budget.key in keys for each in queue]
    return BudgetReport(
        namespace=budget.namespace,
        name=budget.name,
        allowed=budget.disruptions_allowed,
        healthy=budget.current_healthy,
        required=budget.desired_healthy,
        expected=budget.expected_pods,
        failure=failure_of(budget),
        queue=tuple(QueuedPodReport(each.node, "/".join(each.entry.pod.key)) for each in waiting),
    )


def _request(request: PodRemoval, origin: TimeOrigin) -> RequestReport:
    return RequestReport(format_time(request.at), _seconds(request.at, origin), request.method.value, request.grace)


def _seconds(at: float, origin: TimeOrigin) -> float:
    return round(at - origin.at, 3)
