"""A work queue of keys, as controllers want it: what is to be looked at, not what has happened.

Invariants: a key is in the queue once, however often it was added; one worker has a key at a time, and a key that is
added meanwhile is handed out again afterwards; of several wake-ups the earliest wins; a cancelled `get` loses nothing.
Adding a key now cancels its later wake-up, because whoever works on it decides anew when to look again.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import anyio
import msgspec

from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `ready` keys wait for a worker, `delayed` ones for their time; latencies are seconds in `ready`."""

    ready: int
    delayed: int
    processing: int
    failing: int
    adds: int
    handed_out: int
    retries: int
    latency_total: float
    latency_maximum: float


class WorkQueue(Generic[K]):
    """See the module. `backoff` makes the per-key backoff of `add_rate_limited`."""

    def __init__(self, clock: Clock, backoff: Callable[[], Backoff] = lambda: Backoff(0.05, 60.0)) -> None:
        self._clock = clock
        self._make_backoff = backoff
        self._ready: deque[K] = deque()
        self._ready_since: dict[K, float] = {}  # the keys in `_ready`
        self._processing: set[K] = set()
        self._again: set[K] = set()  # added while they are being processed
        self._wake_at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # entries that differ from `_wake_at` are void
        self._serial = itertools.count()
        self._backoffs: dict[K, Backoff] = {}
        self._news = anyio.Event()
        self._adds = self._handed_out = self._retries = 0
        self._latency_total = self._latency_maximum = 0.0

    def add(self, key: K) -> None:
        """This key is to be looked at as soon as a worker is free."""
        self._adds += 1
        self._wake_at.pop(key, None)
        if key in self._processing:
            self._again.add(key)
        elif key not in self._ready_since:
            self._make_ready(key)

    def add_after(self, key: K, seconds: float) -> None:
        """This key is to be looked at in so many seconds, unless it is earlier already."""
        if seconds <= 0:
            self.add(key)
            return
        at = self._clock.monotonic() + seconds
        if key in self._ready_since or key in self._again or self._wake_at.get(key, float("inf")) <= at:
            return
        self._wake_at[key] = at
        heapq.heappush(self._heap, (at, next(self._serial), key))
        if self._heap[0][2] == key:
            self._announce()

    def add_rate_limited(self, key: K) -> None:
        """It failed: look at this key again after its own backoff, which grows until `forget`."""
        self._retries += 1
        if key not in self._backoffs:
            self._backoffs[key] = self._make_backoff()
        self.add_after(key, self._backoffs[key].next())

    def forget(self, key: K) -> None:
        """It worked: the next failure of this key begins with the shortest backoff."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """The next key, in the order in which they became ready. Call `done` with it afterwards."""
        while True:
            self._move_due()
            if self._ready:
                return self._hand_out()
            news = self._news
            with anyio.move_on_after(self._seconds_to_next()):
                await news.wait()

    def done(self, key: K) -> None:
        """The worker has finished with this key."""
        self._processing.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._make_ready(key)

    def statistics(self) -> QueueStatistics:
        """What waits, and what has been."""
        return QueueStatistics(
            ready=len(self._ready),
            delayed=len(self._wake_at),
            processing=len(self._processing),
            failing=len(self._backoffs),
            adds=self._adds,
            handed_out=self._handed_out,
            retries=self._retries,
            latency_total=self._latency_total,
            latency_maximum=self._latency_maximum,
        )

    def _make_ready(self, key: K) -> None:
        self._ready.append(key)
        self._ready_since[key] = self._clock.monotonic()
        self._announce()

    def _hand_out(self) -> K:
        key = self._ready.popleft()
        latency = self._clock.monotonic() - self._ready_since.pop(key)
        self._latency_total += latency
        self._latency_maximum = max(self._latency_maximum, latency)
        self._handed_out += 1
        self._processing.add(key)
        return key

    def _move_due(self) -> None:
        now = self._clock.monotonic()
        while self._heap and (self._heap[0][0] <= now or self._is_void(self._heap[0])):
            entry = heapq.heappop(self._heap)
            if not self._is_void(entry):
                self.add(entry[2])

    def _is_void(self, entry: tuple[float, int, K]) -> bool:
        return self._wake_at.get(entry[2]) != entry[0]

    def _seconds_to_next(self) -> float | None:
        return self._heap[0][0] - self._clock.monotonic() if self._heap else None

    def _announce(self) -> None:
        self._news.set()
        self._news = anyio.Event()
