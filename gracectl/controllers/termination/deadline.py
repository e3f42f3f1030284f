"""Step "deadline": find the deadline, and write it to the node and its claim.

Invariant: the deadline of a termination in progress never moves to a later instant, regardless of what clients write.
"""

from __future__ import annotations

import logging
import math

import anyio

from gracectl.controllers.cluster.tracked import AnyTracked, H, TrackedObject
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.report import emit
from gracectl.controllers.termination.state import OVERDUE_SECONDS, AnyState, NodeState
from gracectl.kube.errors import ApiError, Invalid, NotLeading
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.policy.deadlines import (
    Deadline,
    deadline_of,
    earliest_deadline,
    invalid_deadline,
    missing_deadline,
    written_deadline,
)
from gracectl.policy.maintenance import drain_deadline

logger = logging.getLogger(__name__)

WRITE_SECONDS, RETRY_SECONDS = 1.0, 30.0
"""How long to wait for a write to a claim, or of just a traceparent, before it continues in the background; and when to
retry it."""


async def publish_deadline(context: StepContext, state: NodeState) -> Answer:
    """Find the deadline, write it to the node and its claim, and emit an Event that says what happens then."""
    claim = state.claim.latest if state.claim else None
    traceparent = state.observer.traceparent
    await publish(context, state, deadline_of(state.node, claim, context.settings.policy), traceparent)
    is_missing = any(deadline_patch(tracked.latest, state.ends_by, traceparent) for tracked in state.objects)
    return Answer(Next.PROCEED, RETRY_SECONDS if is_missing else math.inf)


def cached_deadline(context: StepContext, node: Node) -> Deadline | None:
    """Deadline of a node, of its termination or its maintenance, as the caches show it."""
    if node.deletion_timestamp is None:
        return drain_deadline(node)
    return deadline_of(node, context.cluster.claim_ending_with(node), context.settings.policy)


async def publish(context: StepContext, state: AnyState, found: Deadline | None, traceparent: str | None) -> None:
    """Take over the deadline that was found unless an earlier one is known, and write it, with the `traceparent` if
    any, to all objects of the termination.

    It counts before it is written. A failure to write it to a node raises, as the next process may know it only from
    there, unless the server calls the write invalid. A claim, or just a traceparent, is retried later.
    """
    before = state.deadline
    state.deadline = earliest_deadline(before, found)
    for tracked in state.objects:
        report_invalid_deadline(context, state, tracked)
    if state.deadline is None:
        for tracked in state.objects if traceparent is not None else ():
            await _try_to_write(context, tracked, None, traceparent)
        return
    if _is_news(state, before):
        # Before the writes, which may be slow.
        now, is_paused = context.clock.now(), context.clock.is_disputed()
        emit(context, state.objects, events.deadline_announced(state.deadline, now, is_paused=is_paused))
    at = state.deadline.at
    with anyio.move_on_after(max(at - context.clock.now(), OVERDUE_SECONDS)):
        for tracked in state.objects:
            unwritten = at if deadline_patch(tracked.latest, at) else None
            if isinstance(tracked.latest, Node) and unwritten is not None:
                try:
                    await _write(context, tracked, unwritten, traceparent)
                except Invalid as error:  # it would fail again and again: the termination continues without it
                    logger.warning("deadline: write refused; the deadline counts: %s", error, extra=tracked.log_keys)
            else:
                await _try_to_write(context, tracked, unwritten, traceparent)


def _is_news(state: AnyState, before: Deadline | None) -> bool:
    """Whether this deadline was not reported yet. A former process has reported a deadline that all objects show."""
    assert state.deadline is not None
    at = state.deadline.at
    if before is not None:
        return before.at != at
    return not state.is_resumed or any(written_deadline(tracked.latest) != at for tracked in state.objects)


def report_invalid_deadline(
    context: StepContext, state: AnyState, tracked: AnyTracked, annotation: str = names.TERMINATION_TIMESTAMP
) -> None:
    """Emit an Event, once, about an annotation that is not a valid instant."""
    text = invalid_deadline(tracked.latest, annotation)
    if text is not None and (tracked.uid, text) not in state.reported:
        state.reported.add((tracked.uid, text))
        emit(context, state.objects, events.unreadable_deadline(tracked, text, state.deadline, annotation))


async def _try_to_write(
    context: StepContext, tracked: TrackedObject[H], deadline: float | None, traceparent: str | None
) -> None:
    """Write, not longer than WRITE_SECONDS, and not more often than RETRY_SECONDS after a failure."""
    if context.clock.monotonic() < tracked.next_try or deadline_patch(tracked.latest, deadline, traceparent) is None:
        return
    if context.background.is_under_way(_key(tracked)):
        return
    try:
        await _write(context, tracked, deadline, traceparent, WRITE_SECONDS)
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
    """Write. Raises TimeoutError after `seconds`; the write continues in the background."""

    async def write() -> None:
        after = await patch_with_retry(context.client, tracked.cancellable, tracked.latest, missing)
        if after is not None:
            tracked.wrote(after)

    def missing(thing: H) -> MergePatch | None:
        return deadline_patch(thing, deadline, traceparent)

    key = _key(tracked)
    if context.background.is_under_way(key):
        await context.background.join(key, write, seconds)  # of another deadline, perhaps
        if missing(tracked.latest) is None:
            return
    await context.background.join(key, write, seconds)


def deadline_patch(
    thing: Node | NodeClaim, deadline: float | None, traceparent: str | None = None
) -> MergePatch | None:
    """Patch that writes the deadline (Unix seconds), unless an earlier one is written, and the traceparent."""
    annotations = missing_deadline(thing, deadline)
    if traceparent is not None and thing.annotations.get(names.TRACEPARENT) != traceparent:
        annotations[names.TRACEPARENT] = traceparent
    return MergePatch({"metadata": {"annotations": annotations}}) if annotations else None
