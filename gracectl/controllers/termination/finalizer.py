"""Step "finalizer", and the patches that add and remove our finalizer."""

from __future__ import annotations

import math

from gracectl.controllers.cluster.tracked import AnyTracked
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import pointer
from gracectl.model.node import Node


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


def finalizer_removal_patch(thing: Node | NodeClaim) -> JsonPatch | None:
    """The patch that takes our finalizer off, by its place: the write is refused if the list has changed."""
    if names.FINALIZER not in thing.finalizers:
        return None
    path = pointer("metadata", "finalizers", str(thing.finalizers.index(names.FINALIZER)))
    return JsonPatch([{"op": "remove", "path": path}])


def needs_finalizer(thing: Node | NodeClaim) -> bool:
    """Whether our finalizer is missing and can still be added."""
    return thing.deletion_timestamp is None and names.FINALIZER not in thing.finalizers


def finalizer_patch(thing: Node | NodeClaim) -> JsonPatch | None:
    """The patch that adds our finalizer; the server refuses new finalizers on an object that is being deleted."""
    if not needs_finalizer(thing):
        return None
    if thing.finalizers:
        return JsonPatch([{"op": "add", "path": "/metadata/finalizers/-", "value": names.FINALIZER}])
    return JsonPatch([{"op": "add", "path": "/metadata/finalizers", "value": [names.FINALIZER]}])
