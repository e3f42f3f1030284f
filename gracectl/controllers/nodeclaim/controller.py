"""The node claim controller: a deleted claim is held until its nodes, and then its instance, are gone.

Level-based like the one of nodes: a key is a claim's name, and a reconcile walks the steps from the first one.
"""

from __future__ import annotations

from collections.abc import Callable

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.nodeclaim.steps import (
    end_claims_instance,
    end_nodes,
    release_claim,
    set_claim_deadline,
    yield_to_rivals,
)
from gracectl.controllers.pipeline.provider_slots import ProviderSlots
from gracectl.controllers.pipeline.registry import Registry
from gracectl.controllers.pipeline.runner import walk
from gracectl.controllers.pipeline.state import InstanceWait, NodeClaimState, Progress
from gracectl.controllers.pipeline.steps import Answer, Release, Step, StepContext, Wait
from gracectl.controllers.reporting.conditions import report_step_failure
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.nodebudget import NodeDisruptionBudget
from gracectl.policy.nodebudgets import may_unblock
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers

INSTANCE: Step[NodeClaimState] = Step("instance", end_claims_instance)
RELEASE: Step[NodeClaimState] = Step("finalizer", release_claim)
STEPS: tuple[Step[NodeClaimState], ...] = (
    Step("rivals", yield_to_rivals),
    Step("deadline", set_claim_deadline),
    Step("nodes", end_nodes),
    INSTANCE,
    RELEASE,
)

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a claim whose step has failed is looked at again; doubled with each failure."""

OURS = (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING)
"""Conditions that say that the end of a claim was begun while its node was a managed one."""


class NodeClaimController:
    """Reconciles held claims; owns what is remembered of each."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._backoff = backoff
        self._queue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._places = ProviderSlots(context.settings.workers)
        times = context.statistics.durations
        self.registry: Registry[NodeClaimState] = Registry("node claim", context.clock, times)
        context.cluster.claims.subscribe(self._claim_changed, replay=True)
        context.cluster.nodes.subscribe(self._node_changed, replay=True)
        context.admitter.budgets.subscribe(self._node_budget_changed)

    async def run(self) -> None:
        """End claims until cancelled. Nothing is decided before all caches are live."""
        await self._context.cluster.wait_live()
        await self._context.admitter.wait_live()
        places: Shares[str] = Shares(self._context.clock, self._context.settings.workers)
        await run_workers(self._queue, self.reconcile, places, expected=(ApiError,))

    def under_way(self) -> tuple[Progress, ...]:
        """Where each claim stands now, oldest first."""
        return self.registry.under_way()

    def finished(self) -> tuple[Progress, ...]:
        """The last claims that have come to their end, in that order."""
        return self.registry.finished()

    def blocked_by_node_budgets(self) -> int:
        """How many claims wait until a budget allows the end of their nodes."""
        endings = (self.registry.get(name) for name in self.registry)
        return sum(1 for state in endings if state is not None and state.budgets)

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    async def reconcile(self, name: str) -> Requeue | None:
        """Bring the end of the claim called `name` one step further, if it is ours to end."""
        claim = self._context.cluster.claim(name)
        state = self.registry.get(name)
        if state is not None and (claim is None or claim.uid != state.uid or not is_finalizing(claim)):
            self.registry.close(state)
            state = None
        if claim is None or not is_finalizing(claim):
            return None
        if not self._is_ours(claim, state):
            self._leave_alone(claim)
            return None
        state = state or self._open(claim)
        state.tracked.resource = self._context.claim_resource()
        state.tracked.refresh(claim)
        # Taken off by ourselves, and not shown by the watch yet: there is nothing left to do.
        return await self._walk(state) if is_finalizing(state.claim) else None

    async def _walk(self, state: NodeClaimState) -> Requeue | None:
        answer = await walk(STEPS, state, self._take, self._context, report_step_failure)
        if isinstance(answer, Release):
            answer = await walk((RELEASE,), state, self._take, self._context, report_step_failure)
        return Requeue(answer.seconds) if isinstance(answer, Wait) else None

    async def _take(self, step: Step[NodeClaimState], state: NodeClaimState) -> Answer:
        if step is INSTANCE:
            return await self._places.run(step, self._context, state)
        return await step.run(self._context, state)

    def _is_ours(self, claim: NodeClaim, state: NodeClaimState | None) -> bool:
        """Its nodes decide; when they are gone, the claim is still that of managed nodes."""
        cluster = self._context.cluster
        if cluster.is_managed(claim, self._context.settings.node_selector):
            return True
        was_ours = state is not None or any(condition_of(claim.conditions, type_) for type_ in OURS)
        return was_ours and not cluster.nodes_of(claim)

    def _open(self, claim: NodeClaim) -> NodeClaimState:
        wait = InstanceWait.of(self._context.settings.instance, self._backoff)
        state = NodeClaimState(self._context.claim_resource(), claim, wait, self._context.clock.now())
        return self.registry.open(state)

    def _leave_alone(self, claim: NodeClaim) -> None:
        """Held, but not managed (any more): its node and its instance stay, and somebody is told once."""
        reason = names.EventReason.UNMANAGED_CLAIM_HELD
        if self.registry.leave_alone(claim, reason):
            message = (
                f"finalizer {names.FINALIZER} holds this claim, but nodeSelector matches neither its node nor its own "
                "labels, so nobody ends it; change nodeSelector or the labels, or take the finalizer off by hand"
            )
            tracked = TrackedObject(self._context.claim_resource(), claim)
            emit_event(self._context, (tracked,), reason, message, "Warning")

    def configured(self) -> None:
        """To be told that the settings have changed: every claim is looked at anew."""
        for name in self.registry:
            self._queue.add(name)
            if (state := self.registry.get(name)) is not None:
                state.instance.configure(self._context.settings.instance)

    # What makes a claim worth another look.

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
            for name in self.registry:  # whose end was begun first comes first
                state = self.registry.get(name)
                if state is not None and budget.name in state.budgets:
                    self._queue.add(name)
