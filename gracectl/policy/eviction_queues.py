"""Who leaves before whom under the same budget, over all nodes (DESIGN 3.6).

Pods that share a budget leave one by one. The evictor keeps such lanes; whoever explains or foretells what it does asks
the same question here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from gracectl.policy.budgets import BudgetKey
from gracectl.policy.plan import Plan, PodPlan

EvictionRank = tuple[float, float, str, str]
"""Sorts those who wait: less is earlier."""


def eviction_rank(key: tuple[str, str], deadline: float | None, since: float) -> EvictionRank:
    """Earliest deadline first, then the oldest termination; names make it total. Times are Unix seconds."""
    return (math.inf if deadline is None else deadline, since, *key)


class QueuedPod(msgspec.Struct, frozen=True):
    """A pod whose turn on its node has come; `since`: when the termination of that node began."""

    node: str
    since: float
    entry: PodPlan

    @property
    def turn(self) -> EvictionRank:
        """Its place among all who wait for the same."""
        return eviction_rank(self.entry.pod.key, self.entry.deadline, self.since)


def queues_of(plans: Iterable[tuple[float, str, Plan]]) -> dict[tuple[BudgetKey, ...], tuple[QueuedPod, ...]]:
    """Those whose turn has come, by the budgets that select them and in the order in which they leave.

    `plans`: since when a node ends, its name, and what is decided about it.
    """
    found: dict[tuple[BudgetKey, ...], list[QueuedPod]] = {}
    for since, node, decision in plans:
        for entry in decision.leaving:
            found.setdefault(entry.budgets, []).append(QueuedPod(node, since, entry))
    return {budgets: tuple(sorted(lane, key=lambda waiting: waiting.turn)) for budgets, lane in found.items()}


class QueuePosition(msgspec.Struct, frozen=True):
    """Where a pod stands in its lane: it is the `number`th (from 1) `of` so many, right behind `ahead`.

    `is_open`: pods of several nodes have the same turn but for their names. Whose node is looked at first then goes
    first, so nobody can say beforehand which of them has which place.
    """

    number: int
    of: int
    ahead: QueuedPod | None = None
    is_open: bool = False


def positions_of(lane: Sequence[QueuedPod]) -> dict[str, QueuePosition]:
    """By pod uid, the places of those who wait in this order."""
    nodes: dict[tuple[float, float], set[str]] = {}
    for waiting in lane:
        nodes.setdefault(waiting.turn[:2], set()).add(waiting.node)
    return {
        waiting.entry.pod.uid: QueuePosition(
            number=number,
            of=len(lane),
            ahead=lane[number - 2] if number > 1 else None,
            is_open=len(nodes[waiting.turn[:2]]) > 1,
        )
        for number, waiting in enumerate(lane, start=1)
    }
