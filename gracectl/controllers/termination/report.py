"""Conditions on nodes and claims: what `kubectl describe` shows while a termination waits."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Final

import anyio

from gracectl.controllers.cluster.tracked import AnyTracked, H, TrackedObject, WrittenCondition
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.state import E
from gracectl.kube.conditions import ConditionUpdate, condition_patch, condition_removal
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch, MergePatch, Patch
from gracectl.model import names
from gracectl.model.meta import condition_of, pointer
from gracectl.model.node import Node

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""How long a termination waits for the write of a condition; a slower one is completed in the background."""


STATUS_WRITES: Final = 50
"""Writes of conditions at the same time, and as many again of those that last longer than a second: conditions only
inform, and a status webhook that hangs must not cost a connection for each condition of each node.
"""


def status_group(key: Hashable) -> Hashable:
    """Group of a write, by its key: the object. A webhook that hangs for one condition of it hangs for the others."""
    assert isinstance(key, tuple)
    return str(key[1])


async def set_condition(
    context: StepContext,
    objects: Sequence[AnyTracked],
    update: ConditionUpdate,
    *,
    seconds: float = PATIENCE_SECONDS,
    is_final: bool = False,
) -> float:
    """Write a condition to each of `objects` (a node, its claim) where it differs; returns after how many seconds to
    call again because it could not be written to all of them now, inf if it was.

    A change of the message alone is written at most every `status_interval_seconds`, unless it `is_final`. A condition
    informs operators only: a failure is logged, and one that takes longer than `seconds` (PATIENCE_SECONDS at most) is
    completed in the background, until when no further update of it is sent.
    """
    now = context.clock.now()
    for tracked in objects:
        tracked.wanted[update.type] = update
    due = [
        tracked
        for tracked in objects
        if _is_due(context, tracked, update, now, is_final=is_final)
        and not context.status_writes.is_under_way(_key(tracked, update))
    ]
    if due:
        async with anyio.create_task_group() as group:
            for tracked in due:
                group.start_soon(_set, context, tracked, update, min(seconds, PATIENCE_SECONDS))
    return min((_seconds_until_due(context, tracked, update) for tracked in objects), default=math.inf)


async def remove_conditions(context: StepContext, tracked: TrackedObject[Node], types: Sequence[str]) -> None:
    """Remove conditions from a node, also those that the watch does not show yet.

    Raises ApiError: a condition that is no longer true must not stay.
    """
    for type_ in types:
        tracked.written.pop(type_, None)
        tracked.wanted.pop(type_, None)
    try:
        after = await context.client.patch(
            tracked.cancellable,
            tracked.latest.key,
            condition_removal(types),
            subresource="status",
            uid=tracked.uid,
        )
    except NotFound:
        return
    tracked.wrote(after)


async def report_step_failure(context: StepContext, state: E, step: str, error: ApiError) -> None:
    """Report a step that has been failing for some time: an Event per cause, and a condition.

    The condition is the one at which the termination stands, so that others keep what they say.
    """
    message = f"step {step} failed: {error}; retrying"
    state.waits_for = message
    if state.failures.failed(step, type(error).__name__, context.clock.monotonic()):
        emit_event(context, state.objects, names.EventReason.STEP_FAILING, message, "Warning")
    if state.failures.lasts(step, context.clock.monotonic()):
        drained = condition_of(state.tracked.latest.conditions, names.DRAINED)
        is_drained = drained is not None and drained.status == names.TRUE
        type_, status = (names.INSTANCE_TERMINATING, names.TRUE) if is_drained else (names.DRAINED, names.FALSE)
        await set_condition(context, state.objects, ConditionUpdate(type_, status, names.STEP_FAILING, message))


def seconds_until_allowed(context: StepContext, objects: Sequence[AnyTracked], type_: str) -> float:
    """After how long a new message of this condition may be written to the first of `objects`; 0.0 if it may now."""
    now = context.clock.now()
    written = [tracked.written.get(type_) for tracked in objects]
    return min(max(_allowed_at(context, one) - now, 0.0) for one in written)


