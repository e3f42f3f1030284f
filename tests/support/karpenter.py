"""Foreign Karpenters: their Lease and the pod that holds it, which does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kubesim.server.api import JsonObject

from gracectl.model import names
from gracectl.model.times import format_micro_time
from support.stage import Stage

if TYPE_CHECKING:
    from support.fleet import Fleet

POD = "karpenter-7d9f"
HOLDER = f"{POD}_0c1e"


def leases_of(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def a_karpenter_lease(renewed: float, **spec: Any) -> JsonObject:
    """As client-go writes it; `renewed`: Unix seconds."""
    at = format_micro_time(renewed)
    times = {"acquireTime": at, "renewTime": at, "leaseTransitions": 0}
    return {
        "metadata": {"name": names.KARPENTER_LEASE},
        "spec": {"holderIdentity": HOLDER, "leaseDurationSeconds": 15, **times, **spec},
    }


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


A_POD: JsonObject = {
    "metadata": {"name": POD, "labels": {"app.kubernetes.io/name": "karpenter"}},
    "spec": {"schedulerName": "none", "containers": [{"name": "controller", "image": "karpenter"}]},
}
RUNNING = {"status": {"phase": "Running"}}

NODE_POOLS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodepools.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"plural": "nodepools", "singular": "nodepool", "kind": "NodePool", "listKind": "NodePoolList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def karpenter_is_installed(stage: Stage) -> None:
    """With its definitions, as far as they are looked at."""
    if not stage.server.store.table("customresourcedefinitions.apiextensions.k8s.io").get("", "nodepools.karpenter.sh"):
        await stage.call("POST", DEFINITIONS, NODE_POOLS)
        await stage.clock.sleep(0.1)  # until they are served


@contextmanager
def installed(place: Fleet) -> Iterator[None]:
    """A cluster in a process of its own has its definitions, and its pod, while the block lasts."""
    pods = pods_of("kube-system")
    place.ask("POST", DEFINITIONS, NODE_POOLS)
    place.ask("POST", pods, A_POD)
    place.ask("PATCH", f"{pods}/{POD}/status", RUNNING, "application/merge-patch+json")
    try:
        place.until("NodePools are served", lambda: "nodepools" in str(place.ask("GET", "/apis/karpenter.sh/v1")))
        yield
    finally:
        place.ask("DELETE", f"{pods}/{POD}?gracePeriodSeconds=0")
        place.ask("DELETE", f"{DEFINITIONS}/nodepools.karpenter.sh")


async def karpenter_leads(
    stage: Stage, namespace: str = "kube-system", *, is_installed: bool = True, has_pod: bool = True, **spec: Any
) -> None:
    """It has just made its Lease, and does not renew it."""
    if is_installed:
        await karpenter_is_installed(stage)
    if namespace not in {each["metadata"]["name"] for each in stage.server.store.table("namespaces")}:
        await stage.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    if has_pod:
        await karpenter_runs(stage, namespace)
    await stage.call("POST", leases_of(namespace), a_karpenter_lease(stage.clock.now(), **spec))


async def karpenter_runs(stage: Stage, namespace: str) -> None:
    """Its pod, on no node of the stage."""
    if not stage.server.store.table("pods").get(namespace, POD):
        await stage.call("POST", pods_of(namespace), A_POD)
        await stage.call("PATCH", f"{pods_of(namespace)}/{POD}/status", RUNNING, "application/merge-patch+json")


async def karpenter_renews(stage: Stage, seconds: float, namespace: str = "kube-system") -> None:
    """It leads for so long from now on."""
    path = f"{leases_of(namespace)}/{names.KARPENTER_LEASE}"
    for _ in range(round(seconds)):
        change = {"spec": {"renewTime": format_micro_time(stage.clock.now())}}
        await stage.call("PATCH", path, change, "application/merge-patch+json")
        await stage.clock.sleep(1)
