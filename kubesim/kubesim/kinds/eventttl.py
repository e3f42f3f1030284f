"""Event expiry (--event-ttl): an Event is removed an hour after its last write.

Watchers see it DELETED. There is no task: due Events are removed with the next request.
"""

from __future__ import annotations

from collections import OrderedDict

from kubesim.clock import Clock
from kubesim.server.store import Store
from kubesim.server.timers import Timers

EVENT_TTL = 3600.0
"""Seconds; kube-apiserver's default."""

Key = tuple[str, str]


class Expiry:
    """Removes events `ttl` seconds after their last write. Set `ttl` before the first event."""

    def __init__(self, store: Store, clock: Clock, timers: Timers, ttl: float = EVENT_TTL) -> None:
        self.ttl = ttl
        self._store = store
        self._table = store.table("events")
        self._clock = clock
        self._timers = timers
        self._written: OrderedDict[Key, float] = OrderedDict()

    def note(self, namespace: str, name: str) -> None:
        """The event is written now (or was about to be: one that was refused lives no shorter for it)."""
        if not self._written:
            self._timers.later(self.ttl, self._sweep)
        self._written[namespace, name] = self._clock.monotonic()
        self._written.move_to_end((namespace, name))

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        while self._written:
            key, written = next(iter(self._written.items()))
            left = written + self.ttl - now
            if left > 0:
                self._timers.later(left, self._sweep)
                return
            del self._written[key]
            event = self._table.get(*key)
            if event is not None:
                self._store.remove(self._table, event)
