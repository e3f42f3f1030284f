"""The steps of a claim's end: its nodes, then its instance, then our finalizer.

The nodes do the work: each is deleted, and its own termination cordons, drains and ends it. What is left for the claim
is to wait, and to end an instance that has no node (yet, or any more).

Invariant: the claim's finalizer goes when the provider has said that the instance is gone, or nobody ever launched one.
"""

from __future__ import annotations

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.node.deadline import publish
from gracectl.controllers.node.finalizer import addition, let_go
from gracectl.controllers.node.instance import end_instance, is_known_gone, leave_instance
from gracectl.controllers.pipeline.state import NodeClaimState
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, StepContext, Wait
from gracectl.controllers.reporting.conditions import set_condition
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import delete, patch_with_retry
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.claim import NodeClaim, belongs
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.deadlines import Deadline, deadline_of, earliest_deadline, written_deadline
from gracectl.policy.plan import plan

NODE_RETRY_SECONDS = 10.0
"""A node that could not be deleted is tried again this often."""

UNSEEN_SECONDS = 1.0
"""A node that the server has and the watch has not shown yet is looked for again after this time."""

NODES_SECONDS = 60.0
"""Nodes that are ending tell so themselves; in case that is missed, a claim looks for them this often."""


async def yield_to_rivals(context: StepContext, state: NodeClaimState) -> Answer:
    """Of several claims for one instance, all but the last one go without it."""
    rivals = context.cluster.rivals_of(state.claim)
    if not rivals:
        return Proceed()
    listed = ", ".join(sorted(each.name for each in rivals))
    message = (
        f"another node claim stands for the same instance ({listed}): this one goes, and gracectl ends neither "
        "node nor instance (but a node that has it in its ownerReferences, as Karpenter's do, the cluster deletes)"
    )
    emit_event(context, state.objects, names.EventReason.SEVERAL_CLAIMS, message, "Warning")
    return Release(message)


async def set_claim_deadline(context: StepContext, state: NodeClaimState) -> Answer:
    """The earliest deadline of the claim's nodes; of one that never had a node, its own."""
    claim = state.claim
    nodes = context.cluster.nodes_of(claim)
    if not nodes and (at := written_deadline(claim)) is not None:
        # Its nodes are gone, and the group of their labels with them: what they have left counts.
        state.deadline = earliest_deadline(state.deadline, Deadline(at))
        return Proceed()
    found = [deadline_of(node, claim, context.settings.policy) for node in nodes or (None,)]
    known = [deadline for deadline in found if deadline is not None]
    earliest = min(known, key=lambda deadline: deadline.at, default=None)
    if nodes and all(is_finalizing(node) for node in nodes):
        # Their own terminations write it, here too: two that write the same would be in each other's way.
        state.deadline = earliest_deadline(state.deadline, earliest)
    else:
        # With a node it is the node's trace, which its own termination writes.
        traceparent = None if nodes else state.observer.traceparent
        await publish(context, state, earliest, traceparent)
    return Proceed()


async def end_nodes(context: StepContext, state: NodeClaimState) -> Answer:
    """Delete all nodes of the claim, and wait until they are gone.

    The node of a claim that has not registered runs no pods worth a drain: it is not deleted, but not hurried either if
    somebody else deletes it.
    """
    nodes = context.cluster.nodes_of(state.claim)
    if not has_registered(state.claim):
        nodes = tuple(node for node in nodes if node.deletion_timestamp is not None)
    state.see(nodes)
    if not nodes:
        return await _check_that_none_is_left(context, state)
    if context.clock.monotonic() < state.next_deletion:
        return Wait(state.next_deletion - context.clock.monotonic(), state.waits_for)
    refusals, blocked = await _delete_nodes(context, state)
    state.budgets = {refusal.budget for refusal in blocked.values()}
    if refusals:
        state.next_deletion = context.clock.monotonic() + NODE_RETRY_SECONDS
        failures = "; ".join(f"node {name} cannot be deleted: {error}" for name, error in refusals.items())
        message = f"{failures}; tried again every {NODE_RETRY_SECONDS:g} s"
        emit_event(context, state.objects, names.EventReason.NODE_DELETION_FAILED, message, "Warning")
        word = ConditionUpdate(names.DRAINED, names.FALSE, "NodeDeletionFailed", message)
        await set_condition(context, state.objects, word)
        return Wait(NODE_RETRY_SECONDS, message)
    if blocked:
        return await _wait_for_budgets(context, state, blocked)
    listed = ", ".join(sorted(node.name for node in nodes))
    return Wait(NODES_SECONDS, f"its nodes are ending: {listed}")


