"""Writer of Events and conditions on nodes, claims and pods; the only one of terminations and disruptions.

Invariants: recording an Event never blocks and never fails. A condition informs operators only: no failure to write one
stops a termination, and none waits for it longer than PATIENCE_SECONDS.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Final

import anyio

from gracectl.controllers.cluster.tracked import AnyTracked, H, TrackedObject, WrittenCondition
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, StepContext
from gracectl.controllers.termination.events import Event
from gracectl.controllers.termination.state import AnyState
from gracectl.kube.conditions import ConditionUpdate, condition_patch, condition_removal_patch
from gracectl.kube.errors import (
    ApiError,
    NotFound,
    NotLeading,
)
from gracectl.kube.events import EventRecorder, Subject
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch, MergePatch, Patch
from gracectl.kube.resources import PODS
from gracectl.model import names
from gracectl.model.meta import condition_of, pointer, turned_at
from gracectl.model.node import Node
from gracectl.model.pod import Pod

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""How long a termination waits for the write of a condition; a slower one is completed in the background."""

STATUS_WRITES: Final = 50
"""Concurrent writes of conditions, and as many again of writes that last longer than a second: conditions only inform,
and a status webhook that hangs must not cost a connection for each condition of each node."""


def status_group(key: Hashable) -> Hashable:
    """Group of a write, by its key: the object. A webhook that hangs for one condition hangs for the others, too."""
    assert isinstance(key, tuple)
    return str(key[1])


async def report(
    context: StepContext, objects: Sequence[AnyTracked], answer: Answer, patience: float = PATIENCE_SECONDS
) -> float:
    """Record the Events of an answer, and write its conditions. Returns the seconds until the steps must run again.

    `patience`: seconds to wait for a condition.
    """
    emit(context, objects, *answer.events)
    began, due = context.clock.monotonic(), math.inf
    for update in answer.conditions:
        seconds = await set_condition(context, objects, update, patience=patience, is_final=answer.is_final)
        due = min(due, seconds)
    return min(due, max(answer.seconds - (context.clock.monotonic() - began), 0.0))


def emit(context: StepContext, objects: Sequence[AnyTracked], *reported: Event) -> None:
    """Record Events on their own objects, or else on `objects` (a node, its claim), each with a line in the log."""
    for event in reported:
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        if isinstance(event.about, Pod):
            pod = event.about
            keys = {"pod": pod.full_name, "uid": pod.uid, "node": pod.node_name}
            subjects = [Subject.of(PODS, pod)]
        else:
            about = objects if event.about is None else (event.about,)
            keys, subjects = about[0].log_keys, [tracked.subject for tracked in about]
        logger.log(level, "%s: %s", event.reason, event.message, extra=keys)
        for subject in subjects:
            record(context.recorder, subject, event)


def record(recorder: EventRecorder, subject: Subject, event: Event) -> None:
    """Record an Event on `subject`."""
    recorder.record(subject, event.reason, event.message, event.type, dedup_key=event.dedup_key)


async def set_condition(
    context: StepContext,
    objects: Sequence[AnyTracked],
    update: ConditionUpdate,
    *,
    patience: float = PATIENCE_SECONDS,
    is_final: bool = False,
) -> float:
    """Write a condition to each of `objects` where it differs. Returns the seconds until the next try; inf: none.

    A change of the message alone is written at most every `status_interval_seconds`, unless it `is_final`. A failure is
    logged. A write that takes longer than `patience` is completed in the background; until then no further update of
    the condition is sent.
    """
    objects = [tracked for tracked in objects if tracked.is_ours]
    if not context.leaves_marks or not objects:
        return math.inf
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
                group.start_soon(_set, context, tracked, update, min(patience, PATIENCE_SECONDS))
    return min((_seconds_until_due(context, tracked, update) for tracked in objects), default=math.inf)


async def remove_conditions(context: StepContext, tracked: TrackedObject[Node], types: Sequence[str]) -> None:
    """Remove conditions from a node, also conditions that the watch does not show yet.

    Raises ApiError: a condition that is no longer true must not stay.
    """
    if not context.leaves_marks:
        return
    for type_ in types:
        tracked.written.pop(type_, None)
        tracked.wanted.pop(type_, None)
    resource, key, patch = tracked.cancellable, tracked.latest.key, condition_removal_patch(types)
    with suppress(NotFound):
        tracked.wrote(await context.client.patch(resource, key, patch, subresource="status", uid=tracked.uid))


async def report_step_failure(context: StepContext, state: AnyState, step: str, error: ApiError) -> None:
    """Report a step that has been failing for some time: an Event per cause, and a condition.

    The condition is the one that the termination works on, so that others keep what they say.
    """
    now = context.clock.monotonic()
    state.waits_for = message = f"step {step} failed: {error}; retrying"
    if state.failures.failed(step, type(error).__name__, now):
        emit(context, state.objects, events.step_failing(message))
    if state.failures.lasts(step, now):
        drained = condition_of(state.tracked.latest.conditions, names.DRAINED)
        is_drained = drained is not None and drained.status == names.TRUE
        type_, status = (names.INSTANCE_TERMINATING, names.TRUE) if is_drained else (names.DRAINED, names.FALSE)
        await set_condition(context, state.objects, ConditionUpdate(type_, status, names.STEP_FAILING, message))


def seconds_until_allowed(context: StepContext, objects: Sequence[AnyTracked], type_: str) -> float:
    """Seconds until a new message of this condition may be written to the first of `objects`; 0.0 if it may now."""
    now = context.clock.now()
    return min(max(_allowed_at(context, tracked.written.get(type_)) - now, 0.0) for tracked in objects)


def _allowed_at(context: StepContext, written: WrittenCondition | None) -> float:
    """When (Unix seconds) a new message of a condition may be written; `written`: its last write."""
    return -math.inf if written is None else written.at + context.settings.status_interval_seconds


def _seconds_until_due(context: StepContext, tracked: AnyTracked, update: ConditionUpdate) -> float:
    """Seconds until the next try to write a condition; inf if the object shows it."""
    if update.is_shown_by(tracked.latest.conditions):
        return math.inf
    interval, written = context.settings.status_interval_seconds, tracked.written.get(update.type)
    if written is None or context.status_writes.is_under_way(_key(tracked, update)):
        return interval
    left = _allowed_at(context, written) - context.clock.now()
    return left if left > 0 else interval


def _is_due(context: StepContext, tracked: AnyTracked, update: ConditionUpdate, now: float, *, is_final: bool) -> bool:
    """Whether the update changes the condition, and not just its message too soon after the last write."""
    if update.is_shown_by(tracked.latest.conditions):
        return False
    # Our last write counts even if the watch, or another client's write, shows an older state.
    written = tracked.written.get(update.type)
    return is_final or written is None or written.status != update.status or now >= _allowed_at(context, written)


async def _set(context: StepContext, tracked: TrackedObject[H], update: ConditionUpdate, seconds: float) -> None:
    now = context.clock.now()
    shown, written = condition_of(tracked.latest.conditions, update.type), tracked.written.get(update.type)
    if written is None:
        transition = turned_at(shown, update.status, now)
    else:
        transition = written.transition if written.status == update.status else now
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
    """Patch that puts the entry into the list of conditions as it was read."""
    types = [each.type for each in thing.conditions]
    if not types:
        return MergePatch({"status": {"conditions": [condition]}})
    if condition["type"] not in types:
        return JsonPatch([{"op": "add", "path": "/status/conditions/-", "value": condition}])
    path = pointer("status", "conditions", str(types.index(condition["type"])))
    return JsonPatch([{"op": "replace", "path": path, "value": condition}])
