"""Events on nodes, node claims and pods, each with a line in the log; texts about protection are in `protection`."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from gracectl.controllers.cluster.tracked import AnyTracked
from gracectl.controllers.termination.context import StepContext
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.cache import Cache
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError, BudgetExhausted, MultipleBudgets, Throttled, Unreachable
from gracectl.kube.events import EventRecorder, EventType, Subject
from gracectl.kube.resources import BUDGETS, NODE_BUDGETS, NODES, PODS, VOLUME_ATTACHMENTS, Resource
from gracectl.model import names
from gracectl.model.envelope import UndecodableObject
from gracectl.model.names import EventReason
from gracectl.model.times import format_time

logger = logging.getLogger(__name__)


def emit_event(
    context: StepContext,
    objects: Sequence[AnyTracked],
    reason: EventReason,
    message: str,
    type_: EventType = "Normal",
    *,
    dedup_key: str = "",
) -> None:
    """Record an Event on each of `objects` (a node, its claim), and log it once; never blocks, never fails.

    `dedup_key`: see EventRecorder.record.
    """
    level = logging.WARNING if type_ == "Warning" else logging.INFO
    logger.log(level, "%s: %s", reason, message, extra=objects[0].log_keys)
    for tracked in objects:
        context.recorder.record(tracked.subject, reason, message, type_, dedup_key=dedup_key)


class PodEventReporter:
    """Listener to the evictor and the deleter: Events on pods."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._warned: dict[tuple[str, str], None] = {}  # by UID and cause: what the log has said; the latest last

    def evicted(self, candidate: EvictionCandidate) -> None:
        """See EvictionListener."""
        message = f"evicted by gracectl: node {candidate.node} {candidate.node_activity}"
        self._recorder.record(_subject(candidate), EventReason.EVICTED, message)
        logger.info("pod evicted", extra=_log_keys(candidate))

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener. Each further second of grace that is taken makes another Event."""
        pod = deletion.pod
        type_: EventType = "Warning" if is_cut(deletion) else "Normal"
        reason, message = EventReason.DELETED_FOR_DEADLINE, deletion_message(deletion)
        self._recorder.record(_subject(pod), reason, message, type_, dedup_key=str(deletion.granted))
        figures = {"granted": deletion.granted, "requested": deletion.requested, "late": round(deletion.late, 3)}
        logger.info("pod deleted for the deadline", extra={**_log_keys(pod), **figures})

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener. A server that is busy or unreachable says nothing about this pod: no Event."""
        message = f"deletion for the deadline of node {pod.node} failed: {refusal}; retrying"
        self._warn(pod, refusal, message)
        if not isinstance(refusal, Throttled | Unreachable):
            self._recorder.record(_subject(pod), EventReason.DELETION_FAILED, message, "Warning")

    def refused(self, candidate: EvictionCandidate, refusal: ApiError) -> None:
        """See EvictionListener. A spent budget is the normal case, and in the condition `Drained`: no Event."""
        match refusal:
            case BudgetExhausted():
                logger.debug("eviction refused by a budget: %s", refusal, extra=_log_keys(candidate))
            case MultipleBudgets():
                self._warn(candidate, refusal, report_multiple_budgets(self._recorder, candidate))
            case _:
                message = f"eviction from node {candidate.node} failed: {refusal}; retrying"
                self._recorder.record(_subject(candidate), EventReason.EVICTION_FAILED, message, "Warning")
                self._warn(candidate, refusal, message)

    def _warn(self, pod: EvictionCandidate | ScheduledDeletion, refusal: ApiError, message: str) -> None:
        """Log a failure once for each pod and cause; the Event counts the repeats."""
        key = (pod.uid, type(refusal).__name__)
        if key not in self._warned:
            logger.warning("pod: %s", message, extra=_log_keys(pod))
        self._warned.pop(key, None)
        self._warned[key] = None
        if len(self._warned) > WARNED:
            del self._warned[next(iter(self._warned))]


WARNED: Final = 10_000
"""Failures of pods that are remembered."""


def is_cut(deletion: Deletion) -> bool:
    """Whether the pod loses grace by it: of what it requests or, if it was terminating before, of what it was granted.

    One that is deleted again at the deadline, when its grace is over, loses nothing.
    """
    if deletion.before is None:
        return deletion.granted < deletion.requested
    return deletion.before.ends > deletion.pod.deadline


