"""The work queue of a controller: each key is reconciled by one worker at a time.

Invariants: a key is queued once; a key added while a worker has it is queued again; the earliest of several wake-ups
wins; adding a key cancels its wake-up.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from kubesim.clock import Clock
from kubesim.sleepers import Sleepers

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

VOID_ENTRIES = 64
"""Cancelled wake-ups in the heap, in addition to the valid ones, before it is rebuilt."""
DOUBLINGS = 16
"""A backoff has reached its maximum long before."""


class WorkQueue(Generic[K]):
    """Delays a failed key by `initial` seconds, doubling up to `maximum`, minus up to half by `chance`."""

    def __init__(self, clock: Clock, initial: float, maximum: float, chance: random.Random) -> None:
        self._clock = clock
        self._initial = initial
        self._maximum = maximum
        self._chance = chance
        # In the order of handing out. A plain dict loses its first key in a time that grows with their number.
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._busy: set[K] = set()
        self._again: set[K] = set()  # added while they are busy
        self._wake_at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # entries that differ from `_wake_at` are void
        self._order = itertools.count()
        self._failures: dict[K, int] = {}
        self._sleepers = Sleepers()

    def add(self, key: K) -> None:
        """Queue a key for the next free worker."""
        self._wake_at.pop(key, None)
        if key in self._busy:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._sleepers.wake()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key in so many seconds, unless it is queued for an earlier instant."""
        if seconds <= 0:
            self.add(key)
            return
        at = self._clock.monotonic() + seconds
        if key in self._ready or key in self._again or self._wake_at.get(key, math.inf) <= at:
            return
        self._wake_at[key] = at
        if len(self._heap) > 2 * len(self._wake_at) + VOID_ENTRIES:
            self._heap = [entry for entry in self._heap if self._wake_at.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (at, next(self._order), key))
        if self._heap[0][2] == key:
            self._sleepers.wake()

    async def run(
        self, reconcile: Callable[[K], Awaitable[None]], workers: int, expected: tuple[type[Exception], ...]
    ) -> None:
        """Reconcile keys, at most `workers` at a time, until cancelled. A reconcile that raises is logged (without a
        traceback where the failure is one of the `expected` kinds) and tried again with backoff."""

        async def work(key: K) -> None:
            try:
                await reconcile(key)
            except expected as error:
                logger.warning("%s: %s; it will be tried again", key, error)
                self._retry(key)
            except Exception:  # one bad object must not stop the work on all others
                logger.exception("%s: unexpected failure; it will be tried again", key)
                self._retry(key)
            else:
                self._failures.pop(key, None)
            self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self._ready[key] = None
            self._sleepers.wake()

        async with anyio.create_task_group() as group:
            while True:
                # One reconcile begins in a turn of the event loop: many that compute do not hold up others.
                await anyio.lowlevel.checkpoint()
                self._wake()
                if self._ready and len(self._busy) < workers:
                    key, _ = self._ready.popitem(last=False)
                    self._busy.add(key)
                    group.start_soon(work, key)
                else:
                    await self._next_change()

    def _retry(self, key: K) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(self._maximum, self._initial * 2.0 ** min(failures - 1, DOUBLINGS))
        self.add_after(key, wait * (1 - 0.5 * self._chance.random()))

    def _wake(self) -> None:
        """Queue the keys that are due."""
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._wake_at.get(key) == at:
                self.add(key)

    async def _next_change(self) -> None:
        await self._sleepers.sleep(self._heap[0][0] - self._clock.monotonic() if self._heap else math.inf)
