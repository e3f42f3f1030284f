"""When a world has settled: its controllers have seen every workload, and every pod is Ready or done."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from kubesim.controllers.informers import Listener, Views
from kubesim.controllers.objects import is_finished, is_ready, is_terminating
from kubesim.controllers.paths import DEPLOYMENTS, PODS, REPLICA_SETS, STATEFUL_SETS
from kubesim.server.api import JsonObject

INDEX = "unsettled"
WORKLOADS = {"deployments": DEPLOYMENTS, "replicasets": REPLICA_SETS, "statefulsets": STATEFUL_SETS}


class Settling:
    """Counts what has not settled yet, as it comes and goes."""

    def __init__(self, views: Views, parts: AbstractSet[str]) -> None:
        """`parts`: those that run; a workload that nobody looks after cannot settle, and is left alone."""
        self._views = {path: views.of(path) for part, path in WORKLOADS.items() if part in parts}
        self._views[PODS] = views.of(PODS)
        for path, view in self._views.items():
            view.index(INDEX, _unsettled_pod if path == PODS else _unsettled_workload)

    def is_over(self) -> bool:
        """Are there pods, and has everything settled?"""
        return len(self._views[PODS]) > 0 and not any(view.count(INDEX, "") for view in self._views.values())

    def learn(self, path: str, created: JsonObject) -> None:
        """Something was created just now, before its watch has told."""
        if path in self._views:
            self._views[path].remember(created)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` whenever it may have become over."""
        for view in self._views.values():
            view.subscribe(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Call it no more."""
        for view in self._views.values():
            view.unsubscribe(listener)


def is_pod_settled(pod: JsonObject) -> bool:
    """Is it Ready, going, or done?"""
    return is_ready(pod) or is_terminating(pod) or is_finished(pod)


def is_workload_settled(workload: JsonObject) -> bool:
    """Has its controller seen it as it is, and are there as many pods as it wants?"""
    status = workload.get("status") or {}
    return is_terminating(workload) or (
        status.get("observedGeneration") == workload["metadata"].get("generation", 1)
        and status.get("replicas", 0) == workload["spec"].get("replicas", 1)
    )


def _unsettled_pod(pod: JsonObject) -> tuple[str, ...]:
    return () if is_pod_settled(pod) else ("",)


def _unsettled_workload(workload: JsonObject) -> tuple[str, ...]:
    return () if is_workload_settled(workload) else ("",)
