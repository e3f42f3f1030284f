"""Controller of the status of node disruption budgets: counts of nodes and allowed terminations.

Only the leader counts, so that counts are in order; the admitter does the rest. Invariants: a status is written only if
it changes, under the version that was counted; the write that counts a node as terminating removes its entry in
`disruptedNodes`; nothing is counted before the caches are live; flapping nodes cost at most one write a second per
budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Conflict, NotFound
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.foreign import visible
from gracectl.model.meta import Condition, turned_at
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Admitter
from gracectl.nodebudgets.members import state_of
from gracectl.policy import nodebudgets
from gracectl.policy.windows import explain_closed, invalid_window, window_state
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.workers import Requeue, run_workers

logger = logging.getLogger(__name__)

WORKERS = 4

WRITES_PER_SECOND, BURST = 1.0, 5
"""Limit of writes of one budget's status. Occasional changes are written immediately; flapping nodes delay a write by a
second at most, and the admitter counts the cached nodes itself before it admits.
"""

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a budget that could not be written is counted again; doubled with each failure."""


class StatusController:
    """Reconciler of budgets; a key is the name of one."""

    def __init__(
        self,
        admitter: Admitter,
        client: KubeClient,
        clock: Clock,
        backoff: Callable[[float, float], Backoff],
    ) -> None:
        self._admitter = admitter
        self._client = client
        self._nodes, self._budgets = nodes, budgets = admitter.nodes, admitter.budgets
        self._store, self._members = admitter.store, admitter.members
        self._clock = clock
        self._writes: dict[str, TokenBucket] = {}  # by budget
        self._queue: WorkQueue[str] = WorkQueue(clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        budgets.subscribe(self._budget_changed, replay=True)
        nodes.subscribe(self._node_changed)
        clock.subscribe(self._clock_jumped)

    async def run(self) -> None:
        """Count until cancelled."""
        await self._admitter.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"node-budgets": self._queue.statistics()}

    async def reconcile(self, name: str) -> Requeue | None:
        """Count the nodes of the budget, and write changes; idempotent."""
        budget = self._store.budget(name)
        if budget is None:
            self._writes.pop(name, None)
            return None
        now = self._clock.now()
        disruptions = nodebudgets.current_disruptions(budget, self._nodes_of(budget), now)
        counted = msgspec.structs.replace(budget, disrupted_nodes=disruptions)
        counts = self._members.count_nodes(counted, now)
        verdict = _verdict(counted, counts, now)
        if not _is_written(budget, disruptions, counts, verdict):
            writes = self._writes.setdefault(name, TokenBucket(self._clock, WRITES_PER_SECOND, BURST))
            if not writes.take():
                return Requeue(writes.statistics().next_in)
            try:
                await self._store.write(budget, _status(budget, disruptions, counts, verdict), self._client)
            except NotFound:
                return None
            except Conflict:
                newest = await self._store.look_up(name)
                if newest is not None and newest.resource_version == budget.resource_version:
                    raise  # not a conflict with another write: an immediate retry would fail again
                return Requeue(0)  # a node was admitted meanwhile
            _log(budget, counts, verdict)
        return self._next_change(budget, disruptions, now)

    def _nodes_of(self, budget: NodeDisruptionBudget) -> dict[str, Node]:
        found = {name: self._nodes.get("", name) for name in budget.disrupted_nodes}
        return {name: node for name, node in found.items() if node is not None}

    def _next_change(self, budget: NodeDisruptionBudget, disruptions: dict[str, float], now: float) -> Requeue | None:
        """Until when nothing but time can change what counts."""
        lasts = {
            name: nodebudgets.UNOBSERVED_NODE_SECONDS
            if self._nodes.get("", name) is None
            else nodebudgets.ADMITTED_SECONDS
            for name in disruptions
        }
        ends = [at + lasts[name] for name, at in disruptions.items()]
        if (until := window_state(budget.windows, now).until) is not None:
            ends.append(until)
        return Requeue(max(min(ends) - now, 0.0)) if ends else None

    def _budget_changed(self, old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> None:
        if new is not None:
            self._queue.add(new.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        # The deletion of a node that was not Ready changes no count, but ends its entry.
        if old is not None and new is not None and _state(old) == _state(new):
            return
        for name in self._members.budgets_over(old, new):
            self._queue.add(name)

    def _clock_jumped(self) -> None:
        """Every instant that an entry waits for is nearer or farther than it was."""
        for budget in self._budgets.values():
            self._queue.add(budget.name)


def _state(node: Node) -> tuple[object, ...]:
    return (state_of(node), node.deletion_timestamp)


def _verdict(budget: NodeDisruptionBudget, counts: nodebudgets.NodeCounts, now: float) -> Condition:
    """The condition DisruptionAllowed, and since when it is so."""
    status, reason = names.TRUE, names.SUFFICIENT_NODES
    message = ""
    if (problem := nodebudgets.invalid_reason(budget)) is not None:
        status, reason, message = names.FALSE, names.SYNC_FAILED, problem
    elif not counts.expected:
        status, reason, message = names.FALSE, names.INSUFFICIENT_NODES, "the selector selects no node"
    elif not counts.allowed:
        status, reason = names.FALSE, names.INSUFFICIENT_NODES
        available = f"{counts.available} of {counts.expected} nodes are available"
        message = f"{available}, {counts.desired} must be ({nodebudgets.bound_of(budget)})"
    elif not (windows := window_state(budget.windows, now)).is_open:
        problem = invalid_window(budget.windows, "spec.windows")
        message = f"voluntary terminations: {explain_closed(windows)}" + (f": {problem}" if problem else "")
    return Condition(names.DISRUPTION_ALLOWED, status, reason, visible(message), turned_at(budget.verdict, status, now))


def _is_written(
    budget: NodeDisruptionBudget, disruptions: dict[str, float], counts: nodebudgets.NodeCounts, verdict: Condition
) -> bool:
    """Whether the status of the budget is this already."""
    return (
        budget.observed_generation == budget.generation
        and nodebudgets.NodeCounts(budget.expected_nodes, budget.current_available, budget.desired_available) == counts
        and budget.disruptions_allowed == counts.allowed
        and budget.disrupted_nodes == disruptions
        and budget.verdict == verdict
    )


def _status(
    budget: NodeDisruptionBudget, disruptions: dict[str, float], counts: nodebudgets.NodeCounts, verdict: Condition
) -> dict[str, Any]:
    assert verdict.last_transition is not None
    return {
        "observedGeneration": budget.generation,
        "expectedNodes": counts.expected,
        "currentAvailable": counts.available,
        "desiredAvailable": counts.desired,
        "disruptionsAllowed": counts.allowed,
        "disruptedNodes": {name: None for name in budget.disrupted_nodes if name not in disruptions},
        "conditions": [
            {
                "type": verdict.type,
                "status": verdict.status,
                "reason": verdict.reason,
                "message": verdict.message,
                "observedGeneration": budget.generation,
                "lastTransitionTime": format_time(verdict.last_transition),
            }
        ],
    }


def _log(before: NodeDisruptionBudget, counts: nodebudgets.NodeCounts, verdict: Condition) -> None:
    """Log when what the budget allows begins or ends."""
    if before.verdict is not None and (before.verdict.status, before.verdict.reason) == (
        verdict.status,
        verdict.reason,
    ):
        return
    allowed = f"no node may be terminated: {verdict.message}"
    if counts.allowed:
        allowed = f"{counts.allowed} of {counts.expected} nodes may be terminated"
    logger.info("node disruption budget %s: %s", before.name, allowed, extra={"node_budget": before.name})
