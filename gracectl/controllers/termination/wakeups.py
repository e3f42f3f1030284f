"""Wakeups of the node controller: which nodes to reconcile after a change in the cluster, and when.

Invariants: an event that only changes a report is delayed; an event that lets a drain continue never is. The queue of a
budget acts on what the budget allows: here a change only refreshes conditions.
"""

from __future__ import annotations

from typing import TypeVar

import anyio
import msgspec

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.termination.assist import AssistState, other_drain
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.deadline import cached_deadline
from gracectl.controllers.termination.deadline_timer import DeadlineTimer
from gracectl.controllers.termination.drain import cancel_drain
from gracectl.controllers.termination.maintenance import MaintenanceState
from gracectl.controllers.termination.registry import Registry
from gracectl.controllers.termination.report import seconds_until_allowed
from gracectl.controllers.termination.state import NodeState
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.machine import Machine
from gracectl.model.node import Node
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.budgets import BudgetKey
from gracectl.policy.evictability import FINISHED, is_silent
from gracectl.policy.maintenance import is_in_maintenance, is_maintenance_requested
from gracectl.policy.replacement import facts_key
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.workers import run_workers

MANY_PODS, COALESCE_SECONDS = 20, 0.1
"""On a node with more pods, pod events wait until the last plan is this old, as a plan is about all of them (ADR 0027).
The end of a wave's last pod never waits."""

REPORT_SECONDS = (1.0, 10.0)
"""Minimum and maximum delay of a reconcile that only refreshes the condition: where many pods are deleted in one
instant, requests for the others go first."""

C = TypeVar("C", Node, Pod)


