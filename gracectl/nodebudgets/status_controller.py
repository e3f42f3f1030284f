"""Keeps the status of every node disruption budget: how many nodes it has, and how many of them may end now.

Only who leads counts, so that one count follows another; the rest is up to the gate. Invariants: a status is written
only where it says something new, under the version that it was counted from; an entry of the ledger goes in the write
that counts its node as ending; nothing is counted before the caches are live.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Conflict, NotFound
from gracectl.model import names
from gracectl.model.foreign import visible
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.nodebudget import NodeDisruptionBudget
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Admitter
from gracectl.nodebudgets.members import state_of
from gracectl.policy.nodebudgets import (
    ADMITTED_SECONDS,
    UNOBSERVED_NODE_SECONDS,
    NodeCounts,
    bound_of,
    current_disruptions,
    invalid_reason,
)
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers

logger = logging.getLogger(__name__)

WORKERS = 4

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a budget that could not be written is counted again; doubled with each failure."""


class StatusController:
    """A key is the name of a budget."""

    def __init__(
        self,
        gate: Admitter,
        client: KubeClient,
        clock: Clock,
        backoff: Callable[[float, float], Backoff],
    ) -> None:
        self._gate = gate
        self._client = client
        self._nodes, self._budgets = nodes, budgets = gate.nodes, gate.budgets
        self._ledger, self._muster = gate.ledger, gate.muster
        self._clock = clock
        self._queue: WorkQueue[str] = WorkQueue(clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        budgets.subscribe(self._budget_changed, replay=True)
        nodes.subscribe(self._node_changed)
        clock.subscribe(self._clock_jumped)

    async def run(self) -> None:
        """Count until cancelled."""
        await self._gate.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    async def reconcile(self, name: str) -> Requeue | None:
        """Count by the budget, and write what is new; safe to repeat."""
        budget = self._ledger.budget(name)
        if budget is None:
            return None
        now = self._clock.now()
        kept = current_disruptions(budget, self._nodes_of(budget), now)
        counted = msgspec.structs.replace(budget, disrupted_nodes=kept)
        tally = self._muster.count_nodes(counted, now)
        verdict = _verdict(counted, tally, now)
        if not _says(budget, kept, tally, verdict):
            try:
                await self._ledger.write(budget, _status(budget, kept, tally, verdict), self._client)
            except NotFound:
                return None
            except Conflict:
                await self._ledger.look_up(name)  # somebody was admitted meanwhile
                return Requeue(0)
            _tell(budget, tally, verdict)
        return self._until_the_next_is_over(kept, now)

    def _nodes_of(self, budget: NodeDisruptionBudget) -> dict[str, Node]:
        found = {name: self._nodes.get("", name) for name in budget.disrupted_nodes}
        return {name: node for name, node in found.items() if node is not None}

    def _until_the_next_is_over(self, kept: dict[str, float], now: float) -> Requeue | None:
        """Until when nothing but the time can change what counts."""
        patience = {
            name: UNOBSERVED_NODE_SECONDS if self._nodes.get("", name) is None else ADMITTED_SECONDS for name in kept
        }
        ends = [at + patience[name] for name, at in kept.items()]
        return Requeue(max(min(ends) - now, 0.0)) if ends else None

    def _budget_changed(self, old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> None:
        if new is not None:
            self._queue.add(new.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        # A deletion counts for nothing new of a node that was not Ready, but ends its entry in the ledger.
        if old is not None and new is not None and _state(old) == _state(new):
            return
        for name in self._muster.budgets_over(old, new):
            self._queue.add(name)

    def _clock_jumped(self) -> None:
        """Every instant that an entry waits for is nearer or farther than it was."""
        for budget in self._budgets.values():
            self._queue.add(budget.name)


def _state(node: Node) -> tuple[object, ...]:
    return (state_of(node), node.deletion_timestamp)


def _verdict(budget: NodeDisruptionBudget, tally: NodeCounts, now: float) -> Condition:
    """The condition DisruptionAllowed, since when it is so."""
    status, reason = names.TRUE, names.SUFFICIENT_NODES
    message = ""
    if (problem := invalid_reason(budget)) is not None:
        status, reason, message = names.FALSE, names.SYNC_FAILED, problem
    elif not tally.expected:
        status, reason, message = names.FALSE, names.INSUFFICIENT_NODES, "the selector selects no node"
    elif not tally.allowed:
        status, reason = names.FALSE, names.INSUFFICIENT_NODES
        message = (
            f"{tally.available} of {tally.expected} nodes are available, {tally.desired} must be ({bound_of(budget)})"
        )
    before = budget.verdict
    since = now if before is None or before.status != status else before.last_transition
    return Condition(names.DISRUPTION_ALLOWED, status, reason, visible(message), now if since is None else since)


def _says(budget: NodeDisruptionBudget, kept: dict[str, float], tally: NodeCounts, verdict: Condition) -> bool:
    """Whether the status of the budget says just this already."""
    return (
        budget.observed_generation == budget.generation
        and NodeCounts(budget.expected_nodes, budget.current_available, budget.desired_available) == tally
        and budget.disruptions_allowed == tally.allowed
        and budget.disrupted_nodes == kept
        and budget.verdict == verdict
    )


def _status(
    budget: NodeDisruptionBudget, kept: dict[str, float], tally: NodeCounts, verdict: Condition
) -> dict[str, Any]:
    assert verdict.last_transition is not None
    return {
        "observedGeneration": budget.generation,
        "expectedNodes": tally.expected,
        "currentAvailable": tally.available,
        "desiredAvailable": tally.desired,
        "disruptionsAllowed": tally.allowed,
        "disruptedNodes": {name: None for name in budget.disrupted_nodes if name not in kept},
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


def _tell(before: NodeDisruptionBudget, tally: NodeCounts, verdict: Condition) -> None:
    """A line of the log where what the budget allows begins or ends."""
    if before.verdict is not None and (before.verdict.status, before.verdict.reason) == (
        verdict.status,
        verdict.reason,
    ):
        return
    allowed = (
        f"{tally.allowed} of {tally.expected} nodes may end" if tally.allowed else f"no node may end: {verdict.message}"
    )
    logger.info("node disruption budget %s: %s", before.name, allowed, extra={"node_budget": before.name})
