"""The first step: a node and its claim end together, so that both share one clock.

The claim is found anew on each walk. A node that belongs to several claims is treated as having none, and somebody is
told.
"""

from __future__ import annotations

from gracectl.kube.errors import NotFound
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.policy.ownership import only_claim
from gracectl.termination.announce import announce
from gracectl.termination.finalizer import addition
from gracectl.termination.held import Held
from gracectl.termination.steps import Answer, Proceed, Tools
from gracectl.termination.termination import Termination
from gracectl.termination.writes import amend


async def end_claim(tools: Tools, termination: Termination) -> Answer:
    """Make sure that the node's claim, if it has one, is being deleted."""
    claims = tools.observed.claims_of(termination.node)
    claim = only_claim(claims)
    if claim is None:
        # A claim that we knew and that is gone has let its annotation and its deadline on the node.
        termination.claim = None
        if claims:
            listed = ", ".join(sorted(each.name for each in claims))
            message = f"several node claims stand for this node ({listed}), so none is followed; delete all but one"
            announce(tools, (termination.held,), names.EventReason.SEVERAL_CLAIMS, message, "Warning")
        return Proceed()
    if termination.claim is None or termination.claim.uid != claim.uid:
        termination.claim = Held(tools.claim_resource(), claim)
    termination.claim.refresh(claim)
    if termination.claim.state.deletion_timestamp is None:
        await delete_claim(tools, termination.claim)
    return Proceed()


async def delete_claim(tools: Tools, held: Held[NodeClaim]) -> None:
    """Delete a claim that our finalizer holds, so that its deletionTimestamp stands until its nodes are gone."""
    # A claim that nobody holds would be gone at once, and the clock with it.
    kept = await amend(tools.client, held.resource, held.state, addition)
    if kept is None:
        return
    held.wrote(kept)
    try:
        await tools.client.delete(held.resource, kept.key, uid=held.uid)
        # The answer to a deletion does not always hold the object; when its clock began must be known now.
        held.wrote(await tools.client.get(held.resource, kept.key))
    except NotFound:
        return
