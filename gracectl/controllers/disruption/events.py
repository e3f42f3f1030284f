"""Events about voluntary terminations: what is due, and what blocks it. Each once, until its gist changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gracectl.controllers.disruption.candidate import CandidateStatus, DisruptionCandidate
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.errors import ApiError
from gracectl.model.names import EventReason
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.health import UnhealthyNodes
from gracectl.policy.voluntary import Cause, Trigger, VoluntaryBlocker, explain_blockers, explain_elapsed

REASONS: Final = {
    Cause.UNHEALTHY: EventReason.NODE_UNHEALTHY,
    Cause.TERMINABLE: EventReason.NODE_TERMINABLE,
    Cause.EXPIRED: EventReason.NODE_EXPIRED,
}
"""Reasons of the Event on a DELETE; of an expired claim it is CLAIM_EXPIRED."""

WARNINGS: Final = frozenset(
    (
        EventReason.NODE_UNHEALTHY,
        EventReason.UNHEALTHY_NODES_HELD,
        EventReason.DISRUPTION_REFUSED,
        EventReason.SEVERAL_CLAIMS,
    )
)


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
            message += "; at once, with everything on it (health.force)"
        is_expired_claim = due[0].cause is Cause.EXPIRED and candidate.claim is not None
        reason = EventReason.CLAIM_EXPIRED if is_expired_claim else REASONS[due[0].cause]
        self._emit(candidate, status, reason, message)

    def refused(self, candidate: DisruptionCandidate, status: CandidateStatus, refusal: ApiError) -> None:
        """The server has refused the DELETE, for example a webhook of another project."""
        message = f"termination due, but its deletion was refused: {refusal}; retrying"
        self._emit(candidate, status, EventReason.DISRUPTION_REFUSED, message)

    def circuit_breaker_open(
        self, candidate: DisruptionCandidate, status: CandidateStatus, counts: UnhealthyNodes, sick: Trigger
    ) -> None:
        """Too many nodes are unhealthy to terminate this one for its health."""
        message = (
            f"not terminated for its health: {counts} (health.maximumUnhealthy); {sick.message}; terminated when fewer "
            "nodes are unhealthy, or when you delete it"
        )
        self._emit(candidate, status, EventReason.UNHEALTHY_NODES_HELD, message)

    def contested(self, candidate: DisruptionCandidate, status: CandidateStatus, due: Sequence[Trigger]) -> None:
        """Several claims match its node."""
        message = f"{_due(due)} but blocked: several node claims match its node; delete all but one"
        self._emit(candidate, status, EventReason.SEVERAL_CLAIMS, message)

    def blocked_by_pods(
        self,
        candidate: DisruptionCandidate,
        status: CandidateStatus,
        due: Sequence[Trigger],
        blockers: tuple[VoluntaryBlocker, ...],
    ) -> str:
        """Pods are protected, or their budgets block; returns the message."""
        message = f"{_due(due)} but blocked: {explain_blockers(blockers)}"
        gist = f"{blockers[0].pod.uid} {blockers[0].remedy}"
        self._emit(candidate, status, EventReason.DISRUPTION_HELD, message, gist)
        return message

    def blocked_by_node_budget(
        self, candidate: DisruptionCandidate, status: CandidateStatus, due: Sequence[Trigger], refusal: Refusal
    ) -> str:
        """A node disruption budget allows no disruption; returns the message."""
        message = f"{_due(due)} but blocked: {refusal}"
        gist = f"{refusal.budget} {refusal.allowance}"
        self._emit(candidate, status, EventReason.DISRUPTION_HELD, message, gist)
        return message

    def waiting_for_slot(
        self, candidate: DisruptionCandidate, status: CandidateStatus, due: Sequence[Trigger], pace: str
    ) -> str:
        """As many terminations are in progress as voluntary.maximumAtOnce permits; returns the message."""
        message = f"{_due(due)} but waiting for its turn: {pace}"
        if self._context.settings.policy.voluntary.wait_for_replacement:
            message += ", and the pods of each are Ready elsewhere before the next one"
        message += "; delete it to terminate it now"
        self._emit(candidate, status, EventReason.DISRUPTION_HELD, message, "pace")
        return message

    def protections_elapsed(
        self,
        candidate: DisruptionCandidate,
        status: CandidateStatus,
        due: Sequence[Trigger],
        blockers: tuple[VoluntaryBlocker, ...],
    ) -> None:
        """Called at each look: report the protections with a known end once the last of them has ended.

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
        message = f"{_due(due)}: {explain_elapsed(elapsed)}{blocked}"
        dedup_key = f"{elapsed[-1].pod.uid} {elapsed[-1].until}"
        reason = EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED
        emit_event(self._context, candidate.objects, reason, message, dedup_key=dedup_key)

    def invalid_expiry(self, candidate: DisruptionCandidate, error: ValueError) -> None:
        """The claim's expireAfter is no duration."""
        message = f"never expires: expireAfter cannot be read: {error}"
        emit_event(self._context, (candidate.tracked,), EventReason.INVALID_EXPIRE_AFTER, message, "Warning")

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
        emit_event(self._context, candidate.objects, reason, message, "Warning" if reason in WARNINGS else "Normal")


def _due(due: Sequence[Trigger]) -> str:
    return f"termination due ({due[0].message})"
