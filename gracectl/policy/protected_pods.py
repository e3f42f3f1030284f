"""Protected pods that a drain waits for: since when, how the protection ended, and how long it took.

A pod is tracked from the first plan in which it is protected to the first one in which it blocks the drain no longer.
Computes the changes from one plan to the next; reporting decides what to emit.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from gracectl.model.pod import Pod
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.policy.protection import Protection, ProtectionKind


class ProtectionEnd(StrEnum):
    """Way in which a protected pod stopped blocking the drain."""

    ELAPSED = "elapsed"
    """The protection, or the maximum that the administrator grants, has expired."""
    LIFTED = "lifted"
    """The annotation was removed, or made shorter."""
    LEFT = "left"
    """The pod has finished, or another client deleted or evicted it."""
    DEADLINE = "deadline"
    """The pod was deleted for the deadline of the node."""


class ProtectedPod(msgspec.Struct, frozen=True):
    """Protected pod that a drain waits for, as the last plan showed it; `since`: Unix seconds."""

    pod: Pod
    protection: Protection
    since: float
    delete_at: float | None
    """The instant at which it is deleted for the deadline."""
    is_leaving: bool = False
    """Whether the pod is terminating; its `do-not-evict` blocks the node until the pod is gone."""

    @property
    def until(self) -> tuple[ProtectionKind, float | None]:
        """Protection and its end; a change is reported."""
        return (self.protection.kind, self.protection.until)


class EndedProtection(msgspec.Struct, frozen=True):
    """Protected pod that blocks the drain no longer."""

    protected: ProtectedPod
    how: ProtectionEnd


class ProtectionUpdate(msgspec.Struct, frozen=True):
    """Protected pods of a node after a plan, by UID, and what this plan has changed."""

    protected_pods: Mapping[str, ProtectedPod]
    begun: tuple[ProtectedPod, ...]
    """Protected now, and before not at all, by something else, or until another instant."""
    ended: tuple[EndedProtection, ...]


def update_protection(
    before: Mapping[str, ProtectedPod] | None, decision: Plan, now: float, started: float
) -> ProtectionUpdate:
    """Update the protected pods of the previous plan `before` from the plan of `now`.

    None: the first plan of a termination that began at `started`, perhaps under an earlier leader. A pod then counts as
    protected since `started`, or since its creation if that is later.
    """
    entries = {entry.pod.uid: entry for entry in decision.pods}
    known = before or {}
    ended = tuple(
        EndedProtection(protected, how)
        for uid, protected in known.items()
        if (how := _lapse(protected, entries.get(uid), now)) is not None
    )
    over = {each.protected.pod.uid for each in ended}
    protected_pods = {uid: _still(protected, entries[uid]) for uid, protected in known.items() if uid not in over}
    for uid, entry in entries.items():
        if entry.protection is not None and uid not in protected_pods:
            since = now if before is not None else max(started, entry.pod.created)
            protected_pods[uid] = ProtectedPod(entry.pod, entry.protection, since, entry.delete_at)
    begun = (
        protected
        for uid, protected in protected_pods.items()
        if not protected.is_leaving and (uid not in known or known[uid].until != protected.until)
    )
    return ProtectionUpdate(protected_pods, tuple(begun), ended)


def _lapse(protected: ProtectedPod, entry: PodPlan | None, now: float) -> ProtectionEnd | None:
    """How the protection of a pod has ended; None while it blocks the drain.

    ::

        the pod is now             due for the deadline      otherwise
        gone or ignored            DEADLINE                  LEFT
        deleted by the plan        DEADLINE                  DEADLINE
        terminating, newly         DEADLINE                  None for do-not-evict, else LEFT
        terminating, as before     None for do-not-evict, else LEFT
        protected by the same      None                      None
        not protected by it        ELAPSED if its end has passed, else LIFTED
    """
    is_due = protected.delete_at is not None and protected.delete_at <= now
    if entry is None or entry.outcome is Outcome.IGNORED:
        return ProtectionEnd.DEADLINE if is_due else ProtectionEnd.LEFT
    if entry.outcome is Outcome.DELETE:
        return ProtectionEnd.DEADLINE
    if entry.pod.deletion_timestamp is not None:
        if is_due and not protected.is_leaving:
            return ProtectionEnd.DEADLINE
        return None if protected.protection.holds_node else ProtectionEnd.LEFT
    if entry.protection is not None and entry.protection.kind == protected.protection.kind:
        return None
    until = protected.protection.until
    return ProtectionEnd.ELAPSED if until is not None and until <= now else ProtectionEnd.LIFTED


def _still(protected: ProtectedPod, entry: PodPlan) -> ProtectedPod:
    """The pod as the plan shows it now; a terminating one keeps the description of its protection."""
    return ProtectedPod(
        pod=entry.pod,
        protection=entry.protection or protected.protection,
        since=protected.since,
        delete_at=entry.delete_at,
        is_leaving=entry.protection is None,
    )
