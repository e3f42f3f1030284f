"""Node claim controller: a deleted claim waits until its nodes, and then its instance, are gone.

A key is the name of a claim, and each reconcile runs STEPS from the first one. The nodes do the work: each is deleted,
and its own termination cordons, drains and terminates it. The claim waits for its nodes, and terminates an instance
without a node. Invariant: the finalizer goes when the provider has confirmed that the instance is gone, or none was
ever launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import AnyTracked, TrackedObject
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, Step, StepContext
from gracectl.controllers.termination.deadline import publish
from gracectl.controllers.termination.finalizer import finalizer_patch, take_finalizer_off
from gracectl.controllers.termination.instance import is_known_gone, leave_instance, terminate_instance
from gracectl.controllers.termination.registry import Registry
from gracectl.controllers.termination.report import emit
from gracectl.controllers.termination.state import InstanceMemo, Progress, TerminationState
from gracectl.controllers.termination.steps import StepRunner
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.patching import delete, patch_with_retry
from gracectl.kube.resources import NODES, Resource
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.claim import NodeClaim, belongs
from gracectl.model.meta import condition_of, natural_key
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.deadlines import Deadline, deadline_of, earliest_deadline, written_deadline
from gracectl.policy.maintenance import is_termination_begun
from gracectl.policy.nodebudgets import may_unblock
from gracectl.policy.planner import plan
from gracectl.policy.settings import PolicySettings
from gracectl.policy.voluntary import reason_of, triggers_of
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a claim with a failed step is retried; doubled with each failure."""


class NodeClaimState(TerminationState[NodeClaim]):
    """State of the termination of a node claim."""

    kind = "nodeclaim"
    noun = "node claim"
    provider_id_field = "status.providerID"
    checks_instance_first = True

    def __init__(self, resource: Resource[NodeClaim], claim: NodeClaim, instance: InstanceMemo, now: float) -> None:
        super().__init__(TrackedObject(resource, claim), instance, now)
        self.nodes: tuple[Node, ...] = ()
        self.deleted: set[str] = set()  # UIDs of nodes whose deletion the server has accepted
        self.next_deletion = 0.0  # monotonic: when to retry the deletion of nodes
        self.budgets: set[str] = set()  # names of node disruption budgets that block deletions
        self.reported_budgets = ""  # gist of the last Event about them
        self.has_seen_node = False  # the node of its status was seen, or the server has no such node
        self._named: Node | None = None  # the last node of the claim that had a provider ID

    @property
    def claim(self) -> NodeClaim:
        """The newest known state of the claim."""
        return self.tracked.latest

    @property
    def provider_id(self) -> str:
        """Provider ID of the claim, else of its last known node; empty if none was launched."""
        return self.claim.provider_id or (self._named.provider_id if self._named else "")

    def reason(self, policy: PolicySettings) -> str:
        """Why the claim is terminated."""
        return reason_of(self.started, triggers_of((), self.claim, policy))

    @property
    def source(self) -> Node | None:
        """The last known node, unless the claim has a provider ID itself, which no kubelet has written."""
        return None if self.claim.provider_id else self._named

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """The claim alone: its nodes have Events and conditions of their own."""
        return (self.tracked,)

    def see(self, nodes: tuple[Node, ...]) -> None:
        """Set the nodes that must be gone before the claim."""
        self.nodes = nodes
        self.has_seen_node |= any(node.name == self.claim.node_name for node in nodes)
        self._named = next((node for node in nodes if node.provider_id), self._named)

    def progress(self, now: float) -> Progress:
        """Progress at `now`."""
        nodes = tuple(sorted((node.name for node in self.nodes), key=natural_key))
        return msgspec.structs.replace(super().progress(now), nodes=nodes)


