"""Node controller: terminates deleted nodes, and drains those whose maintenance is requested by annotation.

A key is the name of a node. Each reconcile runs the steps of the node's pipeline from the first one (`pipeline.py`,
`maintenance.py`). Nothing polls: a node is looked at on an event of its objects, at an instant that a step has named,
and at its deadline. Invariant: a node in maintenance that is deleted terminates like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import anyio
import msgspec

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.deadline import cached_deadline
from gracectl.controllers.termination.deadline_timer import DeadlineTimer
from gracectl.controllers.termination.drain import cancel_drain, schedule_deletions
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.maintenance import MaintenancePipeline, MaintenanceState
from gracectl.controllers.termination.pod_counts import RemainingPods, count_remaining
from gracectl.controllers.termination.registry import Registry
from gracectl.controllers.termination.report import seconds_until_allowed
from gracectl.controllers.termination.state import InstanceWait, NodeState, Progress
from gracectl.controllers.termination.steps import FINALIZER, NodePipeline
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventType
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.budgets import BudgetKey
from gracectl.policy.evictability import FINISHED, is_silent
from gracectl.policy.maintenance import (
    is_in_maintenance,
    is_maintenance_requested,
    is_termination_begun,
    recorded_marks,
)
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers

FIRST_RETRY, LAST_RETRY = 0.05, 10.0
"""Seconds before a node whose step has failed is looked at again; doubled with each failure."""

MANY_PODS, COALESCE_SECONDS = 20, 0.1
"""While a node has more pods than that, events of them wait until the last plan is so old, as a plan is about all of
them (ADR 0027). The end of a wave's last pod never waits."""
REPORT_SECONDS = (1.0, 10.0)
"""What changes nothing but reports (a pod begins to stop, or is gone before others of its wave) waits until the
condition may be written again, but at least and at most so long: where many pods are deleted in one instant, requests
for the others go first."""


C = TypeVar("C", Node, Pod)


