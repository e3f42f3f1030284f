"""The JSON object of `gracectl status -o json`; docs/status.md explains every field."""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.cli.progress import cause_text
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
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.messages import pod_reason, pod_state
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.leadership import Leadership
from gracectl.inspect.progress import BlockingCause, Progress
from gracectl.inspect.status import NodeClaimStatus, NodeStatus, PendingStatus
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.model.times import format_time
from gracectl.policy.deadlines import Deadline


class PodReport(JsonObject, frozen=True, kw_only=True):
    """A pod that blocks its node. `state`: as in the table. `since`: at least since then."""

    namespace: str
    name: str
    uid: str
    state: str
    since: str
    since_seconds: float
    reason: str
    message: str
    remedy: str | None
    until: str | None
    delete_at: str | None
    budgets: tuple[str, ...]
    queue_position: QueuePositionReport | None
    protection: ProtectionReport | None


class DeadlineReport(JsonObject, frozen=True):
    """A deadline. `inSeconds` is negative when it has passed."""

    at: str
    in_seconds: float
    source: str | None
    holder: str | None
    grace_period_seconds: float | None


class PendingReport(JsonObject, frozen=True):
    """A termination that is due and waits. `hold` null: nothing that the cluster shows holds it back."""

    causes: tuple[str, ...]
    hold: str | None


class TraceReport(JsonObject, frozen=True):
    """The trace of a termination. `url` null: the settings name no viewer."""

    id: str
    url: str | None


class NodeReport(JsonObject, frozen=True, kw_only=True):
    """A node. `state`: terminating, maintenance, uncordoning, pending or idle. `pods` null: not listed yet.

    `drained`: the answer of the forecast; null, and `never` null: no pod blocks it, or it is not being drained.
    """

    name: str
    uid: str
    state: str
    since: str | None
    since_seconds: float | None
    step: str
    done: bool
    waits_for: str
    trace: TraceReport | None
    pending: PendingReport | None
    pods_left: int | None
    drained: AnswerReport | None
    never: bool | None
    deadline: DeadlineReport | None
    warnings: tuple[PlanWarningReport, ...]
    pods: tuple[PodReport, ...] | None


class ClaimReport(JsonObject, frozen=True, kw_only=True):
    """A NodeClaim that is terminating, without a node or with one that is not deleted yet."""

    name: str
    nodes: tuple[str, ...]
    since: str
    since_seconds: float
    trace: TraceReport | None
    deadline: DeadlineReport | None
    waits_for: str


class TerminatedNodeReport(JsonObject, frozen=True):
    """A node that was terminated during -w; `afterSeconds` null: its beginning was not seen."""

    name: str
    uid: str
    after_seconds: float | None


class ConnectionLossReport(JsonObject, frozen=True):
    """The connection is lost; the status is that of `since` (null: none was read yet)."""

    since: str | None
    error: str


class ControllerReport(JsonObject, frozen=True):
    """The leader. `state`: active, none or unknown; `lease` null: none was found, or it may not be read."""

    state: str
    lease: str | None
    holder: str | None
    renewed: str | None


class CauseReport(JsonObject, frozen=True, kw_only=True):
    """Cause that blocks pods of several nodes. `reason`: a blocker of the policy, `deadline` or `step`.

    `pods` 0: nodes without pods, which are at that step. `left`: when the last of the pods is gone; null: unknown.
    """

    reason: str
    message: str
    remedy: str | None
    pods: int
    nodes: int
    age_seconds: float
    at_once: int | None
    left: AnswerReport | None
    never: bool


class ProgressReport(JsonObject, frozen=True, kw_only=True):
    """Progress since the first object. `drained`: when the last node is drained that ever is; null: unknown."""

    nodes_done: int
    nodes: int
    pods_done: int
    pods: int
    began: str
    elapsed_seconds: float
    drained: AnswerReport | None
    unknown: tuple[str, ...]
    never: tuple[str, ...]
    forecast_at: str | None
    forecast_age_seconds: float | None
    causes: tuple[CauseReport, ...]


class StatusReport(JsonObject, frozen=True, kw_only=True):
    """The whole object. `settings`: `file PATH`, `configmap NAMESPACE/NAME` or `defaults`.

    `longest_protection_seconds` null: no maximum.
    """

    cluster: ClusterReport
    at: str
    settings: str
    longest_protection_seconds: float | None
    connection_loss: ConnectionLossReport | None
    controller: ControllerReport
    progress: ProgressReport | None
    nodes: tuple[NodeReport, ...]
    claims: tuple[ClaimReport, ...]
    terminated: tuple[TerminatedNodeReport, ...]


