"""The cordon: a node takes no more pods and no more traffic from outside, before the first pod leaves.

It is the fourth step of a termination and the first one of a node that is kept drained. A node that stays is uncordoned
one day, so what that is to take off is recorded on it, in the same write. Invariant: a cordon that is no longer asked
for, or an uncordon that is no longer, is never written, as each is computed from the very state that it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gracectl.controllers.pipeline.state import NodeState
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, StepContext, Wait
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.policy.cordon import SPELT, Mark, annotation, lacking, recorded, removals, takes_pods, without
from gracectl.policy.maintenance import is_maintenance_ending, is_maintenance_requested, recorded_marks


async def cordon(context: StepContext, state: NodeState) -> Answer:
    """Set spec.unschedulable, the taint and the load balancer label in one write.

    A webhook (in the very write) or a controller may undo it: then it is written again, less and less often, and the
    drain goes on as long as anything keeps new pods off. Without that the node waits, for its deadline at the latest.
    """
    needed: Callable[[Node], JsonPatch | None] = missing_on_kept if state.is_maintenance else missing
    before = state.node
    if needed(before) and context.clock.monotonic() >= state.next_cordon:
        after = await _written(context, state, needed)
        if after is None:
            return Release("the node is gone")
        if state.is_maintenance and not is_maintenance_requested(after):
            return Wait(0.0, "nobody asks for its cordon any more")
        state.next_cordon = context.clock.monotonic() + state.recordon.next()
        undone = tuple(lacking(after)) or (tuple(lacking(before)) if state.cordoned_at is not None else ())
        if undone:
            _tell_of_undoing(context, state, undone)
        else:
            message = f"takes no more pods and no traffic from outside: it {state.fate}"
            emit_event(context, (state.tracked,), names.EventReason.CORDONED, message)
    if not takes_pods(state.node) or state.is_overdue(context.clock.now()):
        if state.cordoned_at is None:
            state.cordoned_at = context.clock.now()
        return Proceed()
    wait = max(state.next_cordon - context.clock.monotonic(), 0.0)
    return Wait(wait, "its cordon is undone by a webhook or another controller, and it would take new pods")


def _tell_of_undoing(context: StepContext, state: NodeState, undone: Collection[Mark]) -> None:
    listed = " and ".join(SPELT[mark] for mark in undone)
    takes = takes_pods(state.node)
    goes_on = "no pod is asked to leave until the node takes no new ones" if takes else "the drain goes on"
    message = (
        f"{listed}: taken off again by a webhook or another controller; it is written again, less and less often, and "
        f"{goes_on}"
    )
    emit_event(context, (state.tracked,), names.EventReason.CORDON_UNDONE, message, "Warning", news=recorded(undone))


async def _written(context: StepContext, state: NodeState, needed: Callable[[Node], JsonPatch | None]) -> Node | None:
    """The node with what was needed; None when it is gone."""

    async def write() -> Node | None:
        after = await patch_with_retry(context.client, state.tracked.abandonable, state.node, needed)
        if after is not None:
            state.tracked.wrote(after)
        return after

    if state.is_maintenance:
        return await write()  # the return of the node breaks it off
    # The deadline does not: the server may be as slow as its webhooks.
    return await context.background.join(("cordon", state.uid), write)


def missing(node: Node) -> JsonPatch | None:
    """What is still needed; taints of others are left exactly as they are."""
    operations = list(lacking(node).values())
    return JsonPatch(operations) if operations else None


def missing_on_kept(node: Node) -> JsonPatch | None:
    """What is still needed on a node that is kept, with the record of it; None also when it is not to be kept any more.

    A taint or label that was there before is somebody else's. That the node is unschedulable is recorded whoever has
    made it so: an uncordon makes it schedulable, as kubectl's does.
    """
    if not is_maintenance_requested(node):
        return None
    additions = lacking(node)
    record = recorded({*recorded_marks(node), *additions, Mark.UNSCHEDULABLE})
    operations = list(additions.values())
    if node.annotations.get(names.CORDONED) != record:
        operations.append(annotation(names.CORDONED, record))
    return JsonPatch(operations) if operations else None


def superfluous(node: Node, since: str | None = None) -> JsonPatch | None:
    """What is to come off a node that is given back: what is recorded, and the request; None also when it is not (any
    more). The record stays, empty: our conditions are still there.

    `since`: the instant to count its health from; None if it is well.
    """
    if not is_maintenance_ending(node):
        return None
    operations = removals(node, recorded_marks(node))
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
    if not is_maintenance_ending(node) or node.annotations[names.CORDONED]:
        return None
    return JsonPatch([without(names.CORDONED)])
