"""Node claim controller: a deleted claim waits until its nodes, and then its instance, are gone.

A key is the name of a claim, and each reconcile runs STEPS from the first one. The nodes do the work: each is deleted,
and its own termination cordons, drains and terminates it. The claim waits for its nodes, and terminates an instance
without a node. Invariant: the finalizer goes when the provider has confirmed that the instance is gone, or none was
ever launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.termination.context import (
    Answer,
    Proceed,
    Release,
    Step,
    StepContext,
    Wait,
    requeue,
    run_steps,
)
from gracectl.controllers.termination.deadline import publish
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.finalizer import addition, take_finalizer_off
from gracectl.controllers.termination.instance import ProviderSlots, is_known_gone, leave_instance, terminate_instance
from gracectl.controllers.termination.registry import Registry
from gracectl.controllers.termination.report import report_step_failure, set_condition
from gracectl.controllers.termination.state import InstanceWait, NodeClaimState, Progress
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import delete, patch_with_retry
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.claim import NodeClaim, belongs
from gracectl.model.meta import condition_of, natural_key
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.deadlines import Deadline, deadline_of, earliest_deadline, written_deadline
from gracectl.policy.maintenance import is_termination_begun
from gracectl.policy.nodebudgets import may_unblock
from gracectl.policy.plan import plan
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a claim with a failed step is retried; doubled with each failure."""