class NodeClaimController:
    """Reconciles claims that are being deleted and have our finalizer; owns the state of each."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._backoff = backoff
        self._queue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._runner = StepRunner(context)
        self.registry: Registry[NodeClaimState] = Registry(context.clock, context.statistics)
        context.cluster.claims.subscribe(self._claim_changed, replay=True)
        context.cluster.nodes.subscribe(self._node_changed)
        context.admitter.budgets.subscribe(self._node_budget_changed)

    async def run(self) -> None:
        """Terminate claims until cancelled. Nothing is decided before all caches are live."""
        await self._context.cluster.wait_live()
        await self._context.admitter.wait_live()
        shares: Shares[str] = Shares(self._context.clock, self._context.settings.workers)
        await run_workers(self._queue, self.reconcile, shares, expected=(ApiError,))

    def blocked_by_node_budgets(self) -> int:
        """Number of claims with nodes that a node disruption budget blocks."""
        return sum(1 for state in self.registry.states() if state.budgets)

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"nodeclaims": self._queue.statistics()}

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
            return None if self._context.cluster.owner_of_claim(claim) else self._report_unmanaged(claim)
        state = state or self._open(claim)
        state.tracked.resource = self._context.claim_resource()
        state.tracked.refresh(claim)
        # Without our finalizer, which the watch may still show: there is nothing left to do.
        return await self._runner.run(STEPS, state) if is_finalizing(state.claim) else None

    def _is_managed(self, claim: NodeClaim, state: NodeClaimState | None) -> bool:
        """Whether its nodes are managed, or were while they existed. The conditions of another owner's claim look like
        ours."""
        cluster = self._context.cluster
        if cluster.owner_of_claim(claim) is not None:
            return False
        if cluster.manages_claim(self._context.settings.managed, claim):
            return True
        was_managed = state is not None or is_termination_begun(claim.conditions)
        return was_managed and not cluster.nodes_of(claim)

    def _open(self, claim: NodeClaim) -> NodeClaimState:
        wait = InstanceMemo.of(self._context.settings.instance, self._backoff)
        state = NodeClaimState(self._context.claim_resource(), claim, wait, self._context.clock.now())
        return self.registry.open(state)

    def _report_unmanaged(self, claim: NodeClaim) -> Requeue | None:
        """Emit an Event, once, on a claim that has our finalizer and that no controller manages: nodes and instance
        stay. Returns when to reconcile it again."""
        event = events.unmanaged_claim(claim)
        seconds = self.registry.leave_alone(claim, event.reason, is_anothers=is_termination_begun(claim.conditions))
        if seconds == 0.0:
            emit(self._context, (TrackedObject(self._context.claim_resource(), claim),), event)
        return None if seconds in (0.0, math.inf) else Requeue(seconds)

    def configured(self) -> None:
        """Take over changed settings: requeue every claim."""
        for state in self.registry.states():
            state.instance.configure(self._context.settings.instance)
            self._queue.add(state.tracked.name)

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
            for state in self.registry.states():  # the oldest termination first
                if budget.name in state.budgets:
                    self._queue.add(state.tracked.name)


NODE_RETRY_SECONDS = 10.0
"""Interval of retries after a failed DELETE of a node."""

UNSEEN_SECONDS = 1.0
"""Interval of retries while the watch does not show a node that the server has."""

NODES_SECONDS = 60.0
"""Maximum interval of retries while a node disruption budget blocks."""


# -- the steps, in their order -----------------------------------------------------------------------------------------


async def yield_to_rivals(context: StepContext, state: NodeClaimState) -> Answer:
    """If several claims share an instance, release all but the last claim without terminating it."""
    rivals = context.cluster.rivals_of(state.claim)
    if not rivals:
        return Answer(Next.PROCEED)
    event = events.rival_claims(rivals)
    return Answer(Next.RELEASE, reason=event.message, events=(event,))


async def set_deadline(context: StepContext, state: NodeClaimState) -> Answer:
    """Take the earliest deadline of the claim's nodes, or its own if it never had one."""
    claim = state.claim
    nodes = context.cluster.nodes_of(claim)
    if not nodes and (at := written_deadline(claim)) is not None:
        # Its nodes are gone, and with their labels the node group: the annotation that they have written counts.
        state.deadline = earliest_deadline(state.deadline, Deadline(at))
        return Answer(Next.PROCEED)
    found = [deadline_of(node, claim, context.settings.policy) for node in nodes or (None,)]
    known = [deadline for deadline in found if deadline is not None]
    earliest = min(known, key=lambda deadline: deadline.at, default=None)
    if nodes and all(is_finalizing(node) for node in nodes):
        # Their own terminations write it, also to the claim: two writers would conflict.
        state.deadline = earliest_deadline(state.deadline, earliest)
    else:
        # With a node that is deleted with it the trace is the node's, and written by its termination.
        has_own_trace = not nodes or not has_registered(claim)
        await publish(context, state, earliest, state.observer.traceparent if has_own_trace else None)
    return Answer(Next.PROCEED)


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
        return Answer(Next.WAIT, state.next_deletion - context.clock.monotonic(), state.waits_for)
    failures, blocked = await _delete_each(context, state)
    state.budgets = {refusal.budget for refusal in blocked.values()}
    if failures:
        state.next_deletion = context.clock.monotonic() + NODE_RETRY_SECONDS
        event = events.node_deletion_failed(failures, NODE_RETRY_SECONDS)
        update = ConditionUpdate(names.DRAINED, names.FALSE, "NodeDeletionFailed", event.message)
        return Answer(Next.WAIT, NODE_RETRY_SECONDS, event.message, (update,), (event,))
    if blocked:
        return _wait_for_node_budgets(context, state, blocked)
    return Answer(Next.WAIT, math.inf, f"waiting for its nodes: {events.names_of(nodes)}")


