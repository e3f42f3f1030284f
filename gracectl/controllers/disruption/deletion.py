"""Carries a voluntary end out: the DELETE of what ends as one, what is written before it, and what people are told.

Invariants: the DELETE carries uid and version of the object that was judged; it is sent once; a deadline that was
pulled to now does not stay on an object that lives on.
"""

from __future__ import annotations

import msgspec

from gracectl.controllers.cluster.tracked import AnyTracked
from gracectl.controllers.disruption.candidate import DisruptionCandidate
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.errors import AdmissionDenied, ApiError, Conflict, Forbidden, Invalid, NotFound
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.deadlines import written_deadline
from gracectl.policy.voluntary import Cause, Trigger, VoluntaryBlocker, explain_blockers, explain_elapsed
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.workers import Requeue

REASONS = {
    Cause.UNHEALTHY: EventReason.NODE_UNHEALTHY,
    Cause.TERMINABLE: EventReason.NODE_TERMINABLE,
    Cause.EXPIRED: EventReason.NODE_EXPIRED,
}
"""Of a claim that expires it is CLAIM_EXPIRED."""

WARNINGS = frozenset(
    (
        EventReason.NODE_UNHEALTHY,
        EventReason.UNHEALTHY_NODES_HELD,
        EventReason.DISRUPTION_REFUSED,
        EventReason.SEVERAL_CLAIMS,
    )
)


class Standing(msgspec.Struct):
    """What is remembered of a unit that has a reason to end, of which nothing must survive."""

    uid: str
    retry: Backoff
    has_failed: bool = False
    """Its deletion was refused or failed when it was tried last."""
    pending_since: float | None = None
    """Since when (Unix seconds) it waits for something that keeps it from its end."""
    next_try: float = 0.0
    """Monotonic: the server has refused, and is not asked again before."""
    agreed_at: str = ""
    """The version of which the server has agreed to delete; the watch has not shown it yet."""
    told: dict[EventReason, str] = msgspec.field(default_factory=dict)
    """The gist of what people have been told."""
    timed: dict[str, VoluntaryBlocker] = msgspec.field(default_factory=dict)
    """By pod uid, what keeps it until a known instant, or has kept it until one and nobody has been told."""


class Begun(msgspec.Struct, frozen=True):
    """The server has agreed to the deletion; the watch will show it."""


def is_agreed(unit: DisruptionCandidate, standing: Standing) -> bool:
    """Whether the server has agreed to delete this very state."""
    return bool(standing.agreed_at == unit.tracked.latest.resource_version)


async def end(
    context: StepContext, unit: DisruptionCandidate, standing: Standing, due: list[Trigger], *, is_forced: bool
) -> Begun | Requeue | Refusal | None:
    """Delete the unit for what is due; its finalizer is on it, and the server has not agreed to that yet.

    Returns the word of a node disruption budget that does not allow it now. None: a change that the watch will show has
    to be looked at first.
    """
    tracked = unit.tracked
    if is_forced and not _is_overdue(context, tracked.latest):
        await _pull_deadline(context, tracked)
        return None  # our write wakes us, and all of this is looked at again
    for node in unit.nodes:
        if (refusal := await context.admitter.admit(node, is_watching=True)) is not None:
            return refusal
    try:
        version = tracked.latest.resource_version
        await context.client.delete(tracked.resource, tracked.latest.key, uid=tracked.uid, resource_version=version)
    except NotFound:
        return None
    except Conflict:
        return Requeue(standing.retry.next())  # the watch will have shown by then what it has become
    except (AdmissionDenied, Forbidden, Invalid) as refusal:
        return await _refused(context, unit, standing, refusal)
    standing.agreed_at, standing.has_failed = version, False
    message = "is ended: " + "; ".join(trigger.words for trigger in due)
    if is_forced:
        message += "; at once, with everything on it (health.force)"
    is_claims_age = due[0].cause is Cause.EXPIRED and unit.claim is not None
    tell(context, unit, standing, EventReason.CLAIM_EXPIRED if is_claims_age else REASONS[due[0].cause], message)
    return Begun()


