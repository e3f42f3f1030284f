"""The node termination controller: a deleted node is held, cordoned, drained, its instance ended, and then let go. A
node that is asked for by annotation is cordoned and drained, and stays (kept.py).

Level-based: a key is a node's name, and a reconcile walks the steps (node_walk.py) from the first one each time. They
find out for themselves what is done, so a crash, a repeat or a late event changes nothing but the time. Invariant: a
kept node that is deleted ends like any other; who was wanted out of it is, until the first look at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio
import msgspec

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.node.deadline import shown_deadline
from gracectl.controllers.node.drain import order_deletions, withdraw
from gracectl.controllers.node.maintenance import MaintenancePipeline, MaintenanceState
from gracectl.controllers.node.pipeline import NodePipeline
from gracectl.controllers.node.unmanaged import complaint
from gracectl.controllers.pipeline.registry import Registry
from gracectl.controllers.pipeline.state import InstanceWait, NodeState, Progress
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.controllers.reporting.events import emit_event
from gracectl.controllers.reporting.pod_counts import RemainingPods, count_remaining
from gracectl.kube.errors import ApiError
from gracectl.kube.resources import NODES
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.volume import VolumeAttachment
from gracectl.policy.maintenance import is_in_maintenance, is_maintenance_requested
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers

FIRST_RETRY, LAST_RETRY = 0.05, 10.0
"""Seconds before a node whose step has failed is looked at again; doubled with each failure."""

CORDON_PATIENCE_SECONDS = 5.0
"""Pods whose time has come for the deadline are deleted after the cordon, but wait no longer than this for it, or for a
worker that is free."""

OVERLOOKED_SECONDS = 15.0
"""A drain that nobody has looked at for so long is treated as one that cannot begin."""

OVERDUE_WORKERS = 500
"""Nodes whose deadline has come are looked at beside all others, who may all be hanging on a server that is silent.
Each may hang itself, on a connection of its own: with those of all other parts they are fewer than there are."""

MANY_PODS, CALM_SECONDS = 20, 0.1
"""While a node has more pods than that, news of them waits until the last plan is so old: where many leave at once each
brings news several times, and a plan is about all of them (ADR 0027). The ends of the last ones never wait; that one of
them is on its way out, which lets nobody go on, does."""

WALK_SECONDS = 0.5
"""A node that is being looked at from the other queue is looked at again after this long."""


class NodeController:
    """Reconciles held nodes; owns what is remembered of each."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._backoff = backoff
        self._queue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._overdue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._walking: set[str] = set()  # a node is in two queues, and walked from one
        self._overlooked: WorkQueue[str] = WorkQueue(context.clock)
        self._walk, self._kept = NodePipeline(context), MaintenancePipeline(context)
        self.registry: Registry[NodeState] = Registry("node", context.clock, context.statistics.durations)
        cluster = context.cluster
        cluster.nodes.subscribe(self._node_changed, replay=True)
        cluster.pods.subscribe(self._pod_changed)
        cluster.budgets.subscribe(self._budget_changed)
        cluster.attachments.subscribe(self._attachment_changed)
        cluster.claims.subscribe(self._claim_changed, replay=True)
        context.clock.subscribe(self._clock_jumped)

    async def run(self) -> None:
        """Carry terminations out until cancelled. Nothing is decided before all caches are live."""
        await self._context.cluster.wait_live()
        async with anyio.create_task_group() as group:
            group.start_soon(run_workers, self._overlooked, self._delete_overlooked, 1)
            group.start_soon(run_workers, self._overdue, self.reconcile, OVERDUE_WORKERS, (ApiError,))
            # Nodes that hang leave their places to others: there is room for as many of them besides.
            places: Shares[str] = Shares(self._context.clock, self._context.settings.workers)
            group.start_soon(run_workers, self._queue, self.reconcile, places, (ApiError,))

    def under_way(self) -> tuple[Progress, ...]:
        """Where each termination stands now, oldest first."""
        return self.registry.under_way()

    def finished(self) -> tuple[Progress, ...]:
        """The last terminations that have come to their end, in that order."""
        return self.registry.finished()

    def remaining(self) -> RemainingPods:
        """The pods that hold nodes, as the last plan of each shows them."""
        endings = [self.registry.get(name) for name in self.registry]
        return count_remaining(state.plan for state in endings if state is not None and state.plan is not None)

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    def queues(self) -> tuple[QueueStatistics, QueueStatistics, QueueStatistics]:
        """The ordinary one's, that of nodes whose deadline has come, and that of those that nobody has looked at."""
        return (self._queue.statistics(), self._overdue.statistics(), self._overlooked.statistics())

    async def reconcile(self, name: str) -> Requeue | None:
        """Bring the termination of the node called `name` one step further, if it is ours to end."""
        if name in self._walking:
            return Requeue(WALK_SECONDS)
        self._walking.add(name)
        try:
            return await self._reconcile(name)
        finally:
            self._walking.discard(name)

    async def _reconcile(self, name: str) -> Requeue | None:
        state = self._current(name)
        if state is None:
            return None
        if isinstance(state, MaintenanceState):
            return await self._kept.go(state)
        began_in_time = not state.is_overdue(self._context.clock.now())
        try:
            return await self._walk.go(state)
        finally:
            if began_in_time and state.deadline is not None:
                # Whatever the walk has come to, and however long a step that has failed backs off.
                self._overdue.add_after(name, state.deadline.at - self._context.clock.now())

    def _current(self, name: str) -> NodeState | None:
        """The end of the node that has this name now, begun if need be; None if nobody ends it here, nor keeps it."""
        node = self._context.cluster.node(name)
        state = self.registry.get(name)
        if state is not None and (node is None or not state.is_of(node)):
            if node is None or node.uid != state.uid or not is_finalizing(node):
                withdraw(self._context, name)
            self.registry.close(state)
            self._context.pod_outcomes.close(name, is_over=not state.is_maintenance)
            state = None
        if node is None or not _is_asked_for(node):
            self.registry.forget(name)
            return None
        if not self._context.settings.node_selector.matches(node.labels):
            self._leave_alone(node)
            return None
        state = state or self._open(node)
        state.tracked.refresh(node)
        return state

    async def _delete_overlooked(self, name: str) -> Requeue | None:
        """Do for a node that cannot be cordoned, or for which no worker is free, what the deadline demands of its
        drain; awaits nothing."""
        state = self.registry.get(name) if name in self._walking else self._current(name)
        if state is None:
            return None
        if state.is_maintenance:
            return Requeue(CORDON_PATIENCE_SECONDS)  # deleted just now, and what its keeping has begun is breaking off
        since = self._context.clock.monotonic() - state.looked_at
        if not self._walk.is_replaced(state) and (state.cordoned_at is None or since >= OVERLOOKED_SECONDS):
            order_deletions(self._context, state)
        return Requeue(CORDON_PATIENCE_SECONDS)

    def _open(self, node: Node) -> NodeState:
        wait, now = InstanceWait.of(self._context.settings.instance, self._backoff), self._context.clock.now()
        return self.registry.open(
            NodeState(node, wait, now) if is_finalizing(node) else MaintenanceState(node, wait, now)
        )

    def _leave_alone(self, node: Node) -> None:
        """Held or to be kept, but not managed (any more): nobody of it is asked to leave, and somebody is told once."""
        withdraw(self._context, node.name)
        self._context.pod_outcomes.close(node.name, is_over=False)
        reason, message = complaint(node)
        if self.registry.leave_alone(node, reason):
            emit_event(self._context, (TrackedObject(NODES, node),), reason, message, "Warning")

    def configured(self) -> None:
        """To be told that the settings have changed: every node is looked at anew, and in any case by its deadline."""
        for name in self.registry:
            self._queue.add(name)
            if (state := self.registry.get(name)) is not None:
                state.instance.configure(self._context.settings.instance)
        for node in self._context.cluster.nodes.values():
            self._wake_at_deadline(node)

    # What makes a node worth another look.

    def _clock_jumped(self) -> None:
        """Deadlines are instants of the server: when its clock turns out to be another, they are nearer or further."""
        for name in self.registry:
            self._queue.add(name)
            state = self.registry.get(name)
            if state is not None and state.deadline is not None:
                self._overdue.add_after(name, state.deadline.at - self._context.clock.now())

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            # Its pods are not those of whatever has its name now, however long a write for it may hang.
            withdraw(self._context, old.name)
        for node in (old, new):
            if node is not None and (node.name in self.registry or _is_asked_for(node)):
                self._queue.add(node.name)
        if new is not None:
            self._heed(new)
            if is_finalizing(new):
                self._overlooked.add_after(new.name, CORDON_PATIENCE_SECONDS)
                self._wake_at_deadline(new)

    def _heed(self, node: Node) -> None:
        """What was begun for a node that is not to be kept any more ends in this moment, however slow the server is."""
        kept = self.registry.get(node.name)
        if isinstance(kept, MaintenanceState):
            self._kept.heed(kept, node)
            if not is_maintenance_requested(node) and not is_finalizing(node):
                withdraw(self._context, node.name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        # Nearly always one node: a pod never leaves its own, but comes to it.
        for name in {pod.node_name for pod in (old, new) if pod is not None}:
            if (state := self.registry.get(name)) is not None:
                until = _calm_until(state, is_urgent=not _is_on_its_way(old, new))
                self._queue.add_after(name, until - self._context.clock.monotonic())

    def _attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        attachment = new or old
        if attachment is not None and attachment.node_name in self.registry:
            self._queue.add(attachment.node_name)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        for claim in (old, new):
            if claim is not None:
                for node in self._context.cluster.nodes_of(claim):
                    if node.name in self.registry:
                        self._queue.add(node.name)
                        self._wake_at_deadline(node)

    def _wake_at_deadline(self, node: Node) -> None:
        """So that a node is looked at then, even if none of the workers was free to look at it until then."""
        if not is_finalizing(node) or not self._context.settings.node_selector.matches(node.labels):
            return
        deadline = shown_deadline(self._context, node)
        if deadline is None:
            return
        state, now = self.registry.get(node.name), self._context.clock.now()
        # Whoever knows that it has passed is on his way.
        if state is None or not state.is_overdue(now):
            self._overdue.add_after(node.name, deadline.at - now)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        # What a budget allows changes with every eviction and is the lane's business; whom it selects is the plan's.
        budget = new or old
        if budget is None or (old is not None and new is not None and old.generation == new.generation):
            return
        for name in self.registry:
            state = self.registry.get(name)
            if state is not None and any(
                pod.namespace == budget.namespace for pod in self._context.cluster.pods_on(name)
            ):
                # As news of a pod: its author may change it many times a second.
                until = _calm_until(state, is_urgent=True)
                self._queue.add_after(name, until - self._context.clock.monotonic())


def _is_asked_for(node: Node) -> bool:
    """Whether somebody wants something of us: its end, its drain, or to have it back."""
    return is_finalizing(node) or is_in_maintenance(node)


def _is_on_its_way(old: Pod | None, new: Pod | None) -> bool:
    """Whether the news is only that a pod stops, and how far it is: it still holds its node."""
    if old is None or new is None or new.deletion_timestamp is None:
        return False
    return new == msgspec.structs.replace(
        old,
        resource_version=new.resource_version,
        deletion_timestamp=new.deletion_timestamp,
        deletion_grace_seconds=new.deletion_grace_seconds,
        ready=new.ready,
    )


def _calm_until(state: NodeState, *, is_urgent: bool) -> float:
    """Until when (monotonic) news of its pods may wait."""
    is_crowded = state.plan is not None and len(state.plan.left) > MANY_PODS
    return -math.inf if is_urgent and not is_crowded else state.looked_at + CALM_SECONDS
