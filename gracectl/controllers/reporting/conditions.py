"""Conditions on nodes and claims: what `kubectl describe` answers to "why is it stuck"."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import anyio

from gracectl.controllers.cluster.tracked import AnyTracked, H, Told, TrackedObject
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.kube.conditions import ConditionUpdate, said, unsaid
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch, MergePatch, Patch
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.pointers import pointer

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""A server that is slow to write a condition must not hold up the termination that it is about, which goes on."""


async def set_condition(
    context: StepContext,
    objects: Sequence[AnyTracked],
    word: ConditionUpdate,
    *,
    seconds: float = PATIENCE_SECONDS,
    is_final: bool = False,
) -> None:
    """Write a condition to each of `objects` (a node, its claim) if it says something new there.

    A mere change of message is written at most every `status_interval_seconds`, unless it `is_final`. A condition is
    for people: when it cannot be written, that is logged; when that takes longer than `seconds` (PATIENCE_SECONDS at
    most), it is written beside the termination, which goes on, and what is to be said next waits for that.
    """
    now = context.clock.now()
    due = [
        tracked
        for tracked in objects
        if _is_due(context, tracked, word, now, is_final=is_final)
        and not context.background.is_under_way(_key(tracked, word))
    ]
    if not due:
        return  # nearly always: each look at a node ends here
    async with anyio.create_task_group() as group:
        for tracked in due:
            group.start_soon(_set, context, tracked, word, min(seconds, PATIENCE_SECONDS))


async def drop_conditions(context: StepContext, tracked: TrackedObject[Node], types: Sequence[str]) -> None:
    """Take conditions off a node. Raises ApiError: a condition that is no longer true must not stay.

    All of them are named, whether or not we have seen them: one that we have written may not be shown yet.
    """
    for type_ in types:
        tracked.told.pop(type_, None)
    try:
        after = await context.client.patch(
            tracked.abandonable, tracked.latest.key, unsaid(types), subresource="status", uid=tracked.uid
        )
    except NotFound:
        return
    tracked.wrote(after)


def _is_due(context: StepContext, tracked: AnyTracked, word: ConditionUpdate, now: float, *, is_final: bool) -> bool:
    """Whether it says something new there, and is not only other words too soon."""
    shown = condition_of(tracked.latest.conditions, word.type)
    if shown is not None and (shown.status, shown.reason, shown.message) == (word.status, word.reason, word.message):
        return False
    # What we wrote last counts even if the watch, or a write of somebody else, shows an older state.
    told = tracked.told.get(word.type)
    return (
        is_final
        or told is None
        or told.status != word.status
        or now >= told.at + context.settings.status_interval_seconds
    )


async def _set(context: StepContext, tracked: TrackedObject[H], word: ConditionUpdate, seconds: float) -> None:
    now = context.clock.now()
    shown, told = condition_of(tracked.latest.conditions, word.type), tracked.told.get(word.type)
    turned = now
    if told is not None and told.status == word.status:
        turned = told.turned
    elif told is None and shown is not None and shown.status == word.status and shown.last_transition is not None:
        turned = shown.last_transition
    tracked.told[word.type] = Told(word.status, at=now, turned=turned)
    with suppress(TimeoutError):
        await context.background.join(
            _key(tracked, word), lambda: _try_to_write(context, tracked, word, turned), seconds
        )


def _key(tracked: AnyTracked, word: ConditionUpdate) -> tuple[str, str]:
    return (word.type, tracked.uid)


async def _try_to_write(context: StepContext, tracked: TrackedObject[H], word: ConditionUpdate, turned: float) -> None:
    try:
        # Shielded: told to stop, we still say what we have begun to say, as long as the fence lets us.
        with anyio.CancelScope(shield=True):
            await _write(context, tracked, word, turned)
    except (NotFound, NotLeading):
        return
    except ApiError as error:
        logger.warning("condition %s could not be written: %s", word.type, error, extra=tracked.log_keys)


async def _write(context: StepContext, tracked: TrackedObject[H], word: ConditionUpdate, turned: float) -> None:
    resource = tracked.abandonable
    after: H | None
    if tracked.resource.group:
        # Custom resources have no strategic merge, and their conditions no heartbeat.
        after = await patch_with_retry(
            context.client,
            resource,
            tracked.latest,
            lambda thing: _placed(thing, word.entry(turned)),
            subresource="status",
        )
    else:
        patch = said(word, turned, context.clock.now())
        after = await context.client.patch(resource, tracked.latest.key, patch, subresource="status", uid=tracked.uid)
    if after is not None:
        tracked.wrote(after)


def _placed(thing: H, condition: dict[str, str]) -> Patch:
    """The entry, put where it stands in the list that was read."""
    types = [each.type for each in thing.conditions]
    if not types:
        return MergePatch({"status": {"conditions": [condition]}})
    if condition["type"] not in types:
        return JsonPatch([{"op": "add", "path": "/status/conditions/-", "value": condition}])
    path = pointer("status", "conditions", str(types.index(condition["type"])))
    return JsonPatch([{"op": "replace", "path": path, "value": condition}])
