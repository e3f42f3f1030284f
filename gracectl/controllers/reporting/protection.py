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
from gracectl.controllers.reporting.events import announce
from gracectl.controllers.reporting.invalid_annotations import tell_of_misspelling
from gracectl.kube.events import Subject
from gracectl.kube.resources import PODS
from gracectl.model.names import EventReason
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.plan import Plan
from gracectl.policy.protected_pods import ProtectedPod, ProtectionEnd, turn
from gracectl.policy.protection import misspelt

logger = logging.getLogger(__name__)


def tell_of_protection(context: StepContext, termination: NodeState, decision: Plan) -> None:
    """Remember who guards the node now, and tell people what is new since the plan before."""
    now, before = context.clock.now(), termination.guards
    changes = turn(before, decision, now, termination.started)
    misspelt_before = termination.misspelt
    termination.guards, termination.misspelt = changes.guards, _misspelt(decision)
    for ended in changes.ended:
        context.tallies.guard_times.note(ended.guard.protection.kind, ended.how, now - ended.guard.since)
    if before is None and termination.is_resumed:
        return  # our predecessor has told all that
    elapsed = [each.guard for each in changes.ended if each.how is ProtectionEnd.ELAPSED]
    elapsed = [guard for guard in elapsed if guard.pod.uid not in changes.guards]
    # The node first: it has few Events, which those of its pods must not crowd out.
    if elapsed:
        _tell_of_elapsed(context, termination, elapsed)
    if last_end(changes.guards.values()) not in (None, last_end((before or {}).values())):
        _summarise(context, termination, decision)
    for guard in elapsed:
        message = f"{_was(guard)}, and no longer keeps {_node(termination)}: it is evicted as its budget allows"
        _tell(context, guard, EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message)
    for guard in changes.begun:
        message = f"keeps {_node(termination)}: {_is(guard, decision)}"
        _tell(context, guard, EventReason.DO_NOT_DISRUPT_UNTIL, message)
    for entry in decision.left:
        value = termination.misspelt.get(entry.pod.uid)
        if value is not None and value != misspelt_before.get(entry.pod.uid):
            tell_of_misspelling(context, entry.pod)


def _misspelt(decision: Plan) -> dict[str, str]:
    running = (entry.pod for entry in decision.left if entry.pod.deletion_timestamp is None)
    return {pod.uid: value for pod in running if (value := misspelt(pod)) is not None}


def last_end(guards: Iterable[ProtectedPod]) -> float | None:
    """The instant at which the last of the protections ends: infinity if that is not known, None without any."""
    return max((_end(guard) for guard in guards if not guard.is_leaving), default=None)


def _end(guard: ProtectedPod) -> float:
    return float("inf") if guard.protection.until is None else guard.protection.until


def _summarise(context: StepContext, termination: NodeState, decision: Plan) -> None:
    message = summary(list((termination.guards or {}).values()))
    if decision.deadline is not None:
        message += f"; the node ends by {format_time(decision.deadline)}"
    news = str(last_end((termination.guards or {}).values()))
    announce(context, termination.objects, EventReason.DO_NOT_DISRUPT_UNTIL, message, news=news)


def summary(guards: Sequence[ProtectedPod]) -> str:
    """`3 pods are protected, the last of them until …: shop/a, shop/b, shop/c`; whose end is last comes first."""
    guards = sorted((each for each in guards if not each.is_leaving), key=lambda each: (-_end(each), each.pod.key))
    endless = sum(each.protection.until is None for each in guards)
    if endless:
        who = "" if len(guards) == 1 else "all of them " if endless == len(guards) else f"{endless} of them "
        until = f"{who}without a known end"
    else:
        who = "" if len(guards) == 1 else "the last of them "
        until = f"{who}until {format_time(_end(guards[0]))}"
    return f"{_count(guards)} protected, {until}: {_names([each.pod for each in guards])}"


def _is(guard: ProtectedPod, decision: Plan) -> str:
    """What protects the pod, what ends that, and what comes then."""
    protection, by_deadline = guard.protection, _by_deadline(guard, decision)
    if protection.until is not None:
        text = f"{protection.words} until {format_time(protection.until)}{protection.limit}"
        is_first = guard.delete_at is None or guard.delete_at > protection.until
        return f"{text}{', then it is evicted as its budget allows' if is_first else ''}{by_deadline}"
    if protection.lasting == "time":
        return f"{protection.words}, which counts from its start, and it has not started yet{by_deadline}"
    extent = ", which holds the whole node" if protection.holds_node else ""
    return f"{protection.words}{extent}; it stays until somebody takes that off{by_deadline}"


def _by_deadline(guard: ProtectedPod, decision: Plan) -> str:
    if guard.delete_at is None or decision.deadline is None:
        return ""
    by = format_time(decision.deadline)
    return f"; it is deleted at {format_time(guard.delete_at)} at the latest, as the node must end by {by}"


def _tell_of_elapsed(context: StepContext, termination: NodeState, elapsed: Sequence[ProtectedPod]) -> None:
    pods = [guard.pod for guard in elapsed]
    their = "its budget allows" if len(pods) == 1 else "their budgets allow"
    message = f"{_count(pods)} no longer protected, and evicted as {their}: {_names(pods)}"
    if left := [guard for guard in (termination.guards or {}).values() if not guard.is_leaving]:
        message += f"; {summary(left)}"
    news = f"{elapsed[0].pod.uid} {elapsed[0].protection.until}"
    announce(context, termination.objects, EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message, news=news)


def _was(guard: ProtectedPod) -> str:
    assert guard.protection.until is not None
    return f"was {guard.protection.words} until {format_time(guard.protection.until)}{guard.protection.limit}"


def _tell(context: StepContext, guard: ProtectedPod, reason: EventReason, message: str) -> None:
    pod, news = guard.pod, " ".join(map(str, guard.until))
    logger.info("pod %s", message, extra={"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node_name})
    context.recorder.record(Subject.of(PODS, pod), reason, message, news=news)


def _node(termination: NodeState) -> str:
    return f"node {termination.node.name}, which {termination.fate}"


def _count(pods: Sequence[object]) -> str:
    return "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"


def _names(pods: Sequence[Pod]) -> str:
    """The first three, as in the condition `Drained`."""
    return listed([f"{pod.namespace}/{pod.name}" for pod in pods])
