"""Forecasts for campaigns: when the drain of one node ends."""

from __future__ import annotations

from collections.abc import Callable

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.forecast import forecast_alone
from gracectl.model.node import Node
from gracectl.policy.answers import Sightings
from gracectl.policy.forecast import Assumptions
from gracectl.policy.nodedrain import Forecasted
from gracectl.runtime.clock import Clock


class NodeForecaster:
    """Forecasts single nodes, and remembers what their last forecasts have shown."""

    def __init__(self, cluster: ClusterCache, settings: Callable[[], TerminationSettings], clock: Clock) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._seen: dict[str, Sightings] = {}  # by name
        cluster.nodes.subscribe(self._node_changed)

    async def __call__(self, name: str, seconds: float | None) -> Forecasted | None:
        """Forecast the drain of the node of that name, with a deadline after these seconds; None: it is gone."""
        node, now = self._cluster.node(name), self._clock.now()
        if node is None:
            return None
        assumptions = Assumptions(seen=self._seen.get(name, {}), deadline_seconds=seconds)
        answer, seen = forecast_alone(self._cluster, self._settings(), node, now, assumptions)
        if seen:
            self._seen[name] = seen
        else:
            self._seen.pop(name, None)
        return Forecasted(answer, now)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None and old is not None:
            self._seen.pop(old.name, None)
