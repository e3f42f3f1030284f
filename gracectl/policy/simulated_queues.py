"""Queues and the rate limit of simulated evictions: which pod is evicted next, and when there are tokens again."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from gracectl.policy.eviction_queues import QueuedPod

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


Rank = tuple[float, ...]
"""Position in a queue: less is earlier."""


class SimulatedQueue:
    """Pods that wait under the same budgets, in order.

    `may_skip`: a budget may allow a pod but not the one before it, because one of them is not Ready. Otherwise the
    first pod that is refused is refused for all, and thousands of others are not tried at each event. `reversed_at`:
    the instant for which ranks were reversed.
    """

    def __init__(self) -> None:
        self.may_skip = False
        self.reversed_at: float | None = None
        self._heap: list[tuple[Rank, str]] = []
        self._waiting: dict[str, tuple[Rank, QueuedPod]] = {}

    def add(self, queued: QueuedPod, place: Rank) -> None:
        """Add a pod, or move it."""
        uid = queued.entry.pod.uid
        heapq.heappush(self._heap, (place, uid))
        self._waiting[uid] = (place, queued)

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        self._waiting.pop(uid, None)

    def in_order(self) -> Iterator[QueuedPod]:
        """Take the pods out one by one, in order; a pod that is added again meanwhile waits on."""
        while self._heap:
            place, uid = heapq.heappop(self._heap)
            found = self._waiting.get(uid)
            if found is not None and found[0] == place:
                del self._waiting[uid]
                yield found[1]
