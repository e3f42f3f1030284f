"""Order of evictions under the same budgets, over all nodes.

Pods that share a budget are evicted one by one. The evictor keeps such queues; forecasts and status ask for the order
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from gracectl.policy.budgets import BudgetKey
from gracectl.policy.plan import Plan, PodPlan

EvictionRank = tuple[float, float, str, str]
"""Sort key of queued pods: less is earlier."""


def eviction_rank(key: tuple[str, str], deadline: float | None, since: float) -> EvictionRank:
    """Earliest deadline first, then the oldest termination; names make it total. Times are Unix seconds."""
    return (math.inf if deadline is None else deadline, since, *key)


class QueuedPod(msgspec.Struct, frozen=True):
    """Pod to evict now; `since`: when the termination of its node began."""

    node: str
    since: float
    entry: PodPlan

    @property
    def rank(self) -> EvictionRank:
        """Sort key among the pods of its queue."""
        return eviction_rank(self.entry.pod.key, self.entry.deadline, self.since)


def queues_of(plans: Iterable[tuple[float, str, Plan]]) -> dict[tuple[BudgetKey, ...], tuple[QueuedPod, ...]]:
    """Queues by the budgets that select the pods, in order.

    `plans`: the beginning of a node's termination, its name and its plan.
    """
    found: dict[tuple[BudgetKey, ...], list[QueuedPod]] = {}
    for since, node, decision in plans:
        for entry in decision.leaving:
            found.setdefault(entry.budgets, []).append(QueuedPod(node, since, entry))
    return {budgets: in_order(queue) for budgets, queue in found.items()}


def in_order(queue: Iterable[QueuedPod]) -> tuple[QueuedPod, ...]:
    """Pods of a queue in the order of their evictions."""
    return tuple(sorted(queue, key=lambda queued: queued.rank))


class QueuePosition(msgspec.Struct, frozen=True):
    """Position of a pod in its queue: `number` (from 1) `of` the total, behind the pod `ahead`.

    `is_undecided`: pods of several nodes have the same rank except for names. The node that is reconciled first goes
    first, so the order is unknown.
    """

    number: int
    of: int
    ahead: QueuedPod | None = None
    is_undecided: bool = False


def positions_of(queue: Sequence[QueuedPod]) -> dict[str, QueuePosition]:
    """Positions in this queue, by pod UID."""
    nodes: dict[tuple[float, float], set[str]] = {}
    for queued in queue:
        nodes.setdefault(queued.rank[:2], set()).add(queued.node)
    return {
        queued.entry.pod.uid: QueuePosition(
            number=number,
            of=len(queue),
            ahead=queue[number - 2] if number > 1 else None,
            is_undecided=len(nodes[queued.rank[:2]]) > 1,
        )
        for number, queued in enumerate(queue, start=1)
    }
