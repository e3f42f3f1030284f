"""Nodes that fall silent: when they are Unknown, what taints say, which pods leave, and what a heartbeat mends."""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.client import STRATEGIC
from kubesim.controllers.objects import condition_of, is_ready, node_of
from kubesim.controllers.paths import BUDGETS, EVENTS, LEASES, NODES, PODS, path_of
from kubesim.controllers.taints import tolerated_seconds
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, budget, get, patch, pod, quiet, running, sim, workload

pytestmark = pytest.mark.anyio

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


async def node_now(cluster: EmbeddedCluster, name: str = "a") -> JsonObject:
    await quiet()
    found = await get(cluster, path_of(NODES, name=name))
    assert found is not None
    return found


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


async def pods_left(cluster: EmbeddedCluster) -> dict[str, bool]:
    """Name: is its deletion under way?"""
    await quiet()
    _, answer = await cluster.api.call("GET", path_of(PODS, NAMESPACE))
    return {item["metadata"]["name"]: "deletionTimestamp" in item["metadata"] for item in answer["items"]}


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
        assert [is_ready(found) for found in cluster.pods()] == [True]


async def test_pods_leave_an_unreachable_node_when_they_no_longer_tolerate_it() -> None:
    tolerations = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}]
    forever = [{"operator": "Exists"}]
    async with running("a", "b") as cluster:
        await cluster.create(workload("Deployment", "web", 1, annotations=sim(stop_seconds=5)))
        await cluster.create(pod("hasty", "a", tolerations=tolerations))
        await cluster.create(pod("patient", "a", tolerations=forever))
        await quiet()
        (web,) = (found for found in cluster.pods() if found["metadata"]["name"].startswith("web"))
        silent = node_of(web)
        if silent != "a":
            await cluster.create(pod("unused", "a"))
        cluster.kubelet.partition("a")
        cluster.kubelet.partition("b")
        await cluster.pace.clock.sleep(40 + 19.9)
        assert (await pods_left(cluster))["hasty"] is False
        await cluster.pace.clock.sleep(0.1)
        assert (await pods_left(cluster))["hasty"] is True
        await cluster.pace.clock.sleep(300 - 20 - 0.1)
        assert not any(found for found in (await pods_left(cluster)).items() if found[0].startswith("web") and found[1])
        await cluster.pace.clock.sleep(0.1)
        going = await pods_left(cluster)
        assert going[web["metadata"]["name"]] is True
        assert going["patient"] is False
        assert going["hasty"] is True  # No kubelet has confirmed it.
        assert ("TaintManagerEviction", "hasty") in await reasons(cluster)
        found = await get(cluster, path_of(PODS, NAMESPACE, "hasty"))
        target = condition_of(found or {}, "DisruptionTarget")
        assert target is not None
        assert target["reason"] == "DeletionByTaintManager"
        cluster.kubelet.heal("a")
        assert "hasty" not in await pods_left(cluster)


async def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async with running("a") as cluster:
        await cluster.create(pod("one", "a"))
        await quiet()
        for _ in range(3):  # Each time the five minutes begin anew.
            cluster.kubelet.partition("a")
            await cluster.pace.clock.sleep(320)
            cluster.kubelet.heal("a")
            await cluster.pace.clock.sleep(10)
        assert await pods_left(cluster) == {"one": False}
        _, answer = await cluster.api.call("GET", EVENTS)
        assert {e["message"] for e in answer["items"] if e["reason"] == "TaintManagerEviction"} == {
            "Cancelling deletion of Pod test/one"
        }


async def test_a_new_node_takes_no_pods_until_it_is_ready() -> None:
    async with running() as cluster:
        cluster.kubelet.partition("a")
        await cluster.add_node(NodeSpec(name="a"))
        await cluster.create(pod("one"))
        assert await taints(cluster) == [(NOT_READY, "NoSchedule")]
        await cluster.pace.clock.sleep(59.9)
        assert condition_of(await node_now(cluster), "Ready") is None
        await cluster.pace.clock.sleep(0.1)
        assert await readiness(cluster) == ("Unknown", "NodeStatusNeverUpdated")
        assert await taints(cluster) == [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]
        assert [node_of(found) for found in cluster.pods()] == [""]
        cluster.kubelet.heal("a")
        assert await taints(cluster) == []
        assert [node_of(found) for found in cluster.pods()] == ["a"]


async def test_a_node_that_says_it_is_not_ready_drives_pods_away_like_a_silent_one() -> None:
    async with running("a") as cluster:
        cluster.kubelet.partition("a")  # Another client reports for it.
        said = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "lastHeartbeatTime": None}
        pressure = {"type": "MemoryPressure", "status": "True", "lastHeartbeatTime": None}
        body = {"status": {"conditions": [said, pressure]}}
        await cluster.api.call("PATCH", path_of(NODES, name="a", subresource="status"), body, content_type=STRATEGIC)
        assert await taints(cluster) == [
            ("node.kubernetes.io/memory-pressure", "NoSchedule"),
            (NOT_READY, "NoExecute"),
            (NOT_READY, "NoSchedule"),
        ]


async def test_a_cordon_is_a_taint_and_foreign_taints_stay() -> None:
    async with running("a") as cluster:
        foreign = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
        await patch(cluster, path_of(NODES, name="a"), {"spec": {"unschedulable": True, "taints": [foreign]}})
        assert await taints(cluster) == [
            ("dedicated", "NoSchedule"),
            ("node.kubernetes.io/unschedulable", "NoSchedule"),
        ]
        await patch(cluster, path_of(NODES, name="a"), {"spec": {"unschedulable": None}})
        assert await taints(cluster) == [("dedicated", "NoSchedule")]


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


async def test_the_lease_of_a_removed_node_goes_with_it() -> None:
    async with running("a") as cluster:
        path = path_of(LEASES, "kube-node-lease", "a")
        assert await get(cluster, path) is not None
        await cluster.api.call("DELETE", path_of(NODES, name="a"))
        await quiet()
        assert await get(cluster, path) is None


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([], 0),
        ([{"operator": "Exists"}], float("inf")),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 7}], 0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 7}, {"key": "l", "operator": "Exists"}], 7),
        ([{"operator": "Exists", "tolerationSeconds": 7}, {"operator": "Exists", "tolerationSeconds": 3}], 7),
        ([{"operator": "Exists", "tolerationSeconds": -5}], 0),
    ],
)
def test_how_long_two_taints_are_tolerated(tolerations: list[JsonObject], seconds: float) -> None:
    both = [{"key": "k", "effect": "NoExecute"}, {"key": "l", "effect": "NoExecute"}]
    assert tolerated_seconds(both, tolerations) == seconds
