"""Node controller: terminates deleted nodes, and drains nodes with an annotation that requests maintenance.

A key is the name of a node. Each reconcile runs the steps (`steps.py`, `maintenance.py`) from the first one. Nothing
polls: a node is reconciled on an event of its objects (`wakeups.py`), at an instant that a step has named, and at its
deadline. Invariant: a node in maintenance that is deleted terminates like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.termination import events
from gracectl.controllers.termination.assist import AssistState, other_drain, run_assistance
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.deadline_timer import DeadlineTimer
from gracectl.controllers.termination.drain import cancel_drain, schedule_deletions
from gracectl.controllers.termination.maintenance import MaintenanceState, run_maintenance
from gracectl.controllers.termination.pod_counts import RemainingPods, count_remaining
from gracectl.controllers.termination.registry import Registry
from gracectl.controllers.termination.report import emit
from gracectl.controllers.termination.state import InstanceMemo, NodeState
from gracectl.controllers.termination.steps import STEPS, StepRunner
from gracectl.controllers.termination.wakeups import NodeWakeups, is_requested
from gracectl.kube.errors import ApiError
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_begun_by_another
from gracectl.policy.other_drains import OtherDrain
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers

FIRST_RETRY, LAST_RETRY = 0.05, 10.0
"""Seconds before a node with a failed step is reconciled again; doubled with each failure."""


class NodeController:
    """Reconciles nodes; owns the state of each termination and each maintenance in progress."""

    def __init__(
        self,
        context: StepContext,
        backoff: Callable[[float, float], Backoff],
        manages: Callable[[Node], bool] | None = None,
    ) -> None:
        """`manages`: the nodes to drain, for a command; None: the nodes that the settings select."""
        self._context = context
        self._manages = manages
        self._backoff = backoff
        self._runner = StepRunner(context)
        self.registry: Registry[NodeState] = Registry(context.clock, context.statistics)
        self._timer = DeadlineTimer(context.clock, lambda name: self._queue.add(name), self._deletions_due)
        self._queue: WorkQueue[str] = WorkQueue(
            context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY), is_urgent=self._timer.has_passed
        )
        self.on_reconciled: Callable[[str], None] = lambda name: None
        """Called when a node in maintenance was reconciled: it may be drained, or blocked."""
        self._wakeups = NodeWakeups(context, self.registry, self._queue, self._timer)

    async def run(self) -> None:
        """Reconcile nodes until cancelled, from when all caches are live."""
        await self._context.cluster.wait_live()
        async with anyio.create_task_group() as group:
            group.start_soon(self._wakeups.run)
            # Nodes whose requests hang leave their workers to others, up to as many again.
            workers: Shares[str] = Shares(self._context.clock, self._context.settings.workers)
            group.start_soon(run_workers, self._queue, self.reconcile, workers, (ApiError,))

    async def reconcile(self, name: str) -> Requeue | None:
        """Bring the node of this name as far as possible; returns when to reconcile it again. Raises ApiError."""
        state = self._current(name)
        if state is None:
            return self._leave_alone(name)
        if isinstance(state, MaintenanceState):
            try:
                return await run_maintenance(self._context, self._runner, state)
            finally:
                self.on_reconciled(name)
        if isinstance(state, AssistState):
            return await run_assistance(self._runner, state)
        try:
            return await self._runner.run(STEPS, state)
        finally:
            # Even if a step has failed and backs off for longer.
            self._timer.set_deadline(name, state.ends_by)

    def _current(self, name: str) -> NodeState | None:
        """State of the node of this name, opened if need be; None if nothing is requested of it here."""
        node = self._context.cluster.node(name)
        state = self.registry.get(name)
        if state is not None and (node is None or not state.matches_node(node)):
            if node is None or node.uid != state.uid or state.other is not None or not is_finalizing(node):
                self._cancel(name)
            self._close(state)
            state = None
        other = None if node is None else self._other_drain(node)
        if node is None or not (is_requested(node) or other):
            self.registry.forget(name)
            return None
        if other is None and not self._is_managed(node):
            return None
        state = state or self._open(node, other)
        state.tracked.refresh(node)
        return state

    def _other_drain(self, node: Node) -> OtherDrain | None:
        """The drain of another owner to assist; a command assists none."""
        return other_drain(self._context, node) if self._manages is None else None

    def _open(self, node: Node, other: OtherDrain | None) -> NodeState:
        instance, now = InstanceMemo.of(self._context.settings.instance, self._backoff), self._context.clock.now()
        if other is not None:
            return self.registry.open(AssistState(node, instance, now, self._context, other))
        kind = NodeState if is_finalizing(node) else MaintenanceState
        return self.registry.open(kind(node, instance, now))

    def _close(self, state: NodeState) -> None:
        """The termination, the maintenance or the drain of another owner is finished."""
        is_termination = state.kind == "node"
        now = self._context.clock.now()
        is_done = state.progress(now).step == STEPS[-1].name
        self.registry.close(state)
        outcomes = self._context.pod_outcomes.close(state.node.name, state.labels, is_over=is_termination)
        if is_termination:
            reason = state.reason(self._context.settings.policy)
            self._context.statistics.results[reason, state.result, *state.labels] += 1
            event = events.terminated(state.tracked, outcomes, now - state.started, is_done=is_done)
            emit(self._context, state.objects, event)

    def _is_managed(self, node: Node) -> bool:
        if self._manages is not None:
            return self._manages(node)
        return self._context.manages(node)

    def _cancel(self, name: str) -> None:
        """Evict and delete no more pods of the node."""
        cancel_drain(self._context, name)
        self._timer.forget(name)

    def _leave_alone(self, name: str) -> Requeue | None:
        """If something is requested of the node, and it is not managed, or no longer: cancel its drain, and report that
        once, unless another controller manages it. Returns when to reconcile it again."""
        node = self._context.cluster.node(name)
        if node is None or not is_requested(node) or self._is_managed(node):
            return None
        self._cancel(name)
        self._context.pod_outcomes.close(name, is_over=False)
        owner = self._context.cluster.owner_of(node)
        if self._manages is not None or (owner is not None and node.deletion_timestamp is not None):
            return None
        event = events.unmanaged_node(node, owner)
        seconds = self.registry.leave_alone(node, event.reason, is_anothers=is_begun_by_another(node))
        if seconds == 0.0:
            emit(self._context, (TrackedObject(NODES, node),), event)
        return None if seconds in (0.0, math.inf) else Requeue(seconds)

    def _deletions_due(self, name: str, since: float) -> bool:
        """Schedule the deletions that the deadline demands if the drain has not planned since the event at `since`
        (monotonic): the node cannot be cordoned, a request hangs, or no worker is free. False: ask again later.

        Awaits nothing.
        """
        state = self.registry.get(name) or self._current(name)
        if state is None:
            return True
        if state.interruption(self._context.cluster, "drain"):
            node = self._context.cluster.node(name)
            return node is None or not is_finalizing(node)  # else the run in progress is about to stop for it
        if state.drain.planned_from < since:
            schedule_deletions(self._context, state)
        return True

    def configured(self) -> None:
        """The settings have changed: reconcile every node again."""
        for state in self.registry.states():
            state.instance.configure(self._context.settings.instance)
        self._wakeups.configured()

    def remaining(self) -> RemainingPods:
        """The pods that block nodes, as the last plan of each shows them."""
        memos = (state.drain for state in self.registry.states())
        return count_remaining((memo.plan, memo.ended) for memo in memos if memo.plan is not None)

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"nodes": self._queue.statistics()}