async def _refused(context: StepContext, unit: DisruptionCandidate, standing: Standing, refusal: ApiError) -> Requeue:
    """Somebody else may forbid it (a node disruption budget): that is his right, and people are told once."""
    standing.has_failed = True
    asked_for = refusal.delay if isinstance(refusal, AdmissionDenied) else 0.0
    seconds = max(standing.retry.next(), asked_for)
    standing.next_try = context.clock.monotonic() + seconds
    message = f"is to end, but its deletion is refused, and tried again: {refusal}"
    tell(context, unit, standing, EventReason.DISRUPTION_REFUSED, message)
    await give_back(context, unit.tracked)
    return Requeue(seconds)


def _is_overdue(context: StepContext, thing: Node | NodeClaim) -> bool:
    deadline = written_deadline(thing)
    return deadline is not None and deadline <= context.clock.now()


async def _pull_deadline(context: StepContext, tracked: AnyTracked) -> None:
    """Write that everything must be over now, so that the termination, once begun, waits for nobody."""
    text = format_time(context.clock.now())

    def pulled(thing: Node | NodeClaim) -> MergePatch | None:
        if thing.deletion_timestamp is not None or _is_overdue(context, thing):
            return None
        before = thing.annotations.get(names.TERMINATION_TIMESTAMP, "")
        return _annotated(text, f"{text} {before}".rstrip())

    await patch_with_retry(context.client, tracked.resource, tracked.latest, pulled)


def is_pulled(thing: Node | NodeClaim) -> bool:
    """Whether one of us, perhaps in an earlier life, has written a deadline on it that was to force its end."""
    return names.FORCED_DEADLINE in thing.annotations


async def give_back(context: StepContext, tracked: AnyTracked) -> None:
    """The end does not come now: a deadline that we have left on it would make a later one merciless."""

    def given_back(thing: Node | NodeClaim) -> MergePatch | None:
        if thing.deletion_timestamp is not None or not is_pulled(thing):
            return None
        ours, _, before = thing.annotations[names.FORCED_DEADLINE].partition(" ")
        shown = thing.annotations.get(names.TERMINATION_TIMESTAMP)
        return _annotated((before or None) if shown == ours else shown, None)

    if is_pulled(tracked.latest):
        await patch_with_retry(context.client, tracked.resource, tracked.latest, given_back)


def tell(
    context: StepContext,
    unit: DisruptionCandidate,
    standing: Standing,
    reason: EventReason,
    message: str,
    gist: str = "",
) -> None:
    """An Event on all that is to end, and a line of the log: once, until the gist of it changes."""
    if standing.told.get(reason) == gist:
        return
    standing.told[reason] = gist
    emit_event(context, unit.objects, reason, message, "Warning" if reason in WARNINGS else "Normal")


def report_elapsed(
    context: StepContext,
    unit: DisruptionCandidate,
    standing: Standing,
    due: list[Trigger],
    holds: tuple[VoluntaryBlocker, ...],
) -> None:
    """Once the last of the protections has ended that end by themselves: whose those were, and what still keeps it.

    Before that instant nobody is told: the node can end no earlier, and nobody looks at it.
    """
    now = context.clock.now()
    protected = {hold.pod.uid for hold in holds if hold.protection is not None}
    timed = {hold.pod.uid: hold for hold in holds if hold.until is not None}
    over = {
        uid: hold
        for uid, hold in standing.timed.items()
        if uid not in protected and hold.until is not None and hold.until <= now
    }
    standing.timed = {} if over and not timed else {**over, **timed}
    if timed or not over or unit.is_contested:
        return
    elapsed = sorted(over.values(), key=lambda hold: hold.until or 0.0)
    tracked = f", but {explain_blockers(holds)}" if holds else ""
    message = f"is to end ({due[0].words}): {explain_elapsed(elapsed)}{tracked}"
    news = f"{elapsed[-1].pod.uid} {elapsed[-1].until}"
    emit_event(context, unit.objects, EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message, news=news)


def _annotated(deadline: str | None, forced: str | None) -> MergePatch:
    annotations = {names.TERMINATION_TIMESTAMP: deadline, names.FORCED_DEADLINE: forced}
    return MergePatch({"metadata": {"annotations": annotations}})