class NodeController:
    """Reconciles nodes; owns the state of each termination and each maintenance in progress."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._backoff = backoff
        self._pipeline, self._maintenance = NodePipeline(context), MaintenancePipeline(context)
        self.registry: Registry[NodeState] = Registry("node", context.clock, context.statistics)
        self._timer = DeadlineTimer(context.clock, self._deadline_passed, self._deletions_due)
        self._queue: WorkQueue[str] = WorkQueue(
            context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY), is_urgent=self._timer.has_passed
        )
        self._changed_budgets: WorkQueue[BudgetKey] = WorkQueue(context.clock)
        self._changed_at: dict[BudgetKey, float] = {}  # their first change since nodes were added for one
        context.evictor.listen(self)
        cluster = context.cluster
        cluster.nodes.subscribe(self._node_changed, replay=True)
        cluster.pods.subscribe(self._pod_changed)
        cluster.budgets.subscribe(self._budget_changed)
        cluster.attachments.subscribe(self._attachment_changed)
        cluster.claims.subscribe(self._claim_changed, replay=True)
        context.clock.subscribe(self._clock_jumped)

    async def run(self) -> None:
        """Reconcile nodes until cancelled, from when all caches are live."""
        await self._context.cluster.wait_live()
        async with anyio.create_task_group() as group:
            group.start_soon(self._timer.run)
            # Nodes whose requests hang leave their workers to others, up to as many again.
            workers: Shares[str] = Shares(self._context.clock, self._context.settings.workers)
            group.start_soon(run_workers, self._queue, self.reconcile, workers, (ApiError,))
            group.start_soon(run_workers, self._changed_budgets, self._add_blocked, 1)

    async def reconcile(self, name: str) -> Requeue | None:
        """Bring the node of this name as far as it comes now; returns when to look again. Raises ApiError."""
        state = self._current(name)
        if state is None:
            return self._leave_alone(name)
        if isinstance(state, MaintenanceState):
            return await self._maintenance.run(state)
        try:
            return await self._pipeline.run(state)
        finally:
            # Even if a step has failed and backs off for longer.
            self._timer.set_deadline(name, state.ends_by)

    def _current(self, name: str) -> NodeState | None:
        """State of the node of this name, opened if need be; None if nothing is requested of it here."""
        node = self._context.cluster.node(name)
        state = self.registry.get(name)
        if state is not None and (node is None or not state.matches_node(node)):
            if node is None or node.uid != state.uid or not is_finalizing(node):
                cancel_drain(self._context, name)
                self._timer.forget(name)
            self._close(state)
            state = None
        if node is None or not _is_requested(node):
            self.registry.forget(name)
            return None
        if not self._is_managed(node):
            return None
        state = state or self._open(node)
        state.tracked.refresh(node)
        return state

    def _close(self, state: NodeState) -> None:
        """The termination or the maintenance is over."""
        is_maintenance = isinstance(state, MaintenanceState)
        now = self._context.clock.now()
        is_done = state.progress(now).step == FINALIZER.name
        self.registry.close(state)
        outcomes = self._context.pod_outcomes.close(state.node.name, state.labels, is_over=not is_maintenance)
        if not is_maintenance:
            duration = format_duration(round(now - state.started) * NANOSECONDS_PER_SECOND)
            message = end_report(outcomes, duration, is_done=is_done)
            type_: EventType = "Normal" if is_done else "Warning"
            emit_event(self._context, (state.tracked,), EventReason.NODE_TERMINATED, message, type_)

    def _open(self, node: Node) -> NodeState:
        wait, now = InstanceWait.of(self._context.settings.instance, self._backoff), self._context.clock.now()
        return self.registry.open(
            NodeState(node, wait, now) if is_finalizing(node) else MaintenanceState(node, wait, now)
        )

    def _is_managed(self, node: Node) -> bool:
        return self._context.settings.node_selector.matches(node.labels)

    def _leave_alone(self, name: str) -> Requeue | None:
        """If something is requested of the node, and it is not managed (any more): cancel its drain, and report that
        once, unless another controller manages it. Returns when to look again."""
        node = self._context.cluster.node(name)
        if node is None or not _is_requested(node) or self._is_managed(node):
            return None
        cancel_drain(self._context, name)
        self._timer.forget(name)
        self._context.pod_outcomes.close(name, is_over=False)
        reason, message = unmanaged_report(node)
        seconds = self.registry.leave_alone(node, reason, is_anothers=is_begun_by_another(node))
        if seconds == 0.0:
            emit_event(self._context, (TrackedObject(NODES, node),), reason, message, "Warning")
            return None
        return None if seconds == math.inf else Requeue(seconds)

    # The deadline timer.

    def _deadline_passed(self, name: str) -> None:
        """From now on the node is urgent: it is reconciled even if all workers wait for other nodes."""
        self._queue.add(name)

    def _deletions_due(self, name: str, since: float) -> bool:
        """Schedule the deletions that the deadline demands if the drain has not planned since the event at `since`
        (monotonic): the node cannot be cordoned, a request hangs, or no worker is free. False: ask again later.

        Awaits nothing.
        """
        state = self.registry.get(name) or self._current(name)
        if state is None:
            return True
        if isinstance(state, MaintenanceState) or self._pipeline.is_replaced(state):
            node = self._context.cluster.node(name)
            return node is None or not is_finalizing(node)  # else the run that is in progress is about to stop for it
        if state.planned_from < since:
            schedule_deletions(self._context, state)
        return True

    def _arm(self, node: Node) -> None:
        """Arm the timer for what the deadline of this node demands, as the caches show it."""
        if not is_finalizing(node) or not self._is_managed(node):
            return
        self._timer.changed(node.name)
        deadline = cached_deadline(self._context, node)
        if deadline is not None:
            self._timer.set_deadline(node.name, deadline.at)

    # Events that make a node worth another look.

    def configured(self) -> None:
        """The settings have changed: look at every node again."""
        for name in self.registry:
            self._queue.add(name)
            if (state := self.registry.get(name)) is not None:
                state.instance.configure(self._context.settings.instance)
        for node in self._context.cluster.nodes.values():
            self._arm(node)

    def _clock_jumped(self) -> None:
        """Deadlines are instants of the server: when its clock turns out to be another, they are nearer or further."""
        self._timer.clock_jumped()
        for name in self.registry:
            self._queue.add(name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            # Its pods are not those of the node that has its name now, however long a write for it may hang.
            cancel_drain(self._context, old.name)
            self._timer.forget(old.name)
            self._wake_others_of_instance(old)
        if old is not None and new is not None and (_is_unchanged(old, new) or self._is_own_news(old, new)):
            return
        for node in (old, new):
            if node is not None and (node.name in self.registry or _is_requested(node)):
                self._queue.add(node.name)
        if new is not None:
            self._stop_maintenance_if_withdrawn(new)
            self._arm(new)
            if is_finalizing(new) and (old is None or not is_finalizing(old)):
                self._wake_others_of_instance(new)

    def _is_own_news(self, old: Node, new: Node) -> bool:
        state = self.registry.get(new.name)
        return state is not None and state.uid == new.uid and state.tracked.is_echo(old, new)

    def _wake_others_of_instance(self, node: Node) -> None:
        """Nodes of one instance wait for each other (see `instance`)."""
        for other in self._context.cluster.others_on(node, node.provider_id):
            if other.name in self.registry:
                self._queue.add(other.name)

    def _stop_maintenance_if_withdrawn(self, node: Node) -> None:
        """What was begun for a maintenance that is not requested any more stops now, however slow the server is."""
        state = self.registry.get(node.name)
        if isinstance(state, MaintenanceState):
            self._maintenance.interrupt(state, node)
            if not is_maintenance_requested(node) and not is_finalizing(node):
                cancel_drain(self._context, node.name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old  # a pod never leaves its node, but comes to it
        if pod is None or (state := self.registry.get(pod.node_name)) is None:
            return
        if old is not None and new is not None and _is_unchanged(old, new):
            return  # a condition, say: an eviction writes DisruptionTarget first
        self._timer.changed(pod.node_name)
        if old is not None and old.deletion_timestamp is not None and _has_ended(old, new):
            self._pod_ended(old, state)
        elif _only_stops(old, new) and not is_silent(state.node):  # else it may count as gone from now on
            self._add_for_report(pod.node_name, state)
        else:
            self._add_coalesced(pod.node_name, state)

    def _pod_ended(self, pod: Pod, state: NodeState) -> None:
        """A terminating pod holds its node no longer: with the last of those that the plan waits for, it goes on."""
        name = pod.node_name
        if pod.uid in state.awaited:
            state.awaited.discard(pod.uid)
            state.ended.add(pod.uid)
            outcome = self._context.pod_outcomes.pod_left(name, pod.uid, state.labels)
            state.observer.pod_left(pod.uid, outcome, self._context.clock.now())
            if state.awaited and pod.uid not in (state.protected_pods or {}):
                self._add_for_report(name, state)
            else:
                self._queue.add(name)  # for how long a pod was protected is counted by the plan
        elif pod.phase in FINISHED:
            self._add_for_report(name, state)
        else:
            self._add_coalesced(name, state)

    def _add_coalesced(self, name: str, state: NodeState) -> None:
        if state.plan is not None and len(state.plan.left) > MANY_PODS:
            self._queue.add_after(name, state.looked_at + COALESCE_SECONDS - self._context.clock.monotonic())
        else:
            self._queue.add(name)

    def _add_for_report(self, name: str, state: NodeState) -> None:
        shortest, longest = REPORT_SECONDS
        due = seconds_until_allowed(self._context, state.objects, names.DRAINED)
        self._queue.add_after(name, min(max(due, shortest), longest))

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
                        self._arm(node)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        """Which pods a budget selects is the plan's business. What it allows now, which changes with every eviction, is
        the business of its queue; here only the condition that says what blocks follows it, as often as it may."""
        budget = new or old
        if budget is None:
            return
        if old is not None and new is not None and old.generation == new.generation:
            if self.registry and budget.key not in self._changed_at:  # not at each eviction: it may block many nodes
                self._changed_at[budget.key] = self._context.clock.monotonic()
                self._changed_budgets.add_after(budget.key, self._context.settings.status_interval_seconds)
            return
        for name in self.registry:
            state = self.registry.get(name)
            if state and any(pod.namespace == budget.namespace for pod in self._context.cluster.pods_on(name)):
                self._add_coalesced(name, state)  # its author may change it many times a second

    async def _add_blocked(self, budget: BudgetKey) -> None:
        """Add the nodes that this budget blocks by plans from before it changed."""
        changed_at = self._changed_at.pop(budget)
        for name in self.registry:
            state = self.registry.get(name)
            if state and budget in state.blocking_budgets and state.looked_at <= changed_at:
                self._queue.add(name)

    # Evictions.

    def evicted(self, candidate: EvictionCandidate) -> None:
        """See EvictionListener: the watch will show the pod terminating."""

    def refused(self, candidate: EvictionCandidate, error: ApiError) -> None:
        """See EvictionListener: what a budget says is known already, anything else has to be shown."""
        state = self.registry.get(candidate.node)
        if state is not None and self._context.evictor.refusal_of(candidate.uid):
            self._add_for_report(candidate.node, state)

    # Statistics.

    def under_way(self) -> tuple[Progress, ...]:
        """Progress of each termination and maintenance, oldest first."""
        return self.registry.under_way()

    def finished(self) -> tuple[Progress, ...]:
        """The last terminations that are over, in that order."""
        return self.registry.finished()

    def remaining(self) -> RemainingPods:
        """The pods that hold nodes, as the last plan of each shows them."""
        states = [self.registry.get(name) for name in self.registry]
        return count_remaining(
            (state.plan, state.ended) for state in states if state is not None and state.plan is not None
        )

    def statistics(self) -> QueueStatistics:
        """Statistics of the work queue."""
        return self._queue.statistics()


def _is_requested(node: Node) -> bool:
    """Whether the node is to be terminated, to be in maintenance, or to return from it."""
    return is_finalizing(node) or is_in_maintenance(node)


def _is_unchanged(old: C, new: C) -> bool:
    """Whether a write has changed nothing that gracectl reads, such as a heartbeat of the kubelet."""
    return new == msgspec.structs.replace(old, resource_version=new.resource_version)


def _has_ended(old: Pod, new: Pod | None) -> bool:
    """Whether the event shows that the pod `old` holds its node no longer."""
    return new is None or (new.uid == old.uid and new.phase in FINISHED and old.phase not in FINISHED)


def _only_stops(old: Pod | None, new: Pod | None) -> bool:
    """Whether the event only shows that a pod is stopping, and how far it is: it still holds its node."""
    if old is None or new is None or new.deletion_timestamp is None:
        return False
    return new == msgspec.structs.replace(
        old,
        resource_version=new.resource_version,
        deletion_timestamp=new.deletion_timestamp,
        deletion_grace_seconds=new.deletion_grace_seconds,
        ready=new.ready,
    )


_FATES = {
    PodOutcome.EVICTED: "evicted",
    PodOutcome.DELETED: "deleted for the deadline",
    PodOutcome.LEFT: "ended by themselves",
    PodOutcome.ABANDONED: "still there",
}


def end_report(outcomes: Mapping[PodOutcome, int], duration: str, *, is_done: bool) -> str:
    """Message of the Event NodeTerminated. `is_done`: gracectl removed the finalizer when everything was done."""
    fates = ", ".join(f"{outcomes[outcome]} {fate}" for outcome, fate in _FATES.items() if outcomes.get(outcome))
    what = "removed" if is_done else "removed by another client before its termination was complete,"
    return f"{what} {duration} after the request: pods: {fates or 'none had to leave'}"


MISMATCH = "nodeSelector does not match it"
REMEDY = "change nodeSelector or the node's labels"


def is_begun_by_another(node: Node) -> bool:
    """Whether a controller has begun the termination or the maintenance of a node that is not managed here."""
    if is_finalizing(node):
        return is_termination_begun(node.conditions)
    return is_maintenance_requested(node) and bool(recorded_marks(node))


def unmanaged_report(node: Node) -> tuple[EventReason, str]:
    """Event about the mark that the node carries: what it means, and the remedy."""
    if is_finalizing(node):
        return EventReason.UNMANAGED_NODE_HELD, (
            f"finalizer {names.FINALIZER} holds this node, but it is not managed: {MISMATCH}; {REMEDY}; remove the "
            "finalizer by hand only if no other controller manages the node"
        )
    if is_maintenance_requested(node):
        return EventReason.MAINTENANCE_IGNORED, (
            f"annotation {names.KEEP_DRAINED} requests maintenance of this node, but it is not managed: {MISMATCH}; "
            f"{REMEDY}, or remove the annotation"
        )
    return EventReason.MAINTENANCE_IGNORED, (
        f"the maintenance of this node has ended, but it is not managed: {MISMATCH}, so what gracectl has put on it "
        f"stays ({node.annotations[names.CORDONED] or 'conditions'}); {REMEDY}, or remove it by hand, and then "
        f"annotation {names.CORDONED}"
    )
