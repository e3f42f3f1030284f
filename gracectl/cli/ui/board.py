"""The board: all that the page shows, as one JSON object, and its changes.

Invariants: `state` is never changed in place; the newest state is the first one with all changes of the ring applied;
a change is made once for all clients, and none for what the clock alone changes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gracectl.cli.budgets.report import BudgetUsages, budgets_report
from gracectl.cli.report import instant, to_json
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.report import status_report
from gracectl.cli.ui.delta import merged
from gracectl.cli.ui.stream import ChangeRing, message
from gracectl.cli.ui.timeline import Timelines
from gracectl.config import Settings
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.disruption.pace import CircuitBreaker, terminations_in_progress
from gracectl.inspect.budget_status import node_budget_usages, pod_budget_usages
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.policy.pace import maximum_of

VERSION: Final = 1
"""Of the JSON; a new one if a field is removed or changes its meaning."""

Json = dict[str, Any]


class Board:
    """The board of a cluster, as frame after frame shows it."""

    def __init__(self, settings: Settings, source: str, *, grafana: str | None = None) -> None:
        self._settings = settings
        self._source = source
        self._boot = secrets.token_hex(4)
        self._timelines = Timelines(settings.termination.policy)
        self.ring = ChangeRing()
        self.state: Mapping[str, Any] = {
            "version": VERSION,
            "status": None,
            "podBudgets": [],
            "nodeBudgets": None,
            "timelines": {},
            "history": [],
            "events": [],
            "links": {"grafana": grafana},
            "pace": None,
            "breaker": None,
            "connection": {"state": "starting", "since": None, "error": None},
        }

    @property
    def id(self) -> str:
        """Of the newest state."""
        return f"{self._boot}-{self.ring.latest}"

    def place_of(self, id_: str) -> int | None:
        """The place among the changes that an id names; None: none of this process."""
        boot, _, number = id_.partition("-")
        if boot != self._boot or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        return int(number)

    def encode(self, state: Mapping[str, Any], id_: str) -> bytes:
        """A snapshot."""
        return to_json({"version": VERSION, "id": id_} | dict(state), indent=0).encode()

    def update(
        self, frame: StatusFrame, cluster: ClusterCache, node_budgets: tuple[NodeDisruptionBudget, ...] | None
    ) -> None:
        """Take note of a frame, and of the cluster that it was made from."""
        new = dict(self.state)
        new["status"] = msgspec.to_builtins(status_report(frame, self._source))
        new["connection"] = _connection(frame)
        if frame.is_complete:
            new |= self._of_cluster(frame, cluster, node_budgets)
        self.state, delta = merged(self.state, new)
        if delta:
            id_ = f"{self._boot}-{self.ring.latest + 1}"
            self.ring.append(message("change", id_, to_json(delta, indent=0).encode()))

    def _of_cluster(
        self, frame: StatusFrame, cluster: ClusterCache, node_budgets: tuple[NodeDisruptionBudget, ...] | None
    ) -> Json:
        policy, at = self._settings.termination, frame.at
        usages = BudgetUsages(
            at=at,
            nodes=None if node_budgets is None else node_budget_usages(cluster, node_budgets, policy, at),
            pods=pod_budget_usages(cluster, policy, at),
        )
        budgets = msgspec.to_builtins(budgets_report(usages))
        for each in budgets["podBudgets"]:
            each["queue"] = []
        existing = {node.uid for node in cluster.nodes.values()}
        links = {node.trace_id: frame.tracing.link(node.trace_id) for node in frame.nodes if node.trace_id is not None}
        self._timelines.update(frame.nodes, existing, links, at)
        return {
            "podBudgets": budgets["podBudgets"],
            "nodeBudgets": budgets["nodeBudgets"],
            "timelines": self._timelines.json,
            "history": list(self._timelines.history),
            "pace": _pace(cluster, self._settings),
            "breaker": _breaker(cluster, self._settings, at),
        }


def _connection(frame: StatusFrame) -> Json:
    """`starting` until the cluster has been read, `lost` while a watch of it fails, else `live`."""
    loss = frame.connection_loss
    if loss is None:
        state = "live" if frame.is_complete else "starting"
        return {"state": state, "since": None, "error": None}
    return {"state": "lost", "since": instant(loss.since), "error": loss.error}


def _pace(cluster: ClusterCache, settings: Settings) -> Json:
    """Slots of voluntary terminations: how many are taken, as the objects show it, and the maximum."""
    selector = settings.termination.node_selector
    managed = sum(selector.matches(node.labels) for node in cluster.nodes.values())
    return {
        "inProgress": terminations_in_progress(cluster, selector),
        "maximum": maximum_of(settings.termination.policy.voluntary, managed),
        "managedNodes": managed,
    }


def _breaker(cluster: ClusterCache, settings: Settings, at: float) -> Json:
    """The circuit breaker of terminations for health, counted as the controller counts it."""
    breaker = CircuitBreaker(settings.termination.node_selector, settings.termination.policy.health)
    for node in cluster.nodes.values():
        breaker.note(None, node)
    counts = breaker.counts(at)
    return {
        "open": counts.excess > 0,
        "unhealthy": counts.unhealthy,
        "recovering": counts.recovering,
        "allowed": counts.allowed,
        "managedNodes": counts.managed,
    }