class NodeClaimController:
    """Reconciles claims that are being deleted and have our finalizer; owns the state of each."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._backoff = backoff
        self._queue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._pipeline = NodeClaimPipeline(context)
        self.registry: Registry[NodeClaimState] = Registry("node claim", context.clock, context.statistics)
        context.cluster.claims.subscribe(self._claim_changed, replay=True)
        context.cluster.nodes.subscribe(self._node_changed, replay=True)
        context.admitter.budgets.subscribe(self._node_budget_changed)

    async def run(self) -> None:
        """Terminate claims until cancelled. Nothing is decided before all caches are live."""
        await self._context.cluster.wait_live()
        await self._context.admitter.wait_live()
        shares: Shares[str] = Shares(self._context.clock, self._context.settings.workers)
        await run_workers(self._queue, self.reconcile, shares, expected=(ApiError,))

    def under_way(self) -> tuple[Progress, ...]:
        """Progress of each termination, oldest first."""
        return self.registry.under_way()

    def finished(self) -> tuple[Progress, ...]:
        """The last terminations that are over, in that order."""
        return self.registry.finished()

    def blocked_by_node_budgets(self) -> int:
        """Number of claims whose nodes a node disruption budget blocks."""
        states = (self.registry.get(name) for name in self.registry)
        return sum(1 for state in states if state is not None and state.budgets)

    def statistics(self) -> QueueStatistics:
        """Statistics of the work queue."""
        return self._queue.statistics()

    async def reconcile(self, name: str) -> Requeue | None:
        """Run the steps of the claim's termination as far as possible; safe to repeat."""
        claim = self._context.cluster.claim(name)
        state = self.registry.get(name)
        if state is not None and (claim is None or claim.uid != state.uid or not is_finalizing(claim)):
            self.registry.close(state)
            state = None
        if claim is None or not is_finalizing(claim):
            return None
        if not self._is_managed(claim, state):
            return self._report_unmanaged(claim)
        state = state or self._open(claim)
        state.tracked.resource = self._context.claim_resource()
        state.tracked.refresh(claim)
        # Without our finalizer, which the watch may still show: there is nothing left to do.
        return await self._pipeline.run(state) if is_finalizing(state.claim) else None

    def _is_managed(self, claim: NodeClaim, state: NodeClaimState | None) -> bool:
        """Whether its nodes are managed, or were while they existed."""
        cluster = self._context.cluster
        if cluster.is_managed(claim, self._context.settings.node_selector):
            return True
        was_managed = state is not None or is_termination_begun(claim.conditions)
        return was_managed and not cluster.nodes_of(claim)

    def _open(self, claim: NodeClaim) -> NodeClaimState:
        wait = InstanceWait.of(self._context.settings.instance, self._backoff)
        state = NodeClaimState(self._context.claim_resource(), claim, wait, self._context.clock.now())
        return self.registry.open(state)

    def _report_unmanaged(self, claim: NodeClaim) -> Requeue | None:
        """Emit an Event, once, on a claim that has our finalizer and that no controller manages: nodes and instance
        stay. Returns when to look again."""
        reason = names.EventReason.UNMANAGED_CLAIM_HELD
        seconds = self.registry.leave_alone(claim, reason, is_anothers=is_termination_begun(claim.conditions))
        if seconds > 0.0:
            return None if seconds == math.inf else Requeue(seconds)
        message = (
            f"finalizer {names.FINALIZER} blocks the deletion of this claim: nodeSelector matches neither its node nor "
            "its own labels; change nodeSelector or the labels; remove the finalizer by hand only if no other "
            "controller manages the claim"
        )
        tracked = TrackedObject(self._context.claim_resource(), claim)
        emit_event(self._context, (tracked,), reason, message, "Warning")
        return None

    def configured(self) -> None:
        """Take over changed settings: requeue every claim."""
        for name in self.registry:
            self._queue.add(name)
            if (state := self.registry.get(name)) is not None:
                state.instance.configure(self._context.settings.instance)

    # -- what wakes claims ---------------------------------------------------------------------------------------------

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        claim = new or old
        if old is not None and new is None:
            self.registry.forget(old.name)
        if claim is not None and (claim.name in self.registry or is_finalizing(claim)):
            self._queue.add(claim.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        for node in (old, new):
            if node is not None:
                for claim in self._context.cluster.claims_of(node):
                    if is_finalizing(claim):
                        self._queue.add(claim.name)

    def _node_budget_changed(self, old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> None:
        budget = new or old
        if budget is not None and may_unblock(old, new):
            for name in self.registry:  # the oldest termination first
                state = self.registry.get(name)
                if state is not None and budget.name in state.budgets:
                    self._queue.add(name)


NODE_RETRY_SECONDS = 10.0
"""Interval of retries after a failed DELETE of a node."""

UNSEEN_SECONDS = 1.0
"""Interval of looks for a node that the server has and the watch does not show yet."""

NODES_SECONDS = 60.0
"""Nodes wake their claim; should that be missed, it looks for them at this interval."""


class NodeClaimPipeline:
    """Runs the steps of claims, with no more of them at the provider than there are slots."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._slots = ProviderSlots(context.settings.workers)

    async def run(self, state: NodeClaimState) -> Requeue | None:
        """Run the steps as far as possible; returns when to run them again. Raises ApiError."""
        answer = await run_steps(STEPS, state, self._run_step, self._context, report_step_failure)
        if isinstance(answer, Release):
            answer = await run_steps((FINALIZER,), state, self._run_step, self._context, report_step_failure)
        return requeue(answer)

    async def _run_step(self, step: Step[NodeClaimState], state: NodeClaimState) -> Answer:
        if step is INSTANCE:
            return await self._slots.run(step, self._context, state)
        return await step.run(self._context, state)


# -- the steps, in their order -----------------------------------------------------------------------------------------


async def yield_to_rivals(context: StepContext, state: NodeClaimState) -> Answer:
    """Of several claims with one instance, all but the last one are released without it."""
    rivals = context.cluster.rivals_of(state.claim)
    if not rivals:
        return Proceed()
    listed = ", ".join(sorted((each.name for each in rivals), key=natural_key))
    message = (
        f"another node claim has the same instance ({listed}): released without terminating node or instance; a node "
        "with this claim in its ownerReferences, as Karpenter's have, is deleted by the cluster"
    )
    emit_event(context, state.objects, names.EventReason.SEVERAL_CLAIMS, message, "Warning")
    return Release(message)


async def set_deadline(context: StepContext, state: NodeClaimState) -> Answer:
    """Take the earliest deadline of the claim's nodes, or its own if it never had one."""
    claim = state.claim
    nodes = context.cluster.nodes_of(claim)
    if not nodes and (at := written_deadline(claim)) is not None:
        # Its nodes are gone, and with their labels the node group: what they have written counts.
        state.deadline = earliest_deadline(state.deadline, Deadline(at))
        return Proceed()
    found = [deadline_of(node, claim, context.settings.policy) for node in nodes or (None,)]
    known = [deadline for deadline in found if deadline is not None]
    earliest = min(known, key=lambda deadline: deadline.at, default=None)
    if nodes and all(is_finalizing(node) for node in nodes):
        # Their own terminations write it, also here: two writers of the same would be in each other's way.
        state.deadline = earliest_deadline(state.deadline, earliest)
    else:
        # With a node that is deleted with it the trace is the node's, and written by its termination.
        has_own_trace = not nodes or not has_registered(claim)
        await publish(context, state, earliest, state.observer.traceparent if has_own_trace else None)
    return Proceed()


async def delete_nodes(context: StepContext, state: NodeClaimState) -> Answer:
    """Delete all nodes of the claim, and wait until they are gone.

    The node of a claim that has not registered runs no pods worth a drain: it is not deleted, but its termination is
    waited for if another client deletes it.
    """
    nodes = context.cluster.nodes_of(state.claim)
    if not has_registered(state.claim):
        nodes = tuple(node for node in nodes if node.deletion_timestamp is not None)
    state.see(nodes)
    if not nodes:
        return await _check_for_unseen_node(context, state)
    if context.clock.monotonic() < state.next_deletion:
        return Wait(state.next_deletion - context.clock.monotonic(), state.waits_for)
    failures, blocked = await _delete_each(context, state)
    state.budgets = {refusal.budget for refusal in blocked.values()}
    if failures:
        state.next_deletion = context.clock.monotonic() + NODE_RETRY_SECONDS
        listed = "; ".join(f"deletion of node {name} failed: {error}" for name, error in failures.items())
        message = f"{listed}; retrying every {NODE_RETRY_SECONDS:g} s"
        emit_event(context, state.objects, names.EventReason.NODE_DELETION_FAILED, message, "Warning")
        update = ConditionUpdate(names.DRAINED, names.FALSE, "NodeDeletionFailed", message)
        await set_condition(context, state.objects, update)
        return Wait(NODE_RETRY_SECONDS, message)
    if blocked:
        return await _wait_for_node_budgets(context, state, blocked)
    return Wait(math.inf, f"waiting for its nodes: {', '.join(sorted((node.name for node in nodes), key=natural_key))}")


async def terminate_instance_of_claim(context: StepContext, state: NodeClaimState) -> Answer:
    """Terminate the instance if its node has not done so; a claim that was never launched has none.

    A claim that does not name its instance knows it from its node. If that was released without it, since another node
    has the same providerID, so is the claim.
    """
    if not state.provider_id or is_known_gone(state):
        return Proceed()
    others = context.cluster.strangers_on(state.provider_id, state.claim)
    return leave_instance(context, state, others) if others else await terminate_instance(context, state)


async def remove_finalizer(context: StepContext, state: NodeClaimState) -> Answer:
    """Remove our finalizer; the API server deletes the claim when it has no other."""
    await take_finalizer_off(context, state.tracked)
    return Proceed()


INSTANCE: Step[NodeClaimState] = Step("instance", terminate_instance_of_claim)
FINALIZER: Step[NodeClaimState] = Step("finalizer", remove_finalizer)
STEPS: tuple[Step[NodeClaimState], ...] = (
    Step("rivals", yield_to_rivals),
    Step("deadline", set_deadline),
    Step("nodes", delete_nodes),
    INSTANCE,
    FINALIZER,
)


# -- details of delete_nodes -------------------------------------------------------------------------------------------


def has_registered(claim: NodeClaim) -> bool:
    """Whether the claim may have a node with pods; only its own condition can say that it has not."""
    registered = condition_of(claim.conditions, names.REGISTERED)
    return registered is None or registered.status == names.TRUE


async def _check_for_unseen_node(context: StepContext, state: NodeClaimState) -> Answer:
    """Nodes and claims have a watch each: the node that a claim names may exist, and not be shown yet."""
    claim = state.claim
    if state.has_seen_node or not claim.node_name or not has_registered(claim):
        return Proceed()
    try:
        node = await context.client.get(NODES, ("", claim.node_name))
    except NotFound:
        node = None
    if node is not None and belongs(node, claim):
        return Wait(UNSEEN_SECONDS, f"waiting for the watch to show node {node.name}")
    state.has_seen_node = True
    return Proceed()


async def _delete_each(context: StepContext, state: NodeClaimState) -> tuple[dict[str, ApiError], dict[str, Refusal]]:
    """Delete the nodes that are not being deleted; returns, by name, what failed and what a budget blocks."""
    failures: dict[str, ApiError] = {}
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
                failures[node.name] = error
    return failures, blocked


async def delete_node(context: StepContext, node: Node) -> None:
    """Delete a node with our finalizer, so that its pods are evicted before it goes.

    One that is not managed gets no finalizer: nothing would remove it.
    """
    latest: Node | None = node
    if context.settings.node_selector.matches(node.labels):
        latest = await patch_with_retry(context.client, NODES, node, addition)
    if latest is None or latest.deletion_timestamp is not None:
        return
    await delete(context.client, NODES, node)


async def _wait_for_node_budgets(context: StepContext, state: NodeClaimState, blocked: dict[str, Refusal]) -> Wait:
    """Report what blocks the nodes; they are deleted when their budgets change, or when the deadline demands it."""
    message = "; ".join(f"deletion of node {name} blocked: {refusal}" for name, refusal in blocked.items())
    gist = " ".join(f"{name} {refusal.budget} {refusal.allowance}" for name, refusal in blocked.items())
    if gist != state.reported_budgets:
        state.reported_budgets = gist
        emit_event(context, state.objects, names.EventReason.DISRUPTION_HELD, message, dedup_key=gist)
    update = ConditionUpdate(names.DRAINED, names.FALSE, "NodeDisruptionBudget", message)
    await set_condition(context, state.objects, update)
    nodes = [node for node in state.nodes if node.name in blocked]
    due = [at for node in nodes if (at := forced_at(context, state, node)) is not None]
    return Wait(min([NODES_SECONDS, *(max(at - context.clock.now(), 0.0) for at in due)]), message)


def forced_at(context: StepContext, state: NodeClaimState, node: Node) -> float | None:
    """From when on the node is deleted whatever its budgets say, so that its pods have their grace before the deadline.

    None without a deadline that counts.
    """
    deadline = state.counted_deadline(context.clock)
    if deadline is None:
        return None
    view = context.cluster.view_without_budgets(node, context.settings.policy, deadline)
    pods = plan(view, context.clock.now()).pods
    return min((entry.delete_at for entry in pods if entry.delete_at is not None), default=deadline.at)


def _is_due(context: StepContext, state: NodeClaimState, node: Node) -> bool:
    at = forced_at(context, state, node)
    return at is not None and at <= context.clock.now()