class NodeWakeups:
    """Adds nodes to `queue`, and arms the deadline timer."""

    def __init__(
        self,
        context: StepContext,
        registry: Registry[NodeState],
        queue: WorkQueue[str],
        timer: DeadlineTimer,
    ) -> None:
        self._context = context
        self._registry = registry
        self._queue = queue
        self._timer = timer
        self._changed_budgets: WorkQueue[BudgetKey] = WorkQueue(context.clock)
        self._changed_at: dict[BudgetKey, float] = {}  # monotonic: their first change since their nodes were added
        context.evictor.listen(self)
        cluster = context.cluster
        cluster.nodes.subscribe(self._node_changed, replay=True)
        cluster.pods.subscribe(self._pod_changed)
        cluster.budgets.subscribe(self._budget_changed)
        cluster.attachments.subscribe(self._attachment_changed)
        cluster.claims.subscribe(self._claim_changed, replay=True)
        cluster.machines.subscribe(self._machine_changed, replay=True)
        context.clock.subscribe(self._clock_jumped)

    async def run(self) -> None:
        """Fire timers until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._timer.run)
            group.start_soon(run_workers, self._changed_budgets, self._add_blocked, 1)

    def configured(self) -> None:
        """Add all nodes in progress, and the nodes that are assisted from now on; rearm the timers."""
        self._add_all()
        for node in self._context.cluster.nodes.values():
            self._arm(node)
            if other_drain(self._context, node) is not None:
                self._queue.add(node.name)

    def _add_all(self) -> None:
        for state in self._registry.states():
            self._queue.add(state.node.name)

    def _arm(self, node: Node) -> None:
        """Arm the timer for the deadline of this node, from the caches."""
        if not is_requested(node) or not self._context.manages(node):
            return
        deadline = cached_deadline(self._context, node)
        if is_finalizing(node) or deadline is not None:
            self._timer.changed(node.name)
        if deadline is not None:
            self._timer.set_deadline(node.name, deadline.at)

    def _clock_jumped(self) -> None:
        """Deadlines are instants of the server: when its clock turns out to be another, they are nearer or further."""
        self._timer.clock_jumped()
        self._add_all()

    # -- nodes and claims ----------------------------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            # Its pods are not pods of the node that has its name now, however long a write for it may hang.
            cancel_drain(self._context, old.name)
            self._timer.forget(old.name)
            self._wake_others_of_instance(old)
        if old is not None and new is not None and (_is_unchanged(old, new) or self._is_echo(old, new)):
            return
        for node in (old, new):
            if node is not None and (node.name in self._registry or is_requested(node)):
                self._queue.add(node.name)
        if new is not None:
            if other_drain(self._context, new) is not None:
                self._queue.add(new.name)
            self._stop_if_withdrawn(new)
            self._arm(new)
            if is_finalizing(new) and (old is None or not is_finalizing(old)):
                self._wake_others_of_instance(new)

    def _is_echo(self, old: Node, new: Node) -> bool:
        state = self._registry.get(new.name)
        return state is not None and state.uid == new.uid and state.tracked.is_echo(old, new)

    def _wake_others_of_instance(self, node: Node) -> None:
        """Nodes of one instance wait for each other (see `instance`)."""
        for other in self._context.cluster.others_on(node, node.provider_id):
            if other.name in self._registry:
                self._queue.add(other.name)

    def _stop_if_withdrawn(self, node: Node) -> None:
        """A maintenance that is no longer requested, or the drain of another owner that has ended, stops now, however
        slow the server is."""
        state = self._registry.get(node.name)
        if isinstance(state, AssistState) and not state.matches_node(node):
            state.scope.cancel()
            cancel_drain(self._context, node.name)
        if isinstance(state, MaintenanceState):
            state.interrupt(node)
            if not is_maintenance_requested(node) and not is_finalizing(node):
                cancel_drain(self._context, node.name)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        for claim in (old, new):
            if claim is not None:
                for node in self._context.cluster.nodes_of(claim):
                    if node.name in self._registry:
                        self._queue.add(node.name)
                        self._arm(node)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        for machine in (old, new):
            node = None if machine is None else self._context.cluster.node(machine.node_name)
            if node is not None and (node.name in self._registry or other_drain(self._context, node) is not None):
                self._stop_if_withdrawn(node)
                self._queue.add(node.name)

    # -- pods and their volumes ----------------------------------------------------------------------------------------

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old  # a pod never leaves its node, but comes to it
        self._workload_changed(pod)
        if pod is None or (state := self._registry.get(pod.node_name)) is None:
            return
        if old is not None and new is not None and _is_unchanged(old, new):
            return  # a condition, say: an eviction writes DisruptionTarget first
        self._timer.changed(pod.node_name)
        if old is not None and old.deletion_timestamp is not None and _has_ended(old, new):
            self._pod_ended(old, state)
        elif _only_stops(old, new) and not is_silent(state.node) and state.other is None:
            # Of a silent node it may count as gone from now on; another owner may no longer delete it.
            self._add_for_report(state)
        else:
            self._add_coalesced(state)

    def _workload_changed(self, pod: Pod | None) -> None:
        """A pod may replace another one, on any node, or leave the turn to it."""
        workloads, reads = self._context.cluster.workloads, self._context.workload_reads
        if not (workloads or reads.is_reading) or pod is None or (key := facts_key(pod)) is None:
            return
        reads.note_change(key)
        if workloads.pop(key, None) is None:
            return
        for state in self._registry.states():
            left = () if state.drain.plan is None else state.drain.plan.left
            if any(entry.asks_for_replacement and facts_key(entry.pod) == key for entry in left):
                self._queue.add(state.node.name)

    def _pod_ended(self, pod: Pod, state: NodeState) -> None:
        """A terminating pod blocks its node no longer: with the last pod that the plan awaits, the drain continues."""
        memo = state.drain
        if pod.uid in memo.awaited:
            memo.awaited.discard(pod.uid)
            memo.ended.add(pod.uid)
            outcome = self._context.pod_outcomes.pod_left(pod.node_name, pod.uid, state.labels)
            state.observer.pod_left(pod.uid, outcome, self._context.clock.now())
            if memo.awaited and pod.uid not in (memo.protected_pods or {}):
                self._add_for_report(state)
            else:
                self._queue.add(pod.node_name)  # for how long a pod was protected is counted by the plan
        elif pod.phase in FINISHED:
            self._add_for_report(state)
        else:
            self._add_coalesced(state)

    def _add_coalesced(self, state: NodeState) -> None:
        memo, seconds = state.drain, 0.0
        if memo.plan is not None and len(memo.plan.left) > MANY_PODS:
            seconds = memo.looked_at + COALESCE_SECONDS - self._context.clock.monotonic()
        self._queue.add_after(state.node.name, seconds)

    def _add_for_report(self, state: NodeState) -> None:
        shortest, longest = REPORT_SECONDS
        due = seconds_until_allowed(self._context, state.objects, names.DRAINED)
        self._queue.add_after(state.node.name, min(max(due, shortest), longest))

    def _attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        attachment = new or old
        if attachment is not None and attachment.node_name in self._registry:
            self._queue.add(attachment.node_name)

    # -- budgets and evictions -----------------------------------------------------------------------------------------

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        """A new selector concerns the plan. The status, which changes with every eviction, concerns only the condition
        that names what blocks, as often as it may be written."""
        budget = new or old
        if budget is None:
            return
        if old is not None and new is not None and old.generation == new.generation:
            if len(self._registry) and budget.key not in self._changed_at:  # not at each eviction: it may block many
                self._changed_at[budget.key] = self._context.clock.monotonic()
                self._changed_budgets.add_after(budget.key, self._context.settings.status_interval_seconds)
            return
        for state in self._registry.states():
            if any(pod.namespace == budget.namespace for pod in self._context.cluster.pods_on(state.node.name)):
                self._add_coalesced(state)  # its author may change it many times a second

    async def _add_blocked(self, budget: BudgetKey) -> None:
        """Add the nodes that this budget blocks by plans from before it changed."""
        changed_at = self._changed_at.pop(budget)
        for state in self._registry.states():
            if budget in state.drain.blocking_budgets and state.drain.looked_at <= changed_at:
                self._queue.add(state.node.name)

    def evicted(self, candidate: EvictionCandidate) -> None:
        """See EvictionListener: the watch will show the pod terminating."""

    def refused(self, candidate: EvictionCandidate, error: ApiError) -> None:
        """See EvictionListener: a budget's refusal is known already, any other must be shown."""
        state = self._registry.get(candidate.node)
        if state is not None and self._context.evictor.refusal_of(candidate.uid):
            self._add_for_report(state)


def is_requested(node: Node) -> bool:
    """Whether the node must be terminated, be in maintenance, or return from it."""
    return is_finalizing(node) or is_in_maintenance(node)


def _is_unchanged(old: C, new: C) -> bool:
    """Whether a write has changed nothing that gracectl reads, such as a heartbeat of the kubelet."""
    return new == msgspec.structs.replace(old, resource_version=new.resource_version)


def _has_ended(old: Pod, new: Pod | None) -> bool:
    """Whether the event shows that the pod `old` blocks its node no longer."""
    return new is None or (new.uid == old.uid and new.phase in FINISHED and old.phase not in FINISHED)


def _only_stops(old: Pod | None, new: Pod | None) -> bool:
    """Whether the event only shows that a pod is stopping, and how far it is: it still blocks its node."""
    if old is None or new is None or new.deletion_timestamp is None:
        return False
    return new == msgspec.structs.replace(
        old,
        resource_version=new.resource_version,
        deletion_timestamp=new.deletion_timestamp,
        deletion_grace_seconds=new.deletion_grace_seconds,
        ready=new.ready,
    )
