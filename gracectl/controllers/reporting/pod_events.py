"""Events about pods: who asked them to leave, and why one cannot."""

from __future__ import annotations

import logging
import math

from gracectl.eviction.deleter import Deletion, ScheduledDeletion
from gracectl.eviction.pdb_queue import Candidate
from gracectl.kube.errors import ApiError, BudgetExhausted, MultipleBudgets, Throttled, Unreachable
from gracectl.kube.events import EventRecorder, EventType, Subject
from gracectl.kube.resources import PODS
from gracectl.model.names import EventReason
from gracectl.model.times import format_time

logger = logging.getLogger(__name__)


class PodEventReporter:
    """Listens to the evictor and to the deleter."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def evicted(self, candidate: Candidate) -> None:
        """The owner of the pod sees who ended it."""
        message = f"evicted by gracectl: node {candidate.node} {candidate.node_activity}"
        self._recorder.record(_subject(candidate), EventReason.EVICTED, message)
        logger.info("pod evicted", extra=_keys(candidate))

    def deleted(self, deletion: Deletion) -> None:
        """The owner of the pod sees who ended it before its time, why, and how much of its grace it gets."""
        pod = deletion.pod
        type_: EventType = "Warning" if is_cut(deletion) else "Normal"
        reason, news = EventReason.DELETED_FOR_DEADLINE, str(deletion.granted)  # every second that is taken is news
        self._recorder.record(_subject(pod), reason, deletion_message(deletion), type_, news=news)
        figures = {"granted": deletion.granted, "requested": deletion.requested, "late": round(deletion.late, 3)}
        logger.info("pod deleted for the deadline", extra={**_keys(pod), **figures})

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """The deadline stands, so it is asked again; but somebody may have to act."""
        message = f"could not be deleted for the deadline of node {pod.node}: {refusal}"
        logger.warning("pod %s", message, extra=_keys(pod))
        if not isinstance(refusal, Throttled | Unreachable):  # those say nothing of this pod, and take no Event either
            self._recorder.record(_subject(pod), EventReason.DELETION_FAILED, message, "Warning")

    def refused(self, candidate: Candidate, refusal: ApiError) -> None:
        """A spent budget is the ordinary case and stands in the node's condition; the rest is for somebody to mend."""
        match refusal:
            case BudgetExhausted():
                logger.debug("eviction refused by a budget: %s", refusal, extra=_keys(candidate))
            case MultipleBudgets():
                report_multiple_budgets(self._recorder, candidate)
            case _:
                message = f"could not be evicted from node {candidate.node}: {refusal}"
                self._recorder.record(_subject(candidate), EventReason.EVICTION_FAILED, message, "Warning")
                logger.warning("pod %s", message, extra=_keys(candidate))


def is_cut(deletion: Deletion) -> bool:
    """Whether the pod loses grace by it: of what it asks for or, if it was terminating already, of what it was granted.

    One that is still there when its grace is over, and is told again at the deadline, loses nothing.
    """
    if deletion.before is None:
        return deletion.granted < deletion.requested
    return deletion.before.ends > deletion.pod.deadline


def deletion_message(deletion: Deletion) -> str:
    """What the owner of a deleted pod reads."""
    before, granted, requested = deletion.before, f"{deletion.granted} s", f"{deletion.requested} s"
    if before is None:
        amount = f"{granted} instead of the {requested} of grace that it asks for"
        deed = f"deleted by gracectl with {amount if is_cut(deletion) else f'its whole grace ({granted})'}"
    elif is_cut(deletion):
        excess = math.ceil(before.ends - deletion.pod.deadline)
        # Who wants an end at once sets a deadline of long ago, which no number makes clearer.
        when = f"{excess} s after the deadline" if excess <= before.grace else "after the deadline"
        deed = f"terminates already, but its {before.grace} s of grace would end {when}; cut by gracectl to {granted}"
    else:
        deed = (
            f"is still there after the {before.grace} s of grace that it had; deleted again by gracectl, with {granted}"
        )
    return f"{deed}: {_demand(deletion.pod)}, whatever budgets and protection say"


def _demand(pod: ScheduledDeletion) -> str:
    end = format_time(pod.deadline)
    if pod.cause:
        return f"node {pod.node} is being terminated, and it must end by {end} ({pod.cause})"
    return f"node {pod.node} must end by {end}"


def report_multiple_budgets(recorder: EventRecorder, candidate: Candidate) -> None:
    """Tell the owner of the pod which budgets stand in each other's way; the server names none of them."""
    listed = " and ".join(f"{namespace}/{name}" for namespace, name in candidate.budgets)
    message = (
        f"cannot be evicted from node {candidate.node}: more than one PodDisruptionBudget selects it"
        f"{f' ({listed})' if listed else ''}; change their selectors so that one is left"
    )
    recorder.record(_subject(candidate), EventReason.MULTIPLE_BUDGETS, message, "Warning")


def _subject(candidate: Candidate | ScheduledDeletion) -> Subject:
    return Subject(PODS.api_version, PODS.kind, candidate.namespace, candidate.name, candidate.uid)


def _keys(candidate: Candidate | ScheduledDeletion) -> dict[str, str]:
    return {"pod": f"{candidate.namespace}/{candidate.name}", "uid": candidate.uid, "node": candidate.node}
