"""Node claim controller: a deleted claim waits until its nodes, and then its instance, are gone.

Level-based: a key is a claim's name, and each reconcile runs the steps (pipeline.py) from the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.nodeclaim.pipeline import NodeClaimPipeline
from gracectl.controllers.pipeline.registry import Registry
from gracectl.controllers.pipeline.state import InstanceWait, NodeClaimState, Progress
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_termination_begun
from gracectl.policy.nodebudgets import may_unblock
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
