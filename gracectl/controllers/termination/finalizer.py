"""Step "finalizer", and the patches that add, replace and remove our finalizer."""

from __future__ import annotations

import math
from collections.abc import Collection

from gracectl.controllers.cluster.tracked import AnyTracked
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import pointer
from gracectl.model.node import Node
from gracectl.model.nodedrain import NodeDrain
from gracectl.policy.finalizers import FinalizerRule, needs_finalizer


async def remove_finalizer(context: StepContext, state: NodeState) -> Answer:
    """Remove our finalizer; the API server removes the node when it has no other.

    Not before its claim is being deleted: nothing would delete it when the node is gone.
    """
    claim = state.claim
    if claim is not None and claim.latest.deletion_timestamp is None:
        return Answer(Next.WAIT, math.inf, f"node claim {claim.name} cannot be deleted")
    await take_finalizer_off(context, state.tracked)
    return Answer(Next.PROCEED)


async def take_finalizer_off(context: StepContext, tracked: AnyTracked) -> None:
    """Remove our finalizer. Without any the server has removed the object, which the watch may show late."""
    after = await patch_with_retry(context.client, tracked.resource, tracked.latest, finalizer_removal_patch)
    if after is not None:
        tracked.wrote(after)
    if after is None or (after.deletion_timestamp is not None and not after.finalizers):
        context.cluster.learn_gone(tracked.latest)


def finalizer_removal_patch(
    thing: Node | NodeClaim | NodeDrain, finalizers: Collection[str] = names.FINALIZERS
) -> JsonPatch | None:
    """The patch that takes our finalizers off, by their places: the write is refused if the list has changed."""
    places = [place for place, each in enumerate(thing.finalizers) if each in finalizers]
    return JsonPatch([_removal(place) for place in reversed(places)]) if places else None


def finalizer_patch(rule: FinalizerRule, thing: Node | NodeClaim) -> JsonPatch | None:
    """The patch that adds our finalizer, or puts it in the place of the one that it replaces."""
    if rule.is_replaced_on(thing):
        place = thing.finalizers.index(rule.replaced)
        if rule.name in thing.finalizers:
            return JsonPatch([_removal(place)])
        return JsonPatch([{"op": "replace", "path": _path(str(place)), "value": rule.name}])
    if not needs_finalizer(thing):
        return None
    return added_finalizer_patch(thing, rule.name)


def added_finalizer_patch(thing: Node | NodeClaim | NodeDrain, name: str) -> JsonPatch:
    """The patch that adds this finalizer, which the object does not have."""
    if thing.finalizers:
        return JsonPatch([{"op": "add", "path": _path("-"), "value": name}])
    return JsonPatch([{"op": "add", "path": _path(), "value": [name]}])


def _removal(place: int) -> dict[str, str]:
    return {"op": "remove", "path": _path(str(place))}


def _path(*place: str) -> str:
    return pointer("metadata", "finalizers", *place)
