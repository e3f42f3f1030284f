"""Events about voluntary terminations: due triggers and blockers. Each is emitted once, until its gist changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gracectl.controllers.disruption.candidate import CandidateStatus, DisruptionCandidate
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.events import Event
from gracectl.controllers.termination.report import emit
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.policy.disruption import Hold, HoldReason, explain_due, explain_hold
from gracectl.policy.pending import requested_by
from gracectl.policy.voluntary import Cause, Trigger, VoluntaryBlocker, explain_blockers, explain_elapsed

REASONS: Final = {
    Cause.INTERRUPTED: EventReason.NODE_INTERRUPTED,
    Cause.UNHEALTHY: EventReason.NODE_UNHEALTHY,
    Cause.TERMINABLE: EventReason.NODE_TERMINABLE,
    Cause.EXPIRED: EventReason.NODE_EXPIRED,
}
"""Reasons of the Event on a DELETE; of an expired claim it is CLAIM_EXPIRED."""

HOLD_REASONS: Final = {
    HoldReason.CIRCUIT_BREAKER: EventReason.UNHEALTHY_NODES_HELD,
    HoldReason.SEVERAL_CLAIMS: EventReason.SEVERAL_CLAIMS,
    HoldReason.REFUSED: EventReason.DISRUPTION_REFUSED,
    HoldReason.PROVIDER_NONE: EventReason.NODE_UNHEALTHY,
}
"""Reasons of the Event on a hold; of any other it is DISRUPTION_HELD."""

WARNINGS: Final = frozenset(
    (
        EventReason.NODE_INTERRUPTED,
        EventReason.NODE_UNHEALTHY,
        EventReason.UNHEALTHY_NODES_HELD,
        EventReason.DISRUPTION_REFUSED,
        EventReason.SEVERAL_CLAIMS,
    )
)


UNCORDONED: Final = Event(EventReason.UNCORDONED, "uncordoned: no longer interrupted, labeled terminable or unhealthy")
"""Event on a node that was pending."""


def cordoned_while_pending(node: Node) -> Event:
    """Event on a node that is cordoned until its termination may begin."""
    cause = requested_by(node) or "unhealthy"
    return Event(EventReason.CORDONED, f"cordoned: {cause}, and its termination is pending")


class DisruptionEvents:
    """Emitter of the Events about candidates."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    def deleted(
        self, candidate: DisruptionCandidate, status: CandidateStatus, due: Sequence[Trigger], *, is_forced: bool
    ) -> None:
        """The server has accepted the DELETE."""
        message = "terminating: " + "; ".join(trigger.message for trigger in due)
        if is_forced:
            message += "; immediately, with all its pods (health.force)"
        is_expired_claim = due[0].cause is Cause.EXPIRED and candidate.claim is not None
        reason = EventReason.CLAIM_EXPIRED if is_expired_claim else REASONS[due[0].cause]
        self._emit(candidate, status, reason, message)

    def held(
        self,
        candidate: DisruptionCandidate,
        status: CandidateStatus,
        due: Sequence[Trigger],
        hold: Hold,
        gist: str = "",
    ) -> None:
        """Report that its termination is due and blocked; again when `gist` changes."""
        reason = HOLD_REASONS.get(hold.reason, EventReason.DISRUPTION_HELD)
        self._emit(candidate, status, reason, explain_hold(due, hold), gist)

    def protections_elapsed(
        self,
        candidate: DisruptionCandidate,
        status: CandidateStatus,
        due: Sequence[Trigger],
        blockers: tuple[VoluntaryBlocker, ...],
    ) -> None:
        """Called at each look: report protections with a known end after the last one has ended.

        Not before: the node cannot be terminated earlier, and is not looked at.
        """
        now = self._context.clock.now()
        protected = {blocker.pod.uid for blocker in blockers if blocker.protection is not None}
        timed = {blocker.pod.uid: blocker for blocker in blockers if blocker.until is not None}
        over = {
            uid: blocker
            for uid, blocker in status.timed_blockers.items()
            if uid not in protected and blocker.until is not None and blocker.until <= now
        }
        status.timed_blockers = {} if over and not timed else {**over, **timed}
        if timed or not over or candidate.is_contested:
            return
        elapsed = sorted(over.values(), key=lambda blocker: blocker.until or 0.0)
        blocked = f", but blocked: {explain_blockers(blockers)}" if blockers else ""
        message = f"{explain_due(due)}: {explain_elapsed(elapsed)}{blocked}"
        dedup_key = f"{elapsed[-1].pod.uid} {elapsed[-1].until}"
        reason = EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED
        emit(self._context, candidate.objects, Event(reason, message, dedup_key=dedup_key))

    def invalid_expiry(self, candidate: DisruptionCandidate, error: ValueError) -> None:
        """The claim's expireAfter is no duration."""
        message = f"never expires: expireAfter cannot be read: {error}"
        emit(self._context, (candidate.tracked,), Event(EventReason.INVALID_EXPIRE_AFTER, message, "Warning"))

    def _emit(
        self,
        candidate: DisruptionCandidate,
        status: CandidateStatus,
        reason: EventReason,
        message: str,
        gist: str = "",
    ) -> None:
        if status.reported.get(reason) == gist:
            return
        status.reported[reason] = gist
        emit(self._context, candidate.objects, Event(reason, message, "Warning" if reason in WARNINGS else "Normal"))
