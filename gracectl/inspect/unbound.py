"""Pods without a node, where the cache has only the pods of some nodes: they show that replacements find no node.

Invariants: only namespaces of budgets that lack pods are read, and one page of each. What cannot be read is unknown,
and fails nothing.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import Final

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.informers import new_informers
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.requests import Selection
from gracectl.model.pod import Pod
from gracectl.policy.budgets import missing_pods

UNBOUND: Final = Selection(fields="spec.nodeName=,status.phase=Pending")

MANY_NAMESPACES: Final = 10
"""Number of namespaces above which one list reads all namespaces, if the cluster is read anyway."""


async def read_unbound(client: KubeClient, cluster: ClusterCache) -> None:
    """Read the pods without a node that budgets of cached pods may lack, and forget the pods that were read before.

    Raises no ApiError.
    """
    lacking = {budget.namespace for budget in cluster.budgets.values() if missing_pods(budget)}
    namespaces = sorted(lacking.intersection(pod.namespace for pod in cluster.pods.values()) if lacking else ())
    found: list[Pod] = []
    resource = new_informers().pods
    for namespace in namespaces if len(namespaces) <= MANY_NAMESPACES else ("",):
        with suppress(ApiError):
            async with aclosing(client.list(resource, namespace=namespace, selection=UNBOUND)) as pages:
                found += (await anext(pages)).items
    cluster.unbound[:] = found
