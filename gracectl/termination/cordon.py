"""The cordon: a node takes no more pods and no more traffic from outside, before the first pod leaves.

It is the fourth step of a termination and the first one of a node that is kept drained. A node that stays is uncordoned
one day, so what that is to take off is recorded on it, in the same write. Invariant: a cordon that is no longer asked
for, or an uncordon that is no longer, is never written, as each is computed from the very state that it changes.
"""

from __future__ import annotations

from collections.abc import Callable

from gracectl.kube.amend import amend
from gracectl.kube.requests import JsonPatch
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark, annotation, lacking, recorded, removals, without
from gracectl.policy.kept import is_given_back, is_kept, marks_of
from gracectl.termination.announce import announce
from gracectl.termination.steps import Answer, Proceed, Release, Tools, Wait
from gracectl.termination.termination import Termination


async def cordon(tools: Tools, termination: Termination) -> Answer:
    """Set spec.unschedulable, the taint and the load balancer label in one write."""
    needed: Callable[[Node], JsonPatch | None] = missing_on_kept if termination.is_kept else missing
    before = termination.node
    if needed(before):
        after = await amend(tools.client, termination.held.abandonable, before, needed)
        if after is None:
            return Release("the node is gone")
        termination.held.wrote(after)
        if missing(after):
            return Wait(0.0, "nobody asks for its cordon any more")
        message = f"takes no more pods and no traffic from outside: it {termination.fate}"
        announce(tools, (termination.held,), names.EventReason.CORDONED, message)
    if termination.cordoned_at is None:
        termination.cordoned_at = tools.clock.now()
    return Proceed()


def missing(node: Node) -> JsonPatch | None:
    """What is still needed; taints of others are left exactly as they are."""
    operations = list(lacking(node).values())
    return JsonPatch(operations) if operations else None


def missing_on_kept(node: Node) -> JsonPatch | None:
    """What is still needed on a node that is kept, with the record of it; None also when it is not to be kept any more.

    A taint or label that was there before is somebody else's. That the node is unschedulable is recorded whoever has
    made it so: an uncordon makes it schedulable, as kubectl's does.
    """
    if not is_kept(node):
        return None
    additions = lacking(node)
    record = recorded({*marks_of(node), *additions, Mark.UNSCHEDULABLE})
    operations = list(additions.values())
    if node.annotations.get(names.CORDONED) != record:
        operations.append(annotation(names.CORDONED, record))
    return JsonPatch(operations) if operations else None


def superfluous(node: Node, since: str | None = None) -> JsonPatch | None:
    """What is to come off a node that is given back: what is recorded, and the request; None also when it is not (any
    more). The record stays, empty: our conditions are still there.

    `since`: the instant to count its health from; None if it is well.
    """
    if not is_given_back(node):
        return None
    operations = removals(node, marks_of(node))
    if names.KEEP_DRAINED in node.annotations:
        operations.append(without(names.KEEP_DRAINED))
    if node.annotations[names.CORDONED]:
        operations.append(annotation(names.CORDONED, ""))
    if not operations:
        return None
    if since is not None:
        operations.append(annotation(names.UNCORDONED, since))
    elif names.UNCORDONED in node.annotations:
        operations.append(without(names.UNCORDONED))
    return JsonPatch(operations)


def forgotten(node: Node) -> JsonPatch | None:
    """The patch that takes the empty record off a node that was given back; None when that is not so (any more)."""
    if not is_given_back(node) or node.annotations[names.CORDONED]:
        return None
    return JsonPatch([without(names.CORDONED)])
