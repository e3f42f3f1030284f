"""The first step: a node and its claim end together, so that both share one clock.

The claim is found anew on each walk. A node that belongs to several claims is treated as having none, and an Event
says so; so is one that is left over, since its claim is that of the node that lives on. Invariant: whatever a claim
does, its node ends by the deadline. So what cannot be done about the claim is told, and tried again with the next
walk; only the node's finalizer waits for it, since nothing else would delete the claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.node.finalizer import addition
from gracectl.controllers.pipeline.state import NodeState
from gracectl.controllers.pipeline.steps import Answer, Proceed, StepContext
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import delete, patch_with_retry
from gracectl.model import names
from gracectl.model.claim import NodeClaim

RETRY_SECONDS = 5.0
"""A drain is looked at with every event of a pod; a claim that could not be deleted is tried no more often than this.
"""

PATIENCE_SECONDS = 1.0
"""A server that is slow to answer for its claims must not hold up the node: the deletion goes on beside its walk."""


async def delete_claim_of_node(context: StepContext, state: NodeState) -> Answer:
    """Make sure that the claim that ends with the node is being deleted; goes on in any case."""
    claim = context.cluster.claim_ending_with(state.node)
    if claim is None:
        # A claim that we knew and that is gone has left its deadline in the annotation of the node.
        state.claim = None
        claims = context.cluster.claims_of(state.node)
        if len(claims) > 1:
            _report_several_claims(context, state, claims)
        return Proceed()
    tracked = state.claim
    if tracked is None or tracked.uid != claim.uid:
        tracked = state.claim = TrackedObject(context.claim_resource(), claim)
    tracked.resource = context.claim_resource()
    tracked.refresh(claim)
    if tracked.latest.deletion_timestamp is not None:
        return Proceed()
    if context.clock.monotonic() < state.next_claim:
        return Proceed(state.next_claim - context.clock.monotonic())
    key = ("claim", tracked.uid)
    if not context.background.is_under_way(key):
        with suppress(TimeoutError):
            await context.background.join(key, lambda: _try_to_delete(context, state, tracked), PATIENCE_SECONDS)
    return Proceed(math.inf if tracked.latest.deletion_timestamp is not None else RETRY_SECONDS)


async def _try_to_delete(context: StepContext, state: NodeState, tracked: TrackedObject[NodeClaim]) -> None:
    try:
        await delete_claim(context, tracked)
    except NotLeading:
        raise
    except ApiError as error:
        state.next_claim = context.clock.monotonic() + RETRY_SECONDS
        _report_failure(context, state, tracked, error)


def _report_failure(context: StepContext, state: NodeState, tracked: TrackedObject[NodeClaim], error: ApiError) -> None:
    message = (
        f"node claim {tracked.name} cannot be deleted with node {state.node.name}: {error}; it is tried again, and "
        "the node, which drains meanwhile, stays until then"
    )
    emit_event(context, state.objects, names.EventReason.CLAIM_DELETION_FAILED, message, "Warning")


def _report_several_claims(context: StepContext, state: NodeState, claims: Sequence[NodeClaim]) -> None:
    listed = ", ".join(sorted(each.name for each in claims))
    if (state.tracked.uid, listed) in state.reported:
        return
    state.reported.add((state.tracked.uid, listed))
    message = f"several node claims stand for this node ({listed}), so none of them counts; delete all but one"
    emit_event(context, (state.tracked,), names.EventReason.SEVERAL_CLAIMS, message, "Warning")


async def delete_claim(context: StepContext, tracked: TrackedObject[NodeClaim]) -> None:
    """Delete a claim that our finalizer holds, so that its deletionTimestamp stands until its nodes are gone."""
    # A claim that nobody holds would be gone at once, and the clock with it.
    kept = await patch_with_retry(context.client, tracked.cancellable, tracked.latest, addition)
    if kept is None:
        return
    tracked.wrote(kept)
    if kept.deletion_timestamp is not None:
        return
    await delete(context.client, tracked.cancellable, kept)
    try:
        # The answer to a deletion does not always hold the object; when its clock began must be known now.
        after = await context.client.get(tracked.resource, kept.key)
    except NotFound:
        return
    if after.uid == tracked.uid:
        tracked.wrote(after)