def _allowed_at(context: StepContext, written: WrittenCondition | None) -> float:
    """When (Unix seconds) a new message of a condition may be written that was last written like this."""
    return -math.inf if written is None else written.at + context.settings.status_interval_seconds


def _seconds_until_due(context: StepContext, tracked: AnyTracked, update: ConditionUpdate) -> float:
    """After how long to try to write a condition again; inf if it is shown."""
    if update.is_shown_by(tracked.latest.conditions):
        return math.inf
    interval, written = context.settings.status_interval_seconds, tracked.written.get(update.type)
    if written is None or context.status_writes.is_under_way(_key(tracked, update)):
        return interval
    left = _allowed_at(context, written) - context.clock.now()
    return left if left > 0 else interval


def _is_due(context: StepContext, tracked: AnyTracked, update: ConditionUpdate, now: float, *, is_final: bool) -> bool:
    """Whether the update changes the condition, and is no change of the message too soon after the one before."""
    if update.is_shown_by(tracked.latest.conditions):
        return False
    # Our last write counts even if the watch, or another client's write, shows an older state.
    written = tracked.written.get(update.type)
    return is_final or written is None or written.status != update.status or now >= _allowed_at(context, written)


async def _set(context: StepContext, tracked: TrackedObject[H], update: ConditionUpdate, seconds: float) -> None:
    now = context.clock.now()
    shown, written = condition_of(tracked.latest.conditions, update.type), tracked.written.get(update.type)
    transition = now
    if written is not None and written.status == update.status:
        transition = written.transition
    elif written is None and shown is not None and shown.status == update.status and shown.last_transition is not None:
        transition = shown.last_transition
    tracked.written[update.type] = WrittenCondition(update.status, at=now, transition=transition)
    with suppress(TimeoutError):
        key = _key(tracked, update)
        await context.status_writes.join(key, lambda: _try_to_write(context, tracked, update, transition), seconds)


def _key(tracked: AnyTracked, update: ConditionUpdate) -> tuple[str, str]:
    return (update.type, tracked.uid)


async def _try_to_write(
    context: StepContext, tracked: TrackedObject[H], update: ConditionUpdate, transition: float
) -> None:
    try:
        # Shielded: a write that has begun is completed on shutdown, as long as the fence permits.
        with anyio.CancelScope(shield=True):
            await _write(context, tracked, update, transition)
    except (NotFound, NotLeading):
        return
    except ApiError as error:
        logger.warning("condition %s: write failed: %s", update.type, error, extra=tracked.log_keys)


async def _write(context: StepContext, tracked: TrackedObject[H], update: ConditionUpdate, transition: float) -> None:
    resource = tracked.cancellable
    after: H | None
    if resource.group:
        # Custom resources have no strategic merge, and their conditions no heartbeat.
        entry = update.entry(transition)
        after = await patch_with_retry(
            context.client, resource, tracked.latest, lambda thing: _replace_entry(thing, entry), subresource="status"
        )
    else:
        patch = condition_patch(update, transition, context.clock.now())
        after = await context.client.patch(resource, tracked.latest.key, patch, subresource="status", uid=tracked.uid)
    if after is not None:
        tracked.wrote(after)


def _replace_entry(thing: H, condition: dict[str, str]) -> Patch:
    """The patch that puts the entry into the list of conditions as it was read."""
    types = [each.type for each in thing.conditions]
    if not types:
        return MergePatch({"status": {"conditions": [condition]}})
    if condition["type"] not in types:
        return JsonPatch([{"op": "add", "path": "/status/conditions/-", "value": condition}])
    path = pointer("status", "conditions", str(types.index(condition["type"])))
    return JsonPatch([{"op": "replace", "path": path, "value": condition}])
