"""Circuit breaker of health terminations: open while more managed nodes are unhealthy than health.maximumUnhealthy.

Invariant: the counts are those of the cache; a change of one node costs the same however many nodes there are.
"""

from __future__ import annotations

import math

from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector
from gracectl.policy.health import UnhealthyNodes, unhealthy_until
from gracectl.policy.settings import HealthSettings


class CircuitBreaker:
    """Counter of unhealthy nodes; `note` must be called with every change of a node. Instants are Unix seconds."""

    def __init__(self, selector: LabelSelector, settings: HealthSettings) -> None:
        self._selector = selector
        self._settings = settings
        self._managed: set[str] = set()
        self._unhealthy: set[str] = set()
        self._recovering: dict[str, float] = {}  # until when each counts; those that are over go with the next look

    def note(self, old: Node | None, new: Node | None) -> None:
        """Count a node that has changed, come (no `old`) or gone (no `new`)."""
        node = new or old
        if node is None:
            return
        self._managed.discard(node.name)
        self._unhealthy.discard(node.name)
        self._recovering.pop(node.name, None)
        if new is None or not self._selector.matches(new.labels):
            return
        self._managed.add(new.name)
        until = unhealthy_until(new, self._settings)
        if until == math.inf:
            self._unhealthy.add(new.name)
        elif until > -math.inf:
            self._recovering[new.name] = until

    def counts(self, now: float) -> UnhealthyNodes:
        """The counts at `now`."""
        self._recovering = {name: until for name, until in self._recovering.items() if until > now}
        return UnhealthyNodes(
            unhealthy=len(self._unhealthy),
            recovering=len(self._recovering),
            managed=len(self._managed),
            maximum=self._settings.maximum_unhealthy,
        )

    def closes_at(self, now: float) -> float | None:
        """When it closes by the clock alone; None if it is closed, or only an event can close it."""
        excess = self.counts(now).excess
        ends = sorted(self._recovering.values())
        return ends[excess - 1] if 0 < excess <= len(ends) else None