def has_registered(claim: NodeClaim) -> bool:
    """Whether the claim may have a node with pods; only its own word says that it has not."""
    registered = condition_of(claim.conditions, names.REGISTERED)
    return registered is None or registered.status == names.TRUE


async def _check_that_none_is_left(context: StepContext, state: NodeClaimState) -> Answer:
    """Nodes and claims are watched apart: the node that a claim names may be there, and not shown yet."""
    claim = state.claim
    if state.has_seen_node or not claim.node_name or not has_registered(claim):
        return Proceed()
    try:
        node = await context.client.get(NODES, ("", claim.node_name))
    except NotFound:
        node = None
    if node is not None and belongs(node, claim):
        return Wait(UNSEEN_SECONDS, f"node {node.name} is there, and the watch has not shown it yet")
    state.has_seen_node = True
    return Proceed()


async def _wait_for_budgets(context: StepContext, state: NodeClaimState, blocked: dict[str, Refusal]) -> Wait:
    """Say what keeps the nodes; they go when their budgets change, or when the deadline demands it."""
    message = "; ".join(f"node {name} is to end, but {refusal}" for name, refusal in blocked.items())
    gist = " ".join(f"{name} {refusal.budget} {refusal.allowance}" for name, refusal in blocked.items())
    if gist != state.told_of_budgets:
        state.told_of_budgets = gist
        emit_event(context, state.objects, names.EventReason.DISRUPTION_HELD, message, news=gist)
    await set_condition(
        context, state.objects, ConditionUpdate(names.DRAINED, names.FALSE, "NodeDisruptionBudget", message)
    )
    due = [at for node in state.nodes if node.name in blocked and (at := forced_at(context, state, node)) is not None]
    return Wait(min([NODES_SECONDS, *(max(at - context.clock.now(), 0.0) for at in due)]), message)


def forced_at(context: StepContext, state: NodeClaimState, node: Node) -> float | None:
    """From when on the node has to end whatever its budgets say, so that its pods have their time before the deadline.

    None without a deadline.
    """
    if state.deadline is None:
        return None
    now, deadline = context.clock.now(), state.deadline
    decision = plan(context.cluster.view_without_budgets(node, context.settings.policy, deadline), now)
    return min((entry.delete_at for entry in decision.pods if entry.delete_at is not None), default=deadline.at)


def _is_due(context: StepContext, state: NodeClaimState, node: Node) -> bool:
    at = forced_at(context, state, node)
    return at is not None and at <= context.clock.now()


async def _delete_nodes(context: StepContext, state: NodeClaimState) -> tuple[dict[str, ApiError], dict[str, Refusal]]:
    """Delete the nodes that nobody has deleted; returns by name why it was not possible, and what does not allow it."""
    refusals: dict[str, ApiError] = {}
    blocked: dict[str, Refusal] = {}
    for node in state.nodes:
        if node.deletion_timestamp is None and node.uid not in state.deleted:
            try:
                refusal = await context.admitter.admit(node, is_watching=True)
                if refusal is not None and _is_due(context, state, node):
                    refusal = await context.admitter.admit(node, is_forced=True, is_watching=True)
                if refusal is not None:
                    blocked[node.name] = refusal
                    continue
                await delete_node(context, node)
                state.deleted.add(node.uid)
            except NotLeading:
                raise
            except ApiError as error:
                refusals[node.name] = error
    return refusals, blocked


async def delete_node(context: StepContext, node: Node) -> None:
    """Delete a node that our finalizer holds, so that its pods are asked before it goes.

    One that is not managed gets no finalizer: nobody here would take it off again.
    """
    kept: Node | None = node
    if context.settings.node_selector.matches(node.labels):
        kept = await patch_with_retry(context.client, NODES, node, addition)
    if kept is None or kept.deletion_timestamp is not None:
        return
    await delete(context.client, NODES, node)


async def end_claims_instance(context: StepContext, state: NodeClaimState) -> Answer:
    """End what the claim's node has not ended; of a claim that was never launched there is nothing.

    A claim that does not know its instance itself knows it from its node. That may have gone without it, as another
    node stands for it: then so does the claim.
    """
    if not state.provider_id or is_known_gone(state):
        return Proceed()
    others = context.cluster.strangers_on(state.provider_id, state.claim)
    return leave_instance(context, state, others) if others else await end_instance(context, state)


async def release_claim(context: StepContext, state: NodeClaimState) -> Answer:
    """Let the claim go; the API server removes it when nobody else holds it."""
    await let_go(context, state.tracked)
    return Proceed()
