"""Order of evictions under the same budgets, over all nodes.

Pods that share a budget are evicted one by one. The evictor keeps such queues; forecasts and status ask for the order
here, and a simulation for its queues and their rate limit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import msgspec

from gracectl.policy.budgets import BudgetKey
from gracectl.policy.plan import Plan, PodPlan

EvictionRank = tuple[float, float, str, str]
"""Sort key of queued pods: less is earlier."""


def eviction_rank(key: tuple[str, str], deadline: float | None, since: float) -> EvictionRank:
    """Earliest deadline first, then the oldest termination; names make it total. Times are Unix seconds."""
    return (*turn_of(deadline, since), *key)


def turn_of(deadline: float | None, since: float) -> tuple[float, float]:
    """The rank without names."""
    return (math.inf if deadline is None else deadline, since)


class QueuedPod(msgspec.Struct, frozen=True, gc=False):
    """Pod to evict now; `since`: when the termination of its node began."""

    node: str
    since: float
    entry: PodPlan

    @property
    def rank(self) -> EvictionRank:
        """Sort key among the pods of its queue."""
        return eviction_rank(self.entry.pod.key, self.entry.deadline, self.since)

    @property
    def turn(self) -> tuple[float, float]:
        """The rank without names: equal for pods of which it is not known which goes first."""
        return turn_of(self.entry.deadline, self.since)


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
        nodes.setdefault(queued.turn, set()).add(queued.node)
    return {
        queued.entry.pod.uid: QueuePosition(
            number=number,
            of=len(queue),
            ahead=queue[number - 2] if number > 1 else None,
            is_undecided=len(nodes[queued.turn]) > 1,
        )
        for number, queued in enumerate(queue, start=1)
    }


ROUNDING = 1e-9
"""Part of an eviction: less than this is missing only by rounding."""

SHORTEST_WAIT_SECONDS = 0.1
"""Thousands of pods that wait for a rate are evicted in small groups; no instant is off by more than this."""


class EvictionRate(msgspec.Struct, frozen=True):
    """Rate limit of evictions without a budget: `qps`, after a burst; 0 means no limit."""

    qps: float = 0.0
    burst: int = 1


class RateLimit:
    """Token bucket for evictions without a budget."""

    def __init__(self, rate: EvictionRate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at = now

    def take(self, now: float) -> float | None:
        """Take a token: None if there was one, else the instant of the next."""
        if self._rate.qps == 0:
            return None
        self._tokens = min(self._rate.burst, self._tokens + (now - self._at) * self._rate.qps)
        self._at = now
        if self._tokens < 1 - ROUNDING:
            return now + max((1 - self._tokens) / self._rate.qps, SHORTEST_WAIT_SECONDS)
        self._tokens -= 1
        return None


Place = tuple[bool, float, float, int, str]
"""Place of a pod in a queue: less is earlier. Whether it comes after all others, its turn, a number for its
name, and its UID. All but the UID are negative in a reversed order.
"""


class SimulatedQueue:
    """Pods that wait under the same budgets, in order.

    `may_skip`: a budget may allow a pod but not the one before it, because one of them is not Ready. Otherwise the
    first pod that is refused is refused for all, and thousands of others are not tried at each event. `reversed_at`:
    the instant for which places were reversed.
    """

    def __init__(self) -> None:
        self.may_skip = False
        self.reversed_at: float | None = None
        self._heap: list[Place] = []
        self._waiting: dict[str, Place] = {}

    def add(self, place: Place) -> None:
        """Add a pod, or move it."""
        heapq.heappush(self._heap, place)
        self._waiting[place[-1]] = place

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        self._waiting.pop(uid, None)

    def pop(self) -> Place | None:
        """Take the first pod out of the queue; None: it is empty."""
        while self._heap:
            place = heapq.heappop(self._heap)
            if self._waiting.get(place[-1]) is place:
                del self._waiting[place[-1]]
                return place
        return None
