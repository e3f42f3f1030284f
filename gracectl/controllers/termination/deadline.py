"""Step "deadline": find the deadline, and write it to the node and its claim.

Invariant: the deadline of a termination in progress is never moved to a later instant, whatever is written.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from gracectl.controllers.cluster.tracked import AnyTracked, H, TrackedObject
from gracectl.controllers.termination.context import Answer, Proceed, StepContext
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.state import OVERDUE_SECONDS, AnyState, NodeState
from gracectl.kube.errors import ApiError, Invalid, NotLeading
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.deadlines import Deadline, deadline_of, earliest_deadline, invalid_deadline, written_deadline

logger = logging.getLogger(__name__)

CLOCKS_DISAGREE = "clocks contradict each other (see /readyz and the log of the controller)"

PATIENCE_SECONDS, RETRY_SECONDS = 1.0, 30.0
"""How long to wait for a write to a claim, or of a mere traceparent, before it goes on in the background; and after how
long to retry it."""


async def publish_deadline(context: StepContext, state: NodeState) -> Answer:
    """Find the deadline, write it to the node and its claim, and emit an Event that says what happens then."""
    claim = state.claim.latest if state.claim else None
    found = deadline_of(state.node, claim, context.settings.policy)
    traceparent = state.observer.traceparent
    await publish(context, state, found, traceparent)
    owed = [_lacking(tracked.latest, state.ends_by, traceparent) for tracked in state.objects]
    return Proceed(RETRY_SECONDS if any(owed) else math.inf)


def cached_deadline(context: StepContext, node: Node) -> Deadline | None:
    """Deadline of a node as the caches show it."""
    return deadline_of(node, context.cluster.claim_ending_with(node), context.settings.policy)


async def publish(context: StepContext, state: AnyState, found: Deadline | None, traceparent: str | None) -> None:
    """Take over the deadline that was found unless an earlier one is known, and write it, with the `traceparent` if
    any, to all objects of the termination.

    It counts before it is written. A failure to write it to a node raises, as the next process may know it from there
    only, unless the server calls the write invalid; a claim, or a mere traceparent, is retried later.
    """
    before = state.deadline
    state.deadline = earliest_deadline(before, found)
    for tracked in state.objects:
        _report_unreadable_deadline(context, state, tracked)
    if state.deadline is None:
        for tracked in state.objects if traceparent is not None else ():
            await _try_to_write(context, tracked, None, traceparent)
        return
    if _is_news(state, before):
        reason = names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRING
        told = words(state.deadline, context.clock.now())
        if context.clock.is_disputed():
            told = f"paused: {CLOCKS_DISAGREE}; deadline {format_time(state.deadline.at)}"
        emit_event(context, state.objects, reason, told, dedup_key=format_time(state.deadline.at))
    with anyio.move_on_after(max(state.deadline.at - context.clock.now(), OVERDUE_SECONDS)):
        for tracked in state.objects:
            owed = state.deadline.at if _lacking(tracked.latest, state.deadline.at, None) else None
            if isinstance(tracked.latest, Node) and owed is not None:
                with _unless_refused(tracked):
                    await _write(context, tracked, owed, traceparent)
            else:
                await _try_to_write(context, tracked, owed, traceparent)


@contextmanager
def _unless_refused(tracked: AnyTracked) -> Iterator[None]:
    """A write that the server calls invalid fails again and again: the termination goes on without it."""
    try:
        yield
    except Invalid as refusal:
        logger.warning("the deadline cannot be written, and counts all the same: %s", refusal, extra=tracked.log_keys)


def _is_news(state: AnyState, before: Deadline | None) -> bool:
    """Whether this deadline was not reported yet; a former process has reported one that stands on all objects."""
    assert state.deadline is not None
    at = state.deadline.at
    if before is not None:
        return before.at != at
    return not state.is_resumed or any(written_deadline(tracked.latest) != at for tracked in state.objects)


def words(deadline: Deadline, now: float) -> str:
    """Message at the instant `now`: when, why then, and what it means for the pods."""
    cause = f"annotation {names.TERMINATION_TIMESTAMP}"
    if deadline.grace_period is not None:
        cause = f"termination grace period {format_duration(round(deadline.grace_period) * NANOSECONDS_PER_SECOND)}"
    if deadline.at <= now:
        return (
            f"ends now: its deadline {format_time(deadline.at)} ({cause}) has passed; each pod that is left is deleted "
            "with 1 s of grace, whatever holds it"
        )
    return (
        f"ends by {format_time(deadline.at)} ({cause}): pods leave as budgets and protection allow; each that is still "
        "there is deleted, whatever holds it, early enough to have its own grace before then, or at once with what is "
        "left of it"
    )


def _report_unreadable_deadline(context: StepContext, state: AnyState, tracked: TrackedObject[H]) -> None:
    text = invalid_deadline(tracked.latest)
    if text is None or (tracked.uid, text) in state.reported:
        return
    state.reported.add((tracked.uid, text))
    then = "there is no deadline"
    if state.deadline is not None:
        then = f"{format_time(state.deadline.at)} is written instead"
    message = (
        f'annotation {names.TERMINATION_TIMESTAMP} is "{text[:100]}", which is no instant such as '
        f"2026-01-01T00:00:00Z: {then}"
    )
    emit_event(context, (tracked,), names.EventReason.INVALID_TERMINATION_TIMESTAMP, message, "Warning")


async def _try_to_write(
    context: StepContext, tracked: TrackedObject[H], deadline: float | None, traceparent: str | None
) -> None:
    """Write, not longer than PATIENCE_SECONDS, and not more often than RETRY_SECONDS after a failure."""
    if context.clock.monotonic() < tracked.next_try or _lacking(tracked.latest, deadline, traceparent) is None:
        return
    if context.background.is_under_way(_key(tracked)):
        return
    try:
        await _write(context, tracked, deadline, traceparent, PATIENCE_SECONDS)
    except NotLeading:
        raise
    except TimeoutError:
        return
    except ApiError as error:
        tracked.next_try = context.clock.monotonic() + RETRY_SECONDS
        what = "traceparent" if deadline is None else "deadline"
        logger.warning("the %s could not be written: %s", what, error, extra=tracked.log_keys)


def _key(tracked: AnyTracked) -> tuple[str, str]:
    return ("deadline", tracked.uid)


async def _write(
    context: StepContext,
    tracked: TrackedObject[H],
    deadline: float | None,
    traceparent: str | None,
    seconds: float = math.inf,
) -> None:
    """Write. Raises TimeoutError after `seconds`; the write goes on in the background."""

    async def write() -> None:
        after = await patch_with_retry(context.client, tracked.cancellable, tracked.latest, lacking)
        if after is not None:
            tracked.wrote(after)

    def lacking(thing: H) -> MergePatch | None:
        return _lacking(thing, deadline, traceparent)

    key = _key(tracked)
    if context.background.is_under_way(key):
        await context.background.join(key, write, seconds)  # of another deadline, perhaps
        if lacking(tracked.latest) is None:
            return
    await context.background.join(key, write, seconds)


def _lacking(thing: Node | NodeClaim, deadline: float | None, traceparent: str | None) -> MergePatch | None:
    found = {}
    shown = written_deadline(thing)
    if deadline is not None and (shown is None or shown > deadline):
        found[names.TERMINATION_TIMESTAMP] = format_time(deadline)
    if traceparent is not None and thing.annotations.get(names.TRACEPARENT) != traceparent:
        found[names.TRACEPARENT] = traceparent
    return MergePatch({"metadata": {"annotations": found}}) if found else None
