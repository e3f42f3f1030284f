"""Level-based work queue: keys of objects to reconcile, not events.

Invariants: a key is queued once, however often it was added; one worker has a key at a time, and a key that is added
meanwhile is handed out again afterwards; of several wake-ups the earliest wins, and none comes early; a cancelled `get`
loses nothing. Adding a key now cancels its later wake-up, because its reconcile decides again when to requeue. With
`share`, keys of a group without a free slot are skipped until it has one; within a group the order stays. Urgent keys
are handed out first, and have their own slots.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram, empty_distribution
from gracectl.runtime.notifier import Notifier
from gracectl.runtime.shares import Shares

K = TypeVar("K", bound=Hashable)

# Void wake-ups tolerated in addition to the valid ones before the heap is rebuilt.
_VOID_ENTRIES = 64

URGENT_SLOTS = 500
"""Maximum urgent keys in progress, in addition to all others."""

LATENCY_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds."""


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot. `ready` keys wait for a worker, `delayed` ones for their time, `failing` ones have a backoff.

    `latency*` and `oldest_wait` are seconds in `ready`, of the keys handed out and of the one that waits longest;
    `work_total`: seconds between `get` and `done`, over all keys; `longest_work`: seconds of the longest reconcile in
    progress. `stalled`: seconds for which keys have been ready without a worker taking or finishing one.
    """

    ready: int = 0
    delayed: int = 0
    processing: int = 0
    failing: int = 0
    adds: int = 0
    handed_out: int = 0
    retries: int = 0
    latency: Distribution = empty_distribution(LATENCY_BOUNDS)
    oldest_wait: float = 0.0
    work_total: float = 0.0
    longest_work: float = 0.0
    stalled: float = 0.0


class WorkQueue(Generic[K]):
    """Work queue. `backoff` makes the per-key backoff of `add_rate_limited`; default 50 ms, doubling to 60 s.

    `is_urgent`: whether a key that becomes ready may pass all others and the limit of the workers (up to URGENT_SLOTS).
    """

    def __init__(
        self,
        clock: Clock,
        backoff: Callable[[], Backoff] | None = None,
        is_urgent: Callable[[K], bool] = lambda _: False,
    ) -> None:
        self._clock = clock
        # This jitter only spreads the keys of one process; seeded, it is reproducible.
        self._make_backoff = backoff or partial(Backoff, 0.05, 60.0, rng=random.Random(0))
        self._is_urgent = is_urgent
        self._urgent: OrderedDict[K, float] = OrderedDict()  # ready since, in the order of hand-out
        self._urgent_processing: set[K] = set()
        self._ready: OrderedDict[K, float] = OrderedDict()  # since when, in the order of hand-out
        self._shares: Shares[K] | None = None
        # Also ready: skipped keys, by parent and group; the next ones come first.
        self._parked: OrderedDict[Hashable, OrderedDict[Hashable, OrderedDict[K, float]]] = OrderedDict()
        self._parked_in: dict[K, Hashable] = {}
        self._processing: dict[K, float] = {}  # since when
        self._again: set[K] = set()  # added while they are being processed
        self._wake_at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # entries that differ from `_wake_at` are void
        self._serial = itertools.count()
        self._backoffs: dict[K, Backoff] = {}
        self._notifier = Notifier()
        self._adds = self._handed_out = self._retries = 0
        self._latency = Histogram(LATENCY_BOUNDS)
        self._work_total = 0.0
        self._moved = float("-inf")  # when a worker last took a key, or finished one

    @property
    def clock(self) -> Clock:
        """Clock of the wake-ups."""
        return self._clock

    @property
    def waiting(self) -> int:
        """Keys that are ready."""
        return len(self._urgent) + len(self._ready) + len(self._parked_in)

    @property
    def is_busy(self) -> bool:
        """Whether any key is ready, or being processed."""
        return bool(self.waiting or self._processing)

    def share(self, shares: Shares[K]) -> None:
        """Hand out a key only when `shares` has a slot for it, which it keeps until `done`."""
        self._shares = shares
        shares.changed = self._notifier.notify

    def add(self, key: K) -> None:
        """Make this key ready now."""
        self._adds += 1
        now = self._clock.monotonic()
        self._move_due(now)
        self._enqueue(key, now)

    def add_after(self, key: K, seconds: float) -> None:
        """Make this key ready in this many seconds, unless it is due earlier already."""
        if seconds <= 0:
            self.add(key)
            return
        at = self._clock.monotonic() + seconds
        if self._is_ready(key) or key in self._again or self._wake_at.get(key, float("inf")) <= at:
            return
        self._wake_at[key] = at
        self._drop_void_entries()
        heapq.heappush(self._heap, (at, next(self._serial), key))
        if self._heap[0][2] == key:
            self._notifier.notify()

    def add_rate_limited(self, key: K) -> None:
        """Requeue a failed key after its own backoff, which grows until `forget`."""
        self._retries += 1
        if key not in self._backoffs:
            self._backoffs[key] = self._make_backoff()
        self.add_after(key, self._backoffs[key].next())

    def forget(self, key: K) -> None:
        """Reset the backoff of a key that succeeded."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """Next key, in the order in which they became ready. Call `done` with it afterwards."""
        await anyio.lowlevel.checkpoint()
        while True:
            with suppress(anyio.WouldBlock):
                # No await between here and the return, so a cancellation cannot take the key along.
                return self.get_nowait()
            await self._notifier.wait(self._next_change())

    def get_nowait(self) -> K:
        """Next key, if one is ready; else raises anyio.WouldBlock. Call `done` with it afterwards."""
        now = self._clock.monotonic()
        self._move_due(now)
        key, since = self._next(now)
        self._latency.observe(now - since)
        self._handed_out += 1
        self._processing[key] = self._moved = now
        return key

    def done(self, key: K) -> None:
        """Finish a key that `get` returned. Raises KeyError if no worker has it."""
        now = self._moved = self._clock.monotonic()
        self._work_total += now - self._processing.pop(key)
        if key in self._urgent_processing:
            self._urgent_processing.discard(key)
            if self._urgent:
                self._notifier.notify()
        elif self._shares is not None:
            self._shares.end(key, now)
            if self._ready or self._parked:
                self._notifier.notify()
        if key in self._again:
            self._again.discard(key)
            self._move_due(now)
            self._enqueue(key, now)

    def statistics(self) -> QueueStatistics:
        """Keys waiting now, and counts so far."""
        now = self._clock.monotonic()
        self._move_due(now)
        parked = (keys for groups in self._parked.values() for keys in groups.values())
        waiting = (self._urgent, self._ready, *parked)
        oldest = min((next(iter(keys.values())) for keys in waiting if keys), default=now)
        return QueueStatistics(
            ready=self.waiting,
            delayed=len(self._wake_at),
            processing=len(self._processing),
            failing=len(self._backoffs),
            adds=self._adds,
            handed_out=self._handed_out,
            retries=self._retries,
            latency=self._latency.statistics(),
            oldest_wait=now - oldest,
            work_total=self._work_total,
            longest_work=now - next(iter(self._processing.values()), now),
            stalled=now - max(oldest, self._moved),
        )

    def _enqueue(self, key: K, since: float) -> None:
        self._wake_at.pop(key, None)
        if key in self._processing:
            self._again.add(key)
        elif key in self._urgent:
            return
        elif self._is_urgent(key):
            self._urgent[key] = self._taken_out(key, since)
            self._notifier.notify()
        elif not self._is_ready(key):
            self._ready[key] = since
            self._notifier.notify()
        elif key in self._parked_in and self._shares is not None:
            before = self._parked_in[key]
            if self._shares.group_of(key) != before:
                self._ready[key] = self._unparked(before, key)[1]
                self._notifier.notify()

    def _is_ready(self, key: K) -> bool:
        return key in self._ready or key in self._parked_in or key in self._urgent

    def _taken_out(self, key: K, since: float) -> float:
        """Since when a key is ready that joins the urgent ones; `since` if it was not ready before."""
        if key not in self._parked_in:
            return self._ready.pop(key, since)
        return self._unparked(self._parked_in[key], key)[1]

    def _unparked(self, group: Hashable, key: K | None = None) -> tuple[K, float]:
        """Take a key of this group, by default its first, and let the other groups and parents be next."""
        assert self._shares is not None
        parent = self._shares.parent_of(group)
        groups = self._parked[parent]
        keys = groups[group]
        key = next(iter(keys)) if key is None else key
        since = keys.pop(key)
        del self._parked_in[key]
        groups.move_to_end(group)
        self._parked.move_to_end(parent)
        if not keys:
            del groups[group]
        if not groups:
            del self._parked[parent]
        return key, since

    def _next(self, now: float) -> tuple[K, float]:
        """Next key that may be handed out, and since when it is ready. Raises WouldBlock."""
        if self._urgent and len(self._urgent_processing) < URGENT_SLOTS:
            key, since = self._urgent.popitem(last=False)
            self._urgent_processing.add(key)
            return key, since
        shares = self._shares
        if shares is None:
            if not self._ready:
                raise anyio.WouldBlock
            return self._ready.popitem(last=False)
        shares.move_slow(now)
        if self._parked and (group := shares.first(self._parked)) is not None:
            key, since = self._unparked(group)
            shares.begin(key, group, now)
            return key, since
        while self._ready and not shares.is_full:
            key, since = self._ready.popitem(last=False)
            group = shares.group_of(key)
            parked = self._parked.get(parent := shares.parent_of(group))
            if (parked is None or group not in parked) and shares.admits(group):
                shares.begin(key, group, now)
                return key, since
            if parked is None:
                parked = self._parked[parent] = OrderedDict()
            parked.setdefault(group, OrderedDict())[key] = since
            self._parked_in[key] = group
        raise anyio.WouldBlock

    def _next_change(self) -> float | None:
        """Seconds until time alone makes a key ready, or a slot free."""
        instants = [self._heap[0][0]] if self._heap else []
        if self._shares is not None and (self._ready or self._parked):
            change = self._shares.next_change()
            instants += [] if change is None else [change]
        return min(instants) - self._clock.monotonic() if instants else None

    def _move_due(self, now: float) -> None:
        """Move due keys to the ready line, ordered by their due time."""
        while self._heap and (self._heap[0][0] <= now or self._is_void(self._heap[0])):
            entry = heapq.heappop(self._heap)
            if not self._is_void(entry):
                self._enqueue(entry[2], entry[0])

    def _is_void(self, entry: tuple[float, int, K]) -> bool:
        return self._wake_at.get(entry[2]) != entry[0]

    def _drop_void_entries(self) -> None:
        """Rebuild the heap when void entries outnumber the valid ones: a key added often with a long delay leaves one
        each time."""
        if len(self._heap) > 2 * len(self._wake_at) + _VOID_ENTRIES:
            self._heap = [entry for entry in self._heap if not self._is_void(entry)]
            heapq.heapify(self._heap)