def status_report(frame: StatusFrame, settings: str = "defaults", *, with_pods: bool = True) -> StatusReport:
    """The report of a frame. `settings`: where they are from. `with_pods` False: `pods` of each node is null."""
    return StatusReport(
        cluster=cluster_report(frame.cluster),
        at=format_time(frame.at),
        settings=settings,
        longest_protection_seconds=frame.longest_protection,
        connection_loss=_connection_loss(frame.connection_loss),
        controller=_controller(frame.leadership),
        progress=None if frame.progress is None else _progress(frame.progress, frame.at),
        nodes=tuple(_node(node, frame, with_pods=with_pods) for node in frame.nodes),
        claims=tuple(_claim(claim, frame) for claim in frame.claims),
        terminated=tuple(TerminatedNodeReport(each.name, each.uid, each.after_seconds) for each in frame.terminated),
    )


def _trace(trace_id: str | None, frame: StatusFrame) -> TraceReport | None:
    return None if trace_id is None else TraceReport(trace_id, frame.tracing.link(trace_id))


def _node(node: NodeStatus, frame: StatusFrame, *, with_pods: bool) -> NodeReport:
    at = frame.at
    return NodeReport(
        name=node.name,
        uid=node.uid,
        state=node.state.value,
        since=instant(node.since),
        since_seconds=None if node.since is None else round(at - node.since, 3),
        step=node.step,
        done=node.is_done,
        waits_for=node.waits_for,
        trace=_trace(node.trace_id, frame),
        pending=_pending(node.pending),
        pods_left=None if node.pods is None else len(node.pods),
        drained=answer_report(node.drained, at),
        never=None if node.drained is None else node.is_never_drained,
        deadline=_deadline(node.deadline, at, node),
        warnings=tuple(map(warning_report, node.warnings)),
        pods=None if node.pods is None or not with_pods else pod_reports(node.pods, at),
    )


def pod_reports(pods: Iterable[PodStatus], at: float) -> tuple[PodReport, ...]:
    """The reports of the pods of a node at `at`."""
    return tuple(_pod(pod, at) for pod in pods)


def _pod(pod: PodStatus, at: float) -> PodReport:
    entry = pod.entry
    return PodReport(
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        uid=entry.pod.uid,
        state=pod_state(pod),
        since=format_time(pod.since),
        since_seconds=round(at - pod.since, 3),
        reason=entry.reason,
        message=pod_reason(pod, at),
        remedy=pod.remedy or None,
        until=instant(entry.until),
        delete_at=instant(entry.delete_at),
        budgets=tuple("/".join(key) for key in entry.budgets),
        queue_position=queue_position_report(pod.queue_position),
        protection=protection_report(entry.protection),
    )


def _pending(pending: PendingStatus | None) -> PendingReport | None:
    return None if pending is None else PendingReport(tuple(pending.causes), pending.hold or None)


def _deadline(deadline: Deadline | None, at: float, node: NodeStatus | None = None) -> DeadlineReport | None:
    if deadline is None:
        return None
    origin = None if node is None else node.deadline_origin
    return DeadlineReport(
        at=format_time(deadline.at),
        in_seconds=round(deadline.at - at, 3),
        source=None if origin is None else origin.source,
        holder=None if origin is None else origin.object,
        grace_period_seconds=deadline.grace_period,
    )


def _progress(progress: Progress, at: float) -> ProgressReport:
    return ProgressReport(
        nodes_done=progress.nodes_done,
        nodes=progress.nodes,
        pods_done=progress.pods_done,
        pods=progress.pods,
        began=format_time(progress.began),
        elapsed_seconds=round(at - progress.began, 3),
        drained=answer_report(progress.total.drained, at),
        unknown=progress.total.unknown,
        never=progress.total.never,
        forecast_at=instant(progress.forecast_at),
        forecast_age_seconds=None if progress.forecast_at is None else max(round(at - progress.forecast_at, 3), 0.0),
        causes=tuple(_cause(cause, at) for cause in progress.causes),
    )


def _cause(cause: BlockingCause, at: float) -> CauseReport:
    blocker = None if cause.example is None else cause.example.entry.blocker
    return CauseReport(
        reason="step" if cause.example is None else "deadline" if blocker is None else blocker.value,
        message=cause_text(cause, at),
        remedy=cause.remedy or None,
        pods=cause.pods,
        nodes=cause.nodes,
        age_seconds=round(cause.age, 3),
        at_once=cause.at_once,
        left=answer_report(cause.left, at),
        never=cause.is_never,
    )


def _claim(claim: NodeClaimStatus, frame: StatusFrame) -> ClaimReport:
    at = frame.at
    return ClaimReport(
        name=claim.name,
        nodes=claim.nodes,
        since=format_time(claim.since),
        since_seconds=round(at - claim.since, 3),
        trace=_trace(claim.trace_id, frame),
        deadline=_deadline(claim.deadline, at),
        waits_for=claim.waits_for,
    )


def _controller(leadership: Leadership) -> ControllerReport:
    return ControllerReport(
        state=leadership.state.value,
        lease=leadership.lease or None,
        holder=leadership.holder or None,
        renewed=instant(leadership.renewed),
    )


def _connection_loss(loss: ConnectionLoss | None) -> ConnectionLossReport | None:
    return None if loss is None else ConnectionLossReport(instant(loss.since), loss.error)