def deletion_message(deletion: Deletion) -> str:
    """Text of the Event *DeletedForDeadline*: grace, reason, and that nothing else counts."""
    before, granted = deletion.before, f"{deletion.granted} s"
    if before is None and is_cut(deletion):
        action = f"deleted by gracectl with {granted} of grace instead of {deletion.requested} s"
    elif before is None:
        action = f"deleted by gracectl with its whole grace ({granted})"
    elif is_cut(deletion):
        excess = math.ceil(before.ends - deletion.pod.deadline)
        # A deadline of long ago is an end by hand, which no number makes clearer.
        when = f"{excess} s after the deadline" if excess <= before.grace else "after the deadline"
        action = f"grace cut by gracectl from {before.grace} s, which would end {when}, to {granted}"
    else:
        action = f"deleted again by gracectl with {granted} of grace, still running after {before.grace} s"
    return f"{action}: {_demand(deletion.pod)}, whatever budgets and protection say"


def disruption_target(pod: ScheduledDeletion) -> ConditionUpdate:
    """The condition DisruptionTarget of a pod that is about to be deleted for a deadline."""
    message = f"deleted by gracectl: {_demand(pod)}"
    return ConditionUpdate(names.DISRUPTION_TARGET, names.TRUE, names.DELETION_BY_GRACECTL, message)


def _demand(pod: ScheduledDeletion) -> str:
    end = format_time(pod.deadline)
    if pod.cause:
        return f"node {pod.node} is being terminated, and must be gone by {end} ({pod.cause})"
    return f"node {pod.node} must be gone by {end}"


def report_multiple_budgets(recorder: EventRecorder, candidate: EvictionCandidate) -> str:
    """Name the budgets that exclude each other; the server's answer names none of them. Returns the message."""
    listed = " and ".join(f"{namespace}/{name}" for namespace, name in candidate.budgets)
    message = (
        f"eviction from node {candidate.node} impossible: more than one PodDisruptionBudget selects this pod"
        f"{f' ({listed})' if listed else ''}; change their selectors so that one is left"
    )
    recorder.record(_subject(candidate), EventReason.MULTIPLE_BUDGETS, message, "Warning")
    return message


def _subject(pod: EvictionCandidate | ScheduledDeletion) -> Subject:
    return Subject(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)


def _log_keys(pod: EvictionCandidate | ScheduledDeletion) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node}


UNDECODABLE_EVENTS: Final = 50
"""Objects of a kind with an Event *Undecodable*; further ones are in the log and the metric only, as Events share a
queue."""

_LAST_KNOWN = "gracectl uses its last known state"
CONSEQUENCES: Final = {
    PODS.kind: "the drain of its node waits for it until a deadline",
    BUDGETS.kind: "it blocks every pod of its namespace until it is smaller, or gone",
}
"""What follows for gracectl if an object of this kind cannot be decoded."""


def report_undecodable(context: StepContext) -> None:
    """Emit an Event on each object that a cache sets aside as undecodable, now and later."""
    cluster = context.cluster
    caches: tuple[tuple[Cache[Any], Resource[Any]], ...] = (
        (cluster.pods, PODS),
        (cluster.nodes, NODES),
        (cluster.claims, context.claim_resource()),
        (cluster.budgets, BUDGETS),
        (cluster.attachments, VOLUME_ATTACHMENTS),
        (context.admitter.budgets, NODE_BUDGETS),
    )
    for cache, resource in caches:
        cache.subscribe_undecodable(partial(_emit_undecodable, context, cache, resource))


def _emit_undecodable(
    context: StepContext, cache: Cache[Any], resource: Resource[Any], found: UndecodableObject
) -> None:
    if found.name and cache.statistics().undecodable <= UNDECODABLE_EVENTS:
        subject = Subject(resource.api_version, resource.kind, found.namespace, found.name, found.uid)
        message = f"cannot be decoded: {found.error}; {CONSEQUENCES.get(resource.kind, _LAST_KNOWN)}"
        context.recorder.record(subject, names.EventReason.UNDECODABLE, message, "Warning")
