"""Nodes that fall silent: when they are Unknown, what taints say, which pods leave, and what a heartbeat mends."""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.objects import condition_of, is_ready
from kubesim.controllers.paths import BUDGETS, EVENTS, LEASES, NODES, path_of
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, budget, get, patch, quiet, running, workload

pytestmark = pytest.mark.anyio

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


async def node_now(cluster: EmbeddedCluster, name: str = "a") -> JsonObject:
    await quiet()
    node = await get(cluster, path_of(NODES, name=name))
    assert node is not None
    return node


async def taints(cluster: EmbeddedCluster, name: str = "a") -> list[tuple[str, str]]:
    node = await node_now(cluster, name)
    return [(taint["key"], taint["effect"]) for taint in node["spec"].get("taints", ())]


async def readiness(cluster: EmbeddedCluster, name: str = "a") -> tuple[str, str]:
    ready = condition_of(await node_now(cluster, name), "Ready")
    assert ready is not None
    return ready["status"], ready["reason"]


async def reasons(cluster: EmbeddedCluster) -> list[tuple[str, str]]:
    _, answer = await cluster.api.call("GET", EVENTS)
    return [(event["reason"], event["involvedObject"]["name"]) for event in answer["items"]]


async def test_a_silent_node_is_unknown_after_forty_seconds_and_its_pods_are_not_ready() -> None:
    async with running("a", "b") as cluster:
        await cluster.create(workload("Deployment", "web", 1, spec={"nodeSelector": {"kubernetes.io/hostname": "a"}}))
        await cluster.create(budget("web", minAvailable=1))
        await cluster.pace.clock.sleep(15)
        cluster.kubelet.partition("a")  # Its last word was at 10.
        await cluster.pace.clock.sleep(34.9)
        assert await readiness(cluster) == ("True", "KubeletReady")
        await cluster.pace.clock.sleep(0.1)
        assert await readiness(cluster) == ("Unknown", "NodeStatusUnknown")
        assert await taints(cluster) == [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]
        (one,) = cluster.pods()
        assert (is_ready(one), one["status"]["phase"]) == (False, "Running")
        counted = await get(cluster, path_of(BUDGETS, NAMESPACE, "web"))
        assert counted is not None
        assert counted["status"]["currentHealthy"] == 0
        assert await readiness(cluster, "b") == ("True", "KubeletReady")
        assert {("NodeNotReady", "a"), ("NodeNotReady", one["metadata"]["name"])} <= set(await reasons(cluster))

        cluster.kubelet.heal("a")
        assert await readiness(cluster) == ("True", "KubeletReady")
        assert await taints(cluster) == []
        assert [is_ready(pod) for pod in cluster.pods()] == [True]


async def test_a_lease_that_promises_longer_is_waited_for() -> None:
    async with running("a") as cluster:
        await cluster.pace.clock.sleep(5)
        path = path_of(LEASES, "kube-node-lease", "a")
        await patch(cluster, path, {"spec": {"leaseDurationSeconds": 100}})
        cluster.kubelet.partition("a")
        await cluster.pace.clock.sleep(94.9)
        assert (await readiness(cluster))[0] == "True"
        await cluster.pace.clock.sleep(0.1)
        assert (await readiness(cluster))[0] == "Unknown"
