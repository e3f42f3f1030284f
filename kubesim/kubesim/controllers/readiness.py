"""Readiness of a cluster: its controllers have seen every workload, and every pod is Ready or done."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from kubesim.controllers.informers import Informers, Listener
from kubesim.controllers.objects import is_finished, is_ready, is_terminating
from kubesim.controllers.paths import DEPLOYMENTS, PODS, REPLICA_SETS, STATEFUL_SETS
from kubesim.server.api import JsonObject

INDEX = "unready"
WORKLOADS = {"deployments": DEPLOYMENTS, "replicasets": REPLICA_SETS, "statefulsets": STATEFUL_SETS}


class Readiness:
    """Counts the pods and workloads that are not ready, as they come and go."""

    def __init__(self, informers: Informers, parts: AbstractSet[str]) -> None:
        """`parts`: those that run; a workload without its controller cannot become ready, and is left out."""
        self._informers = {path: informers.of(path) for part, path in WORKLOADS.items() if part in parts}
        self._informers[PODS] = informers.of(PODS)
        for path, informer in self._informers.items():
            informer.index(INDEX, _unready_pod if path == PODS else _unready_workload)

    def is_reached(self) -> bool:
        """Whether there are pods, and everything is ready."""
        return len(self._informers[PODS]) > 0 and not any(
            informer.count(INDEX, "") for informer in self._informers.values()
        )

    def learn(self, path: str, created: JsonObject) -> None:
        """Something was created just now; the watch does not show it yet."""
        if path in self._informers:
            self._informers[path].remember(created)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` whenever the cluster may have become ready."""
        for informer in self._informers.values():
            informer.subscribe(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Call it no more."""
        for informer in self._informers.values():
            informer.unsubscribe(listener)


def is_pod_done(pod: JsonObject) -> bool:
    """Is it Ready, going, or done?"""
    return is_ready(pod) or is_terminating(pod) or is_finished(pod)


def is_workload_ready(workload: JsonObject) -> bool:
    """Has its controller seen it as it is, and are there as many pods as it wants?"""
    status = workload.get("status") or {}
    return is_terminating(workload) or (
        status.get("observedGeneration") == workload["metadata"].get("generation", 1)
        and status.get("replicas", 0) == workload["spec"].get("replicas", 1)
    )


def _unready_pod(pod: JsonObject) -> tuple[str, ...]:
    return () if is_pod_done(pod) else ("",)


def _unready_workload(workload: JsonObject) -> tuple[str, ...]:
    return () if is_workload_ready(workload) else ("",)
