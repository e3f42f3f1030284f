"""Events about protected pods that block a drain: until when, and when their protection has ended.

Called with every plan of a drain. Invariants: nothing here blocks; each end of a protection makes one Event on its pod;
node and claim get one Event for all pods, so that a crowded node does not crowd out other Events.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.invalid_annotations import report_invalid_annotation
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.events import Subject
from gracectl.kube.resources import PODS
from gracectl.model.names import EventReason
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.plan import Plan
from gracectl.policy.protected_pods import ProtectedPod, ProtectionEnd, update_protection
from gracectl.policy.protection import invalid_annotation

logger = logging.getLogger(__name__)


def report_protection(context: StepContext, state: NodeState, plan: Plan) -> None:
    """Take over the protected pods of this plan, and emit Events on what has changed since the plan before."""
    now, before = context.clock.now(), state.protected_pods
    update = update_protection(before, plan, now, state.started)
    known_values = state.invalid_annotations
    state.protected_pods, state.invalid_annotations = update.protected_pods, _invalid_annotations(plan)
    for ended in update.ended:
        pod = ended.protected
        context.statistics.protection_durations.note(pod.protection.kind, ended.how, now - pod.since)
    if before is None and state.is_resumed:
        return  # emitted before the restart
    elapsed = [each.protected for each in update.ended if each.how is ProtectionEnd.ELAPSED]
    elapsed = [each for each in elapsed if each.pod.uid not in update.protected_pods]
    # The node first: its Events are few, and those of its pods must not crowd them out.
    if elapsed:
        _emit_elapsed(context, state, elapsed)
    if last_end(update.protected_pods.values()) not in (None, last_end((before or {}).values())):
        _emit_summary(context, state, plan)
    for each in elapsed:
        message = f"no longer blocks the drain of node {state.node.name}: was {_until(each)}; evicted as budgets allow"
        _emit_on_pod(context, each, EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message)
    for each in update.begun:
        message = f"blocks the drain of node {state.node.name}: {_explain(each, plan)}"
        _emit_on_pod(context, each, EventReason.DO_NOT_DISRUPT_UNTIL, message)
    for entry in plan.left:
        value = state.invalid_annotations.get(entry.pod.uid)
        if value is not None and value != known_values.get(entry.pod.uid):
            report_invalid_annotation(context, entry.pod)


def _invalid_annotations(plan: Plan) -> dict[str, str]:
    running = (entry.pod for entry in plan.left if entry.pod.deletion_timestamp is None)
    return {pod.uid: value for pod in running if (value := invalid_annotation(pod)) is not None}


def last_end(pods: Iterable[ProtectedPod]) -> float | None:
    """The instant at which the last protection ends: infinity if one has no known end, None without any."""
    return max((_end(each) for each in pods if not each.is_leaving), default=None)


def _end(pod: ProtectedPod) -> float:
    return math.inf if pod.protection.until is None else pod.protection.until


def _emit_summary(context: StepContext, state: NodeState, plan: Plan) -> None:
    pods = list((state.protected_pods or {}).values())
    message = summary(pods)
    if plan.deadline is not None:
        message += f"; node deadline {format_time(plan.deadline)}"
    emit_event(context, state.objects, EventReason.DO_NOT_DISRUPT_UNTIL, message, dedup_key=str(last_end(pods)))


def summary(pods: Sequence[ProtectedPod]) -> str:
    """`3 pods are protected, the last until …: shop/a, shop/b, shop/c`; the one that is protected longest first."""
    pods = sorted((each for each in pods if not each.is_leaving), key=lambda each: (-_end(each), each.pod.key))
    endless = sum(each.protection.until is None for each in pods)
    if endless:
        number = "" if len(pods) == 1 else "all " if endless == len(pods) else f"{endless} "
        until = f"{number}without a known end"
    else:
        until = f"{'' if len(pods) == 1 else 'the last '}until {format_time(_end(pods[0]))}"
    return f"{_count(pods)} protected, {until}: {_names([each.pod for each in pods])}"


def _explain(pod: ProtectedPod, plan: Plan) -> str:
    """`protected by … until …; evicted after that as budgets allow; deleted at … at the latest (node deadline …)`."""
    protection, by_deadline = pod.protection, ""
    if pod.delete_at is not None and plan.deadline is not None:
        by_deadline = f"; deleted at {format_time(pod.delete_at)} at the latest"
        by_deadline += f" (node deadline {format_time(plan.deadline)})"
    if protection.until is not None:
        is_evicted_first = pod.delete_at is None or pod.delete_at > protection.until
        return f"{_until(pod)}{'; evicted after that as budgets allow' if is_evicted_first else ''}{by_deadline}"
    if protection.lasting == "time":
        return f"{protection.description}, which counts from its start; not started yet{by_deadline}"
    extent = ", which blocks the whole node" if protection.holds_node else ""
    return f"{protection.description}{extent}; stays until you remove that{by_deadline}"


def _until(pod: ProtectedPod) -> str:
    protection = pod.protection
    assert protection.until is not None
    return f"{protection.description} until {format_time(protection.until)}{protection.limit_note}"


def _emit_elapsed(context: StepContext, state: NodeState, elapsed: Sequence[ProtectedPod]) -> None:
    pods = _names([each.pod for each in elapsed])
    message = f"{_count(elapsed)} no longer protected, evicted as budgets allow: {pods}"
    if left := [each for each in (state.protected_pods or {}).values() if not each.is_leaving]:
        message += f"; {summary(left)}"
    dedup_key = f"{elapsed[0].pod.uid} {elapsed[0].protection.until}"
    emit_event(context, state.objects, EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message, dedup_key=dedup_key)


def _emit_on_pod(context: StepContext, protected: ProtectedPod, reason: EventReason, message: str) -> None:
    pod, dedup_key = protected.pod, " ".join(map(str, protected.until))
    logger.info("pod %s", message, extra={"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node_name})
    context.recorder.record(Subject.of(PODS, pod), reason, message, dedup_key=dedup_key)


def _count(pods: Sequence[object]) -> str:
    return "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"


def _names(pods: Sequence[Pod]) -> str:
    """The first three, as in the condition `Drained`."""
    return listed([f"{pod.namespace}/{pod.name}" for pod in pods])
