"""Where pods wait in a course of events: for the rate of evictions, and in lanes for their budgets.

Nothing here waits itself: it is told the time. Invariants: no more pods are let go than the rate allows; a lane gives
its pods in the order of their places, each once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from gracectl.policy.lanes import Waiting

HAIR = 1e-9
"""Of an eviction: the allowance has come, but for rounding."""

LEAST_WAIT_SECONDS = 0.1
"""Thousands of pods that wait for a rate are let go in small groups; no instant is off by more than this."""


class Rate(msgspec.Struct, frozen=True):
    """How fast pods without a budget are evicted: so many a second, after a burst; 0 means no limit."""

    qps: float = 0.0
    burst: int = 1


class Bucket:
    """Evictions of pods without a budget, as the rate limit lets them pass."""

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at = now

    def take(self, now: float) -> float | None:
        """None: one may go; else the instant at which the next one may."""
        if self._rate.qps == 0:
            return None
        self._tokens = min(self._rate.burst, self._tokens + (now - self._at) * self._rate.qps)
        self._at = now
        if self._tokens < 1 - HAIR:
            return now + max((1 - self._tokens) / self._rate.qps, LEAST_WAIT_SECONDS)
        self._tokens -= 1
        return None


Rank = tuple[float, ...]
"""Sorts those in a lane: less is earlier."""


class Lane:
    """Those who wait under the same budgets, in their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, str]] = []
        self._waiting: dict[str, tuple[Rank, Waiting]] = {}

    def join(self, waiting: Waiting, place: Rank) -> None:
        """Add one, or give him another place."""
        uid = waiting.entry.pod.uid
        heapq.heappush(self._heap, (place, uid))
        self._waiting[uid] = (place, waiting)

    def leave(self, uid: str) -> None:
        """He does not wait any more."""
        self._waiting.pop(uid, None)

    def in_order(self) -> Iterator[Waiting]:
        """The first one first; whoever is put back with `join` waits on."""
        while self._heap:
            place, uid = heapq.heappop(self._heap)
            found = self._waiting.get(uid)
            if found is not None and found[0] == place:
                del self._waiting[uid]
                yield found[1]
