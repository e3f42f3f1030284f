"""The scheduler: resources, affinity, spread, who comes first, and what it says when nothing fits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.nodefit import fits, preference
from kubesim.controllers.objects import condition_of, node_of
from kubesim.controllers.paths import EVENTS, NODES, PODS, path_of
from kubesim.controllers.quantities import quantity, requests_of
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, get, patch, pod, quiet, running, workload

pytestmark = pytest.mark.anyio

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
DEDICATED = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}


def container(**requests: str) -> list[JsonObject]:
    return [{"name": "c", "image": "pause", "resources": {"requests": requests}}]


def term(app: str, key: str = HOST) -> JsonObject:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}


def away_from(app: str) -> JsonObject:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term(app)]}}}


async def where(cluster: EmbeddedCluster) -> dict[str, str]:
    await quiet()
    return {pod_object["metadata"]["name"]: node_of(pod_object) for pod_object in cluster.pods()}


async def told(cluster: EmbeddedCluster, name: str) -> str:
    await quiet()
    pod_object = await get(cluster, path_of(PODS, NAMESPACE, name))
    condition = condition_of(pod_object or {}, "PodScheduled")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    message: str = condition["message"]
    _, answer = await cluster.api.call("GET", EVENTS)
    assert ("FailedScheduling", message) in [(e["reason"], e["message"]) for e in answer["items"]]
    return message


async def zones(cluster: EmbeddedCluster, **nodes: str) -> None:
    for name, zone in nodes.items():
        await cluster.add_node(NodeSpec(name=name, zone=zone))
    await quiet()


async def test_requests_fill_a_node_and_a_pod_that_ends_leaves_room() -> None:
    async with running() as cluster:
        await cluster.add_node(NodeSpec(name="a", capacity={"cpu": "1", "memory": "1Gi"}))
        await quiet()
        for name, cpu in (("one", "600m"), ("two", "0.4"), ("three", "100m")):
            await cluster.create(pod(name, containers=container(cpu=cpu, memory="100Mi")))
        assert await where(cluster) == {"one": "a", "two": "a", "three": ""}
        assert await told(cluster, "three") == "0/1 nodes are available: 1 Insufficient cpu."
        await cluster.api.call("DELETE", path_of(PODS, NAMESPACE, "two"))
        assert await where(cluster) == {"one": "a", "three": "a"}
        _, answer = await cluster.api.call("GET", EVENTS)
        scheduled = [e["message"] for e in answer["items"] if e["reason"] == "Scheduled"]
        assert "Successfully assigned test/three to a" in scheduled


async def test_why_nothing_fits_is_counted() -> None:
    async with running() as cluster:
        await cluster.add_node(NodeSpec(name="a", capacity={"cpu": "1", "memory": "1Gi"}))
        await cluster.add_node(NodeSpec(name="b", taints=(DEDICATED,)))
        await cluster.add_node(NodeSpec(name="c"))
        await cluster.add_node(NodeSpec(name="d", pods=0))
        await patch(cluster, path_of(NODES, name="c"), {"spec": {"unschedulable": True}})
        await quiet()
        await cluster.create(pod("big", containers=container(cpu="2", memory="2Gi")))
        assert await told(cluster, "big") == (
            "0/4 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 Too many pods, 1 node(s) had "
            "untolerated taint {dedicated: x}, 1 node(s) were unschedulable."
        )
        await cluster.create(pod("picky", nodeSelector={"disk": "fast"}, tolerations=[{"operator": "Exists"}]))
        assert await told(cluster, "picky") == (
            "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."
        )


async def test_pods_that_avoid_each_other_and_those_that_are_avoided() -> None:
    async with running("a", "b") as cluster:
        for name in ("one", "two", "three"):
            await cluster.create(pod(name, labels={"app": "db"}, **away_from("db")))
        placed = await where(cluster)
        assert sorted(placed.values()) == ["", "a", "b"]
        left = next(name for name, node in placed.items() if not node)
        assert await told(cluster, left) == "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."
        await cluster.create(pod("loner", "c", labels={"app": "loner"}, **away_from("web")))
        await cluster.add_node(NodeSpec(name="c"))
        for name in ("w1", "w2"):
            await cluster.create(pod(name, labels={"app": "web"}))
        placed = await where(cluster)
        assert {placed["w1"], placed["w2"]} == {"a", "b"}
        assert placed[left] == "c"


async def test_pods_that_want_to_be_together() -> None:
    affinity = {"podAffinity": {REQUIRED: [term("cache", ZONE)]}}
    async with running() as cluster:
        await zones(cluster, a="z1", b="z2", c="z2")
        await cluster.create(pod("guest", affinity=affinity))
        assert await told(cluster, "guest") == "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
        await cluster.create(pod("cache", "b", labels={"app": "cache"}))
        assert (await where(cluster))["guest"] in ("b", "c")


@pytest.mark.parametrize(("action", "unbound"), [("DoNotSchedule", 1), ("ScheduleAnyway", 0)])
async def test_pods_are_spread_over_zones(action: str, unbound: int) -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": action,
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    async with running() as cluster:
        await zones(cluster, a="z1", b="z1", c="z1", d="z2")
        await cluster.create(workload("Deployment", "web", 4, spec={"topologySpreadConstraints": [constraint]}))
        placed = Counter((await where(cluster)).values())
        assert placed["d"] == 2  # Two zones with two pods each, though one of them has a single node.
        await patch(cluster, path_of(NODES, name="d"), {"spec": {"unschedulable": True}})
        await cluster.create(pod("more", labels={"app": "web"}, topologySpreadConstraints=[constraint]))
        await cluster.create(pod("most", labels={"app": "web"}, topologySpreadConstraints=[constraint]))
        assert list((await where(cluster)).values()).count("") == unbound


async def test_the_most_important_pod_takes_the_room() -> None:
    async with running() as cluster:
        await cluster.create(pod("small"))
        await cluster.create(pod("critical", priorityClassName="system-cluster-critical"))
        await quiet()
        await cluster.add_node(NodeSpec(name="a", pods=1))
        assert await where(cluster) == {"small": "", "critical": "a"}


def a_node(**labels: str) -> JsonObject:
    return {"metadata": {"name": "n", "labels": labels}, "spec": {}, "status": {}}


@pytest.mark.parametrize(
    ("operator", "values", "does"),
    [
        ("In", ["4", "8"], True),
        ("In", ["4"], False),
        ("NotIn", ["4"], True),
        ("NotIn", ["8"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["7"], True),
        ("Gt", ["8"], False),
        ("Lt", ["9"], True),
        ("Gt", ["many"], False),
    ],
)
def test_what_node_affinity_takes(operator: str, values: list[str], does: bool) -> None:
    expression = {"key": "cores", "operator": operator, "values": values}
    terms: Any = [{"matchExpressions": [expression]}]
    wanting = pod("p", affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}})
    assert fits(wanting, a_node(cores="8")) is does
    liking = pod("p", affinity={"nodeAffinity": {PREFERRED: [{"weight": 7, "preference": terms[0]}]}})
    assert preference(liking, a_node(cores="8")) == (7 if does else 0)
    by_name = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    assert fits(pod("p", affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": by_name}}}), a_node())
    assert not fits(pod("p", affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}), a_node())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100m", 0.1),
        ("2", 2),
        (3, 3),
        ("1.5Gi", 1.5 * 2**30),
        ("1e3", 1000),
        ("5k", 5000),
        ("", 0),
        ("x", 0),
        ("2E", 2e18),
    ],
)
def test_quantities(text: str | int, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


def test_what_a_pod_asks_for() -> None:
    init = [{**container(cpu="3")[0]}, {**container(memory="1Gi")[0], "restartPolicy": "Always"}]
    asking = pod("p", containers=container(cpu="1") * 2, initContainers=init, overhead={"cpu": "100m"})
    assert list(requests_of(asking)) == pytest.approx([3.1, 2**30, 0])
