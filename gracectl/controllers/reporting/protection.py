"""What people are told of protected pods while their node is drained: whom it waits for, until when, and that it is
over.

Called with every plan of a drain. Invariants: nothing here blocks; each pod hears of each end of its protection once;
node and claim hear of all pods in one Event, so that a crowded node does not crowd out other news.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from gracectl.controllers.pipeline.state import NodeState
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.controllers.reporting.events import emit_event
from gracectl.controllers.reporting.invalid_annotations import report_invalid_annotation
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
    """Remember who guards the node now, and tell people what is new since the plan before."""
    now, before = context.clock.now(), state.protected_pods
    changes = update_protection(before, plan, now, state.started)
    known_before = state.invalid_annotations
    state.protected_pods, state.invalid_annotations = changes.protected_pods, _invalid_annotations(plan)
    for ended in changes.ended:
        context.statistics.protection_durations.note(
            ended.protected.protection.kind, ended.how, now - ended.protected.since
        )
    if before is None and state.is_resumed:
        return  # our predecessor has told all that
    elapsed = [each.protected for each in changes.ended if each.how is ProtectionEnd.ELAPSED]
    elapsed = [protected for protected in elapsed if protected.pod.uid not in changes.protected_pods]
    # The node first: it has few Events, which those of its pods must not crowd out.
    if elapsed:
        _tell_of_elapsed(context, state, elapsed)
    if last_end(changes.protected_pods.values()) not in (None, last_end((before or {}).values())):
        _summarise(context, state, plan)
    for protected in elapsed:
        message = f"{_was(protected)}, and no longer keeps {_node(state)}: it is evicted as its budget allows"
        _tell(context, protected, EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message)
    for protected in changes.begun:
        message = f"keeps {_node(state)}: {_is(protected, plan)}"
        _tell(context, protected, EventReason.DO_NOT_DISRUPT_UNTIL, message)
    for entry in plan.left:
        value = state.invalid_annotations.get(entry.pod.uid)
        if value is not None and value != known_before.get(entry.pod.uid):
            report_invalid_annotation(context, entry.pod)


def _invalid_annotations(plan: Plan) -> dict[str, str]:
    running = (entry.pod for entry in plan.left if entry.pod.deletion_timestamp is None)
    return {pod.uid: value for pod in running if (value := invalid_annotation(pod)) is not None}


def last_end(protected_pods: Iterable[ProtectedPod]) -> float | None:
    """The instant at which the last of the protections ends: infinity if that is not known, None without any."""
    return max((_end(protected) for protected in protected_pods if not protected.is_leaving), default=None)


def _end(protected: ProtectedPod) -> float:
    return float("inf") if protected.protection.until is None else protected.protection.until


def _summarise(context: StepContext, state: NodeState, plan: Plan) -> None:
    message = summary(list((state.protected_pods or {}).values()))
    if plan.deadline is not None:
        message += f"; the node ends by {format_time(plan.deadline)}"
    news = str(last_end((state.protected_pods or {}).values()))
    emit_event(context, state.objects, EventReason.DO_NOT_DISRUPT_UNTIL, message, news=news)


def summary(protected_pods: Sequence[ProtectedPod]) -> str:
    """`3 pods are protected, the last of them until …: shop/a, shop/b, shop/c`; whose end is last comes first."""
    protected_pods = sorted(
        (each for each in protected_pods if not each.is_leaving), key=lambda each: (-_end(each), each.pod.key)
    )
    endless = sum(each.protection.until is None for each in protected_pods)
    if endless:
        who = (
            ""
            if len(protected_pods) == 1
            else "all of them "
            if endless == len(protected_pods)
            else f"{endless} of them "
        )
        until = f"{who}without a known end"
    else:
        who = "" if len(protected_pods) == 1 else "the last of them "
        until = f"{who}until {format_time(_end(protected_pods[0]))}"
    return f"{_count(protected_pods)} protected, {until}: {_names([each.pod for each in protected_pods])}"


def _is(protected: ProtectedPod, plan: Plan) -> str:
    """What protects the pod, what ends that, and what comes then."""
    protection, by_deadline = protected.protection, _by_deadline(protected, plan)
    if protection.until is not None:
        text = f"{protection.words} until {format_time(protection.until)}{protection.limit}"
        is_first = protected.delete_at is None or protected.delete_at > protection.until
        return f"{text}{', then it is evicted as its budget allows' if is_first else ''}{by_deadline}"
    if protection.lasting == "time":
        return f"{protection.words}, which counts from its start, and it has not started yet{by_deadline}"
    extent = ", which holds the whole node" if protection.holds_node else ""
    return f"{protection.words}{extent}; it stays until somebody takes that off{by_deadline}"


def _by_deadline(protected: ProtectedPod, plan: Plan) -> str:
    if protected.delete_at is None or plan.deadline is None:
        return ""
    by = format_time(plan.deadline)
    return f"; it is deleted at {format_time(protected.delete_at)} at the latest, as the node must end by {by}"


def _tell_of_elapsed(context: StepContext, state: NodeState, elapsed: Sequence[ProtectedPod]) -> None:
    pods = [protected.pod for protected in elapsed]
    their = "its budget allows" if len(pods) == 1 else "their budgets allow"
    message = f"{_count(pods)} no longer protected, and evicted as {their}: {_names(pods)}"
    if left := [protected for protected in (state.protected_pods or {}).values() if not protected.is_leaving]:
        message += f"; {summary(left)}"
    news = f"{elapsed[0].pod.uid} {elapsed[0].protection.until}"
    emit_event(context, state.objects, EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message, news=news)


def _was(protected: ProtectedPod) -> str:
    assert protected.protection.until is not None
    return (
        f"was {protected.protection.words} until {format_time(protected.protection.until)}{protected.protection.limit}"
    )


def _tell(context: StepContext, protected: ProtectedPod, reason: EventReason, message: str) -> None:
    pod, news = protected.pod, " ".join(map(str, protected.until))
    logger.info("pod %s", message, extra={"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node_name})
    context.recorder.record(Subject.of(PODS, pod), reason, message, news=news)


def _node(state: NodeState) -> str:
    return f"node {state.node.name}, which {state.fate}"


def _count(pods: Sequence[object]) -> str:
    return "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"


def _names(pods: Sequence[Pod]) -> str:
    """The first three, as in the condition `Drained`."""
    return listed([f"{pod.namespace}/{pod.name}" for pod in pods])
