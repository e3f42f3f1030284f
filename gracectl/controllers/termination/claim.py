"""Step "claim": delete the claim of the node, so that both share one deadline.

A node with several claims is treated as having none, with an Event. So is a left-over node: its claim belongs to the
node that lives on. Invariant: a claim that cannot be deleted does not delay the node beyond its deadline; it is
retried, and only the node's finalizer waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.termination.context import Answer, Proceed, StepContext
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.finalizer import addition
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import delete, patch_with_retry
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import natural_key

RETRY_SECONDS = 5.0
"""Between two attempts to delete the claim."""

PATIENCE_SECONDS = 1.0
"""The step waits so long for the deletion of the claim, which goes on in the background."""


async def delete_claim_of_node(context: StepContext, state: NodeState) -> Answer:
    """Delete the claim if it is not being deleted; proceeds in any case."""
    claim = context.cluster.claim_ending_with(state.node)
    if claim is None:
        # The deadline of a claim that is gone stands in the annotation of the node.
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
        f"node claim {tracked.name} cannot be deleted with node {state.node.name}: {error}; retrying; the "
        "node drains meanwhile, and stays until then"
    )
    emit_event(context, state.objects, names.EventReason.CLAIM_DELETION_FAILED, message, "Warning")


def _report_several_claims(context: StepContext, state: NodeState, claims: Sequence[NodeClaim]) -> None:
    listed = ", ".join(sorted((each.name for each in claims), key=natural_key))
    if (state.tracked.uid, listed) in state.reported:
        return
    state.reported.add((state.tracked.uid, listed))
    message = f"several node claims have this node ({listed}): none is used; delete all but one"
    emit_event(context, (state.tracked,), names.EventReason.SEVERAL_CLAIMS, message, "Warning")


async def delete_claim(context: StepContext, tracked: TrackedObject[NodeClaim]) -> None:
    """Delete a claim that our finalizer holds, so that its deletionTimestamp stands until its nodes are gone."""
    # Without a finalizer the claim would be gone at once, and its deletionTimestamp with it.
    kept = await patch_with_retry(context.client, tracked.cancellable, tracked.latest, addition)
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
