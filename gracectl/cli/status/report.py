"""The JSON object of `gracectl status -o json`; docs/status.md explains every field."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gracectl.cli.progress import cause_text
from gracectl.cli.report import (
    Json,
    answer_report,
    instant,
    owner_report,
    protection_report,
    queue_position_report,
    warning_report,
)
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.messages import pod_reason, pod_state
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.leadership import Leadership
from gracectl.inspect.pending import PendingStatus
from gracectl.inspect.progress import BlockingCause, Progress
from gracectl.inspect.status import NodeClaimStatus, NodeStatus
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.model.times import format_time
from gracectl.policy.deadlines import Deadline
from gracectl.policy.freeze import Freeze
from gracectl.policy.plan import Outcome


def status_report(
    frame: StatusFrame, settings: str = "defaults", of_node: Callable[[NodeStatus], Json] | None = None
) -> Json:
    """The report of a frame. `settings`: `file PATH`, `configmap NAMESPACE/NAME` or `defaults`.

    `of_node`: reports a node; None: with its pods. `longestProtectionSeconds` null: no maximum.
    """
    of_node = of_node or partial(_with_pods, frame)
    return {
        "cluster": frame.cluster,
        "at": format_time(frame.at),
        "settings": settings,
        "longestProtectionSeconds": frame.longest_protection,
        "connectionLoss": _connection_loss(frame.connection_loss),
        "controller": _controller(frame.leadership),
        "freeze": _freeze(frame.freeze),
        "progress": None if frame.progress is None else _progress(frame.progress, frame.at),
        "nodes": tuple(map(of_node, frame.nodes)),
        "claims": tuple(_claim(claim, frame) for claim in frame.claims),
        "terminated": tuple(
            {"name": each.name, "uid": each.uid, "afterSeconds": each.after_seconds} for each in frame.terminated
        ),
    }


def _trace(trace_id: str | None, frame: StatusFrame) -> Json | None:
    return None if trace_id is None else {"id": trace_id, "url": frame.tracing.link(trace_id)}


def _with_pods(frame: StatusFrame, node: NodeStatus) -> Json:
    pods = None if node.pods is None else [pod_report(pod, frame.at) for pod in node.pods]
    return node_report(node, frame) | {"pods": pods}


def node_report(node: NodeStatus, frame: StatusFrame) -> Json:
    """Report of a node without its pods: `pods` is null.

    `state`: terminating, maintenance, uncordoning, pending or idle. `podsLeft` null: not listed yet.
    `drained`: the answer of the forecast; null, and `never` null: no pod blocks it, or it is not being drained.
    """
    at = frame.at
    return {
        "name": node.name,
        "uid": node.uid,
        "state": node.state.value,
        "since": instant(node.since),
        "sinceSeconds": None if node.since is None else round(at - node.since, 3),
        "owner": owner_report(node.owner, is_assisted=node.is_assisted),
        "nodeDrain": node.campaign or None,
        "step": node.step,
        "done": node.is_done,
        "waitsFor": node.waits_for,
        "trace": _trace(node.trace_id, frame),
        "pending": _pending(node.pending),
        "podsLeft": None if node.pods is None else len(node.pods),
        "drained": answer_report(node.drained, at),
        "never": None if node.drained is None else node.is_never_drained,
        "deadline": _deadline(node.deadline, at, node),
        "warnings": tuple(map(warning_report, node.warnings)),
        "firstCutAt": instant(_first_cut(node)),
        "pods": None,
    }


def _first_cut(node: NodeStatus) -> float | None:
    """When the deadline deletes the first pod that a budget or protection holds (Unix seconds)."""
    held = (pod.entry for pod in node.pods or () if pod.entry.outcome in (Outcome.BLOCKED, Outcome.PROTECTED))
    return min((entry.delete_at for entry in held if entry.delete_at is not None), default=None)


def pod_report(pod: PodStatus, at: float) -> Json:
    """Report of a pod that blocks its node. `state`: as in the table. `since`: at least since then."""
    entry = pod.entry
    return {
        "namespace": entry.pod.namespace,
        "name": entry.pod.name,
        "uid": entry.pod.uid,
        "state": pod_state(pod),
        "since": format_time(pod.since),
        "sinceSeconds": round(at - pod.since, 3),
        "reason": entry.reason,
        "message": pod_reason(pod, at),
        "remedy": pod.remedy or None,
        "until": instant(entry.until),
        "deleteAt": instant(entry.delete_at),
        "budgets": tuple("/".join(key) for key in entry.budgets),
        "queuePosition": queue_position_report(pod.queue_position),
        "protection": protection_report(entry.protection),
    }


def _pending(pending: PendingStatus | None) -> Json | None:
    return None if pending is None else {"causes": tuple(pending.causes), "hold": pending.hold or None}


def _deadline(deadline: Deadline | None, at: float, node: NodeStatus | None = None) -> Json | None:
    if deadline is None:
        return None
    origin = None if node is None else node.deadline_origin
    return {
        "at": format_time(deadline.at),
        "inSeconds": round(deadline.at - at, 3),
        "source": None if origin is None else origin.source,
        "holder": None if origin is None else origin.object,
        "gracePeriodSeconds": deadline.grace_period,
    }


def _progress(progress: Progress, at: float) -> Json:
    return {
        "nodesDone": progress.nodes_done,
        "nodes": progress.nodes,
        "podsDone": progress.pods_done,
        "pods": progress.pods,
        "began": format_time(progress.began),
        "elapsedSeconds": round(at - progress.began, 3),
        "drained": answer_report(progress.total.drained, at),
        "unknown": progress.total.unknown,
        "never": progress.total.never,
        "forecastAt": instant(progress.forecast_at),
        "forecastAgeSeconds": None if progress.forecast_at is None else max(round(at - progress.forecast_at, 3), 0.0),
        "causes": tuple(_cause(cause, at) for cause in progress.causes),
    }


def _cause(cause: BlockingCause, at: float) -> Json:
    """Report of a cause that blocks pods of several nodes. `reason`: a blocker of the policy, `deadline` or `step`.

    `pods` 0: nodes without pods, which are at that step. `left`: when the last of the pods is gone; null: unknown.
    """
    blocker = None if cause.example is None else cause.example.entry.blocker
    return {
        "reason": "step" if cause.example is None else "deadline" if blocker is None else blocker.value,
        "message": cause_text(cause, at),
        "remedy": cause.remedy or None,
        "pods": cause.pods,
        "nodes": cause.nodes,
        "ageSeconds": round(cause.age, 3),
        "atOnce": cause.at_once,
        "left": answer_report(cause.left, at),
        "never": cause.is_never,
    }


def _claim(claim: NodeClaimStatus, frame: StatusFrame) -> Json:
    at = frame.at
    return {
        "name": claim.name,
        "nodes": claim.nodes,
        "since": format_time(claim.since),
        "sinceSeconds": round(at - claim.since, 3),
        "trace": _trace(claim.trace_id, frame),
        "deadline": _deadline(claim.deadline, at),
        "waitsFor": claim.waits_for,
    }


def _controller(leadership: Leadership) -> Json:
    return {
        "state": leadership.state.value,
        "lease": leadership.lease or None,
        "holder": leadership.holder or None,
        "renewed": instant(leadership.renewed),
    }


def _freeze(freeze: Freeze | None) -> Json | None:
    if freeze is None:
        return None
    return {
        "until": instant(freeze.until),
        "reason": freeze.reason or None,
        "by": freeze.by or None,
        "message": str(freeze),
    }


def _connection_loss(loss: ConnectionLoss | None) -> Json | None:
    return None if loss is None else {"since": instant(loss.since), "error": loss.error}
