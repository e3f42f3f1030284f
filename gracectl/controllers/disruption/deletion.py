"""The DELETE of a candidate, and the deadline that forces it.

Invariants: the DELETE carries UID and version of the object that was judged; it is sent once; a forced deadline does
not stay on an object that is not deleted.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio
import msgspec

from gracectl.controllers.cluster.tracked import AnyTracked
from gracectl.controllers.disruption.candidate import CandidateStatus, DisruptionCandidate
from gracectl.controllers.disruption.events import DisruptionEvents
from gracectl.controllers.termination.context import StepContext
from gracectl.kube.errors import AdmissionDenied, ApiError, Conflict, Forbidden, Invalid, NotFound, NotLeading
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.deadlines import written_deadline
from gracectl.policy.disruption import DueTermination, Hold, hold_of_refusal
from gracectl.runtime.workers import Requeue

logger = logging.getLogger(__name__)

CHARGE_SECONDS: Final = 1.0
"""How long the DELETE of an interrupted node waits until its node disruption budgets have counted it."""


class Accepted(msgspec.Struct, frozen=True):
    """The server has accepted the DELETE; the watch will show it."""


class RefusedDeletion(msgspec.Struct, frozen=True):
    """The server has refused the DELETE; it is retried after `seconds`."""

    seconds: float
    hold: Hold


def is_accepted(candidate: DisruptionCandidate, status: CandidateStatus) -> bool:
    """Whether the server has accepted the DELETE of this very version."""
    return bool(status.accepted_version == candidate.tracked.latest.resource_version)


async def delete_candidate(
    context: StepContext,
    candidate: DisruptionCandidate,
    status: CandidateStatus,
    found: DueTermination,
) -> Accepted | Requeue | Refusal | RefusedDeletion | None:
    """Delete the candidate, which has our finalizer and no accepted DELETE yet.

    Returns the refusal of a node disruption budget that allows no disruption now, or of the server; None if a change
    that the watch will show has to be looked at first.
    """
    tracked, events, due = candidate.tracked, DisruptionEvents(context), found.due
    if found.is_forced and not _is_overdue(context, tracked.latest):
        await _force_deadline(context, tracked)
        return None  # the watch shows this write
    if found.is_urgent:
        await _charge(context, tracked.latest)
    for node in () if found.is_urgent else candidate.nodes:
        if (refusal := await context.admitter.admit(node, is_watching=True)) is not None:
            return refusal
    version = tracked.latest.resource_version
    try:
        await context.client.delete(tracked.resource, tracked.latest.key, uid=tracked.uid, resource_version=version)
    except NotFound:
        return None
    except Conflict:
        return Requeue(status.retry.next())  # the watch will have shown the new version by then
    except (AdmissionDenied, Forbidden, Invalid) as error:
        status.has_failed = True
        retry_after = error.delay if isinstance(error, AdmissionDenied) else 0.0
        seconds = max(status.retry.next(), retry_after)
        status.next_try = context.clock.monotonic() + seconds
        hold = hold_of_refusal(str(error))
        events.held(candidate, status, due, hold)
        await restore_deadline(context, tracked)
        return RefusedDeletion(seconds, hold)
    status.accepted_version, status.has_failed = version, False
    events.deleted(candidate, status, due, is_forced=found.is_forced)
    return Accepted()


async def _charge(context: StepContext, node: Node) -> None:
    """Count a node that goes anyway in its node disruption budgets, but do not wait for that."""
    try:
        with anyio.move_on_after(CHARGE_SECONDS):
            await context.admitter.admit(node, is_forced=True, is_watching=True)
    except NotLeading:
        raise
    except ApiError as error:
        logger.warning("node %s: not counted in its node disruption budgets: %s", node.name, error)


def _is_overdue(context: StepContext, thing: Node | NodeClaim) -> bool:
    deadline = written_deadline(thing)
    return deadline is not None and deadline <= context.clock.now()


async def _force_deadline(context: StepContext, tracked: AnyTracked) -> None:
    """Move the deadline to now, so that the termination waits for nothing."""
    text = format_time(context.clock.now())

    def forced(thing: Node | NodeClaim) -> MergePatch | None:
        if thing.deletion_timestamp is not None or _is_overdue(context, thing):
            return None
        before = thing.annotations.get(names.TERMINATION_TIMESTAMP, "")
        return _annotate(text, f"{text} {before}".rstrip())

    await patch_with_retry(context.client, tracked.resource, tracked.latest, forced)


def has_forced_deadline(thing: Node | NodeClaim) -> bool:
    """Whether its deadline was moved to now, by this process or one before."""
    return names.FORCED_DEADLINE in thing.annotations


async def restore_deadline(context: StepContext, tracked: AnyTracked) -> None:
    """Restore the deadline of an object that is not deleted now: a later deletion would have no time at all."""

    def restored(thing: Node | NodeClaim) -> MergePatch | None:
        if thing.deletion_timestamp is not None or not has_forced_deadline(thing):
            return None
        forced, _, before = thing.annotations[names.FORCED_DEADLINE].partition(" ")
        shown = thing.annotations.get(names.TERMINATION_TIMESTAMP)
        return _annotate((before or None) if shown == forced else shown, None)

    if has_forced_deadline(tracked.latest):
        await patch_with_retry(context.client, tracked.resource, tracked.latest, restored)


def _annotate(deadline: str | None, forced: str | None) -> MergePatch:
    annotations = {names.TERMINATION_TIMESTAMP: deadline, names.FORCED_DEADLINE: forced}
    return MergePatch({"metadata": {"annotations": annotations}})