async def terminate_instance_of_claim(context: StepContext, state: NodeClaimState) -> Answer:
    """Terminate the instance if its node has not done so; a claim that was never launched has none.

    A claim that does not name its instance knows it from its node. If that was released without it, since another node
    has the same providerID, so is the claim.
    """
    if not state.provider_id or is_known_gone(state):
        return Answer(Next.PROCEED)
    others = context.cluster.strangers_on(state.provider_id, state.claim)
    return leave_instance(state, others) if others else await terminate_instance(context, state)


async def remove_finalizer(context: StepContext, state: NodeClaimState) -> Answer:
    """Remove our finalizer; the API server deletes the claim when it has no other."""
    await take_finalizer_off(context, state.tracked)
    return Answer(Next.PROCEED)


STEPS: tuple[Step[NodeClaimState], ...] = (
    Step("rivals", yield_to_rivals),
    Step("deadline", set_deadline),
    Step("nodes", delete_nodes),
    Step("instance", terminate_instance_of_claim, uses_provider=True),
    Step("finalizer", remove_finalizer, when_released=True),
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
        return Answer(Next.PROCEED)
    try:
        node = await context.client.get(NODES, ("", claim.node_name))
    except NotFound:
        node = None
    if node is not None and belongs(node, claim):
        return Answer(Next.WAIT, UNSEEN_SECONDS, f"waiting for the watch to show node {node.name}")
    state.has_seen_node = True
    return Answer(Next.PROCEED)


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
    if context.manages(node):
        latest = await patch_with_retry(context.client, NODES, node, partial(finalizer_patch, context.finalizer()))
    if latest is None or latest.deletion_timestamp is not None:
        return
    await delete(context.client, NODES, node)


def _wait_for_node_budgets(context: StepContext, state: NodeClaimState, blocked: dict[str, Refusal]) -> Answer:
    """Report what blocks the nodes; they are deleted when their budgets change, or when the deadline demands it."""
    event = events.node_budgets_block(blocked)
    is_news, state.reported_budgets = event.dedup_key != state.reported_budgets, event.dedup_key
    update = ConditionUpdate(names.DRAINED, names.FALSE, "NodeDisruptionBudget", event.message)
    nodes = [node for node in state.nodes if node.name in blocked]
    due = [at for node in nodes if (at := forced_at(context, state, node)) is not None]
    seconds = min([NODES_SECONDS, *(max(at - context.clock.now(), 0.0) for at in due)])
    return Answer(Next.WAIT, seconds, event.message, (update,), (event,) if is_news else ())


def forced_at(context: StepContext, state: NodeClaimState, node: Node) -> float | None:
    """Instant from which the node is deleted regardless of budgets, so that its pods have their grace before the
    deadline. None without an effective deadline.
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
