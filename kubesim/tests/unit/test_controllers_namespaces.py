"""Namespaces: what a new one is given, and how a deleted one is emptied and goes."""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.objects import condition_of
from kubesim.controllers.paths import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    NAMESPACES,
    PODS,
    path_of,
)
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, budget, get, patch, pod, quiet, running, sim, workload

pytestmark = pytest.mark.anyio
PATH = path_of(NAMESPACES, name=NAMESPACE)


async def namespace_now(cluster: EmbeddedCluster) -> JsonObject | None:
    await quiet()
    return await get(cluster, PATH)


async def test_a_deleted_namespace_goes_when_its_last_pod_has() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2, annotations=sim(stop_seconds=5)))
        await cluster.create(budget("web", minAvailable=1))
        await cluster.pace.clock.sleep(1)
        await cluster.api.call("DELETE", PATH)
        await cluster.pace.clock.sleep(4.9)
        going = await namespace_now(cluster)
        assert going is not None
        assert going["status"]["phase"] == "Terminating"
        remaining = condition_of(going, "NamespaceContentRemaining")
        assert remaining is not None
        assert (remaining["status"], remaining["message"]) == (
            "True",
            "Some resources are remaining: pods. has 2 resource instances",
        )
        await cluster.pace.clock.sleep(0.1)
        assert await namespace_now(cluster) is None
        for path in (PODS, DEPLOYMENTS, EVENTS, CONFIG_MAPS):
            _, answer = await cluster.api.call("GET", path_of(path, NAMESPACE))
            assert answer["items"] == []


async def test_a_finalizer_holds_a_namespace_and_it_says_so() -> None:
    async with running() as cluster:
        held: JsonObject = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "held", "namespace": NAMESPACE, "finalizers": ["example.com/hold"]},
        }
        await cluster.create(held)
        await quiet()
        await cluster.api.call("DELETE", PATH)
        await cluster.pace.clock.sleep(20)
        going = await namespace_now(cluster)
        assert going is not None
        holding = condition_of(going, "NamespaceFinalizersRemaining")
        assert holding is not None
        assert holding["message"] == (
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        )
        await patch(cluster, path_of(CONFIG_MAPS, NAMESPACE, "held"), {"metadata": {"finalizers": None}})
        await cluster.pace.clock.sleep(8)
        assert await namespace_now(cluster) is None
        await cluster.create(pod("one"))  # The name is free again.
