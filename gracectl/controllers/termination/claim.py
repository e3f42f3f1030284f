"""Step "claim": delete the claim of the node, so that both share one deadline.

A node with several claims is treated as having none, with an Event. So is a left-over node: its claim belongs to the
node that lives on. Invariant: a claim that cannot be deleted does not delay the node beyond its deadline; it is
retried, and only the node's finalizer waits for it.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.finalizer import finalizer_patch
from gracectl.controllers.termination.report import emit
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import delete, patch_with_retry
from gracectl.model.claim import NodeClaim

RETRY_SECONDS = 5.0
"""Seconds between two attempts to delete the claim."""

DELETION_SECONDS = 1.0
"""How long the step waits for the deletion of the claim, which continues in the background."""


async def delete_claim_of_node(context: StepContext, state: NodeState) -> Answer:
    """Delete the claim if it is not being deleted; proceeds in any case."""
    claim = context.cluster.claim_ending_with(state.node)
    if claim is None:
        # The annotation of the node has the deadline of a claim that is gone.
        state.claim = None
        claims = context.cluster.claims_of(state.node)
        key = (state.uid, str(sorted(each.name for each in claims)))
        if len(claims) < 2 or key in state.reported:
            return Answer(Next.PROCEED)
        state.reported.add(key)
        return Answer(Next.PROCEED, events=(events.several_claims(state.tracked, claims),))
    tracked = state.claim
    if tracked is None or tracked.uid != claim.uid:
        tracked = state.claim = TrackedObject(context.claim_resource(), claim)
    tracked.resource = context.claim_resource()
    tracked.refresh(claim)
    if tracked.latest.deletion_timestamp is not None:
        return Answer(Next.PROCEED)
    if context.clock.monotonic() < state.next_claim:
        return Answer(Next.PROCEED, state.next_claim - context.clock.monotonic())
    key = ("claim", tracked.uid)
    if not context.background.is_under_way(key):
        with suppress(TimeoutError):
            await context.background.join(key, lambda: _try_to_delete(context, state, tracked), DELETION_SECONDS)
    is_deleted = tracked.latest.deletion_timestamp is not None
    return Answer(Next.PROCEED, math.inf if is_deleted else RETRY_SECONDS)


async def _try_to_delete(context: StepContext, state: NodeState, tracked: TrackedObject[NodeClaim]) -> None:
    try:
        await delete_claim(context, tracked)
    except NotLeading:
        raise
    except ApiError as error:
        state.next_claim = context.clock.monotonic() + RETRY_SECONDS
        # Here, as the step may have stopped waiting.
        emit(context, state.objects, events.claim_deletion_failed(tracked.name, state.node.name, error))


async def delete_claim(context: StepContext, tracked: TrackedObject[NodeClaim]) -> None:
    """Delete a claim, after adding our finalizer: its deletionTimestamp must remain until its nodes are gone."""
    patch = partial(finalizer_patch, context.finalizer())
    kept = await patch_with_retry(context.client, tracked.cancellable, tracked.latest, patch)
    if kept is None:
        return
    tracked.wrote(kept)
    if kept.deletion_timestamp is not None:
        return
    await delete(context.client, tracked.cancellable, kept)
    try:
        # The response to a DELETE does not always hold the object, and its deletionTimestamp must be known now.
        after = await context.client.get(tracked.resource, kept.key)
    except NotFound:
        return
    if after.uid == tracked.uid:
        tracked.wrote(after)
