"""Foreign Karpenters: their Lease, and nothing else."""

from __future__ import annotations

from typing import Any

from kubesim.server.api import JsonObject

from gracectl.model import names
from gracectl.model.times import format_micro_time
from support.stage import Stage

HOLDER = "karpenter-7d9f_0c1e"


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


async def karpenter_leads(stage: Stage, namespace: str = "kube-system", **spec: Any) -> None:
    """It has just made its Lease, and does not renew it."""
    if namespace not in {each["metadata"]["name"] for each in stage.server.store.table("namespaces")}:
        await stage.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    await stage.call("POST", leases_of(namespace), a_karpenter_lease(stage.clock.now(), **spec))


async def karpenter_renews(stage: Stage, seconds: float, namespace: str = "kube-system") -> None:
    """It leads for so long from now on."""
    path = f"{leases_of(namespace)}/{names.KARPENTER_LEASE}"
    for _ in range(round(seconds)):
        change = {"spec": {"renewTime": format_micro_time(stage.clock.now())}}
        await stage.call("PATCH", path, change, "application/merge-patch+json")
        await stage.clock.sleep(1)
