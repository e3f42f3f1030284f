"""Timers of the server: a definition becomes served, an event expires.

Due work runs before each request, and when a sleeping watch wakes for it. That needs no task and happens at exact
instants; clients see no difference.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

from kubesim.clock import Clock


class Timers:
    """Work by the instant at which it is due."""

    def __init__(self, clock: Clock, sooner: Callable[[], None]) -> None:
        """`sooner` is called when something is due before everything else: sleepers must look at the time again."""
        self.clock = clock
        self._sooner = sooner
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._working: float | None = None
        """The instant for which the work at hand was due."""

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Do `work` (which must not await) so many seconds from now; from work, from when that was due."""
        start = self.clock.monotonic() if self._working is None else self._working
        instant, first = start + seconds, self.next
        heapq.heappush(self._entries, (instant, next(self._order), work))
        if instant < first:
            self._sooner()

    @property
    def next(self) -> float:
        """The instant (of the clock's monotonic time) at which something is due; infinite if nothing is."""
        return self._entries[0][0] if self._entries else math.inf

    def catch_up(self) -> None:
        """Do what is due."""
        while self._entries and self._entries[0][0] <= self.clock.monotonic():
            self._working, _, work = heapq.heappop(self._entries)
            try:
                work()
            finally:
                self._working = None
