"""Workload controllers, scheduler and garbage collection: who is replaced when, and where."""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.objects import is_ready, node_of
from kubesim.controllers.paths import (
    DAEMON_SETS,
    DEPLOYMENTS,
    NODES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    path_of,
)
from kubesim.server.api import JsonObject
from kubesim_support.clusters import (
    NAMESPACE,
    Timeline,
    delete_pod,
    evict,
    get,
    names,
    patch,
    pod,
    quiet,
    running,
    sim,
    workload,
)

pytestmark = pytest.mark.anyio
DISRUPTED = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}


async def settle(cluster: EmbeddedCluster, seconds: float = 1.0) -> None:
    await cluster.pace.clock.sleep(seconds)
    await quiet()


async def test_a_stateful_pod_comes_back_only_when_the_old_one_is_gone() -> None:
    async with running("a", "b") as cluster:
        annotations = sim(stop_seconds=5)
        await cluster.create(workload("StatefulSet", "db", 2, annotations=annotations))
        await settle(cluster)
        before = await get(cluster, path_of(PODS, NAMESPACE, "db-0"))
        async with Timeline(cluster).watching() as timeline:
            assert await evict(cluster, "db-0") == 201
            await settle(cluster, 10)
            story = [at for at, what in timeline.of("db-0") if what in ("DELETED", "ADDED unbound")]
            assert story == [5.0, 5.0]
        after = await get(cluster, path_of(PODS, NAMESPACE, "db-0"))
        assert before is not None
        assert after is not None
        assert is_ready(after)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_daemon_set_covers_every_node_it_may() -> None:
    async with running("a", "b") as cluster:
        await cluster.create(workload("DaemonSet", "agent", spec={"nodeSelector": {"pool": "yes"}}))
        await settle(cluster)
        assert cluster.pods() == []
        await cluster.add_node(NodeSpec(name="c", labels={"pool": "yes"}))
        await patch(cluster, path_of(NODES, name="a"), {"metadata": {"labels": {"pool": "yes"}}})
        await settle(cluster)
        assert sorted(map(node_of, cluster.pods())) == ["a", "c"]
        daemon_set = await get(cluster, path_of(DAEMON_SETS, NAMESPACE, "agent"))
        assert daemon_set is not None
        assert (daemon_set["status"]["desiredNumberScheduled"], daemon_set["status"]["numberReady"]) == (2, 2)
        await patch(cluster, path_of(NODES, name="a"), {"metadata": {"labels": {"pool": None}}})
        await settle(cluster)
        assert list(map(node_of, cluster.pods())) == ["c"]


@pytest.mark.parametrize(("taints", "comes_back"), [([], True), ([DISRUPTED], False)])
async def test_a_daemon_pod_comes_back_to_a_cordoned_node_but_not_to_a_disrupted_one(
    taints: list[JsonObject], comes_back: bool
) -> None:
    async with running("a") as cluster:
        await cluster.create(workload("DaemonSet", "agent", annotations=sim(stop_seconds=3)))
        await settle(cluster)
        await patch(cluster, path_of(NODES, name="a"), {"spec": {"unschedulable": True, "taints": taints}})
        await settle(cluster)
        (first,) = cluster.pods()
        assert is_ready(first)  # A taint NoSchedule ends nothing that runs.
        await delete_pod(cluster, first["metadata"]["name"])
        await settle(cluster, 2)
        assert len(cluster.pods()) == 1  # None is made while the old one is still there.
        await settle(cluster, 2)
        assert [is_ready(pod_object) for pod_object in cluster.pods()] == ([True] if comes_back else [])


async def test_a_taint_that_ends_pods_ends_daemon_pods() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("DaemonSet", "agent"))
        await settle(cluster)
        taint = {"key": "gone", "effect": "NoExecute"}
        await patch(cluster, path_of(NODES, name="a"), {"spec": {"taints": [taint]}})
        await settle(cluster)
        assert cluster.pods() == []


@pytest.mark.parametrize(
    ("pod_spec", "node_spec"),
    [
        ({}, {"unschedulable": True}),
        ({}, {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}),
        (
            {"tolerations": [{"key": "k", "value": "other"}]},
            {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        ),
        (
            {"tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}]},
            {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        ),
        ({"nodeSelector": {"disk": "fast"}}, {}),
    ],
)
async def test_a_pod_stays_away_from_a_node_that_it_does_not_fit(pod_spec: JsonObject, node_spec: JsonObject) -> None:
    async with running("a") as cluster:
        await patch(cluster, path_of(NODES, name="a"), {"spec": node_spec})
        await quiet()
        await cluster.create(pod("one", **pod_spec))
        await settle(cluster)
        assert [node_of(pod_object) for pod_object in cluster.pods()] == [""]
        # And goes there as soon as it does.
        await patch(
            cluster,
            path_of(NODES, name="a"),
            {"spec": {"unschedulable": None, "taints": None}, "metadata": {"labels": {"disk": "fast"}}},
        )
        await settle(cluster)
        assert [node_of(pod_object) for pod_object in cluster.pods()] == ["a"]


async def test_foreground_deletion_waits_for_the_dependents() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2, annotations=sim(stop_seconds=4)))
        await settle(cluster)
        path = path_of(DEPLOYMENTS, NAMESPACE, "web")
        await cluster.api.call("DELETE", path, {"propagationPolicy": "Foreground"})
        await settle(cluster, 3)
        assert await get(cluster, path) is not None
        await settle(cluster, 2)
        assert await get(cluster, path) is None
        assert await names(cluster, REPLICA_SETS) == []
        assert await names(cluster, PODS) == []


async def test_orphaned_pods_live_on() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("StatefulSet", "db", 2))
        await settle(cluster)
        path = path_of(STATEFUL_SETS, NAMESPACE, "db")
        await cluster.api.call("DELETE", path, {"propagationPolicy": "Orphan"})
        await settle(cluster, 100)
        assert await get(cluster, path) is None
        assert [pod_object["metadata"].get("ownerReferences") for pod_object in cluster.pods()] in (
            [None, None],
            [[], []],
        )


async def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async with running("a", quarantine_seconds=40) as cluster:
        await cluster.create(pod("one", "a"))
        await quiet()
        await cluster.api.call("DELETE", path_of(NODES, name="a"))
        await settle(cluster, 30)
        await cluster.add_node(NodeSpec(name="a"))
        await settle(cluster, 100)
        assert await names(cluster, PODS) == ["one"]


async def test_pods_of_a_node_out_of_service_do_not_wait_for_its_kubelet() -> None:
    async with running("a") as cluster:
        await cluster.create(pod("one", "a"))
        await cluster.create(pod("two", "a", tolerations=[{"operator": "Exists"}]))
        await quiet()
        cluster.kubelet.kill("a")
        await settle(cluster, 60)
        await delete_pod(cluster, "one")
        await settle(cluster, 60)
        assert await names(cluster, PODS) == ["one", "two"]
        unreachable = (await get(cluster, path_of(NODES, name="a")) or {})["spec"]["taints"]
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        await patch(cluster, path_of(NODES, name="a"), {"spec": {"taints": [*unreachable, taint]}})
        await quiet()
        assert await names(cluster, PODS) == ["two"]
