"""Workload controllers, scheduler and garbage collection: who is replaced when, and where."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.objects import condition_of, is_ready, node_of
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
    budget,
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

RECORDINGS = Path(__file__).parents[1] / "conformance" / "recordings"
KUBELET_LIKE_THE_RECORDER = sim(start_seconds=0.05, stop_seconds=0.4)
DISRUPTED = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}


async def settle(cluster: EmbeddedCluster, seconds: float = 1.0) -> None:
    await cluster.pace.clock.sleep(seconds)
    await quiet()


async def cordon(cluster: EmbeddedCluster, node: str, value: bool | None = True) -> None:
    await patch(cluster, path_of(NODES, name=node), {"spec": {"unschedulable": value}})
    await quiet()


async def test_a_drained_deployment_goes_through_what_the_recording_shows() -> None:
    steps = json.loads((RECORDINGS / "node-drain-end-to-end.json").read_text())["steps"]
    recorded = next(step["facts"]["lives"] for step in steps if "lives" in step.get("facts", {}))
    async with running("old", "new") as cluster:
        await cordon(cluster, "new")
        await cluster.create(workload("Deployment", "web", 3, annotations=KUBELET_LIKE_THE_RECORDER))
        await cluster.create(budget("web", maxUnavailable=1))
        await settle(cluster)
        await cordon(cluster, "new", None)
        await cordon(cluster, "old")
        old = [found["metadata"]["name"] for found in cluster.pods()]
        async with Timeline(cluster).watching() as timeline:
            for name in old:
                timeline.restart()
                assert await evict(cluster, name) == 201
                await settle(cluster)
                replacement_s, evicted_s = recorded
                # Since 1.26 an eviction first writes a condition (DisruptionTarget) into the pod.
                assert timeline.lives() == [replacement_s, ["MODIFIED ready", *evicted_s]]
                replacement = next(who for _, who, what in timeline.rows if what == "ADDED unbound")
                assert timeline.of(name) == [
                    (0.0, "MODIFIED ready"),
                    (0.0, "MODIFIED terminating, grace 30"),
                    (0.4, "MODIFIED terminating, grace 0"),
                    (0.4, "DELETED"),
                ]
                # Added and bound at the deletionTimestamp of the old pod, while that still runs.
                assert timeline.of(replacement) == [
                    (0.0, "ADDED unbound"),
                    (0.0, "MODIFIED bound"),
                    (0.05, "MODIFIED ready"),
                ]
                # The budget is free again when the replacement is Ready, not when the old pod is gone.
                story = timeline.of("budget")
                assert story[0] == (0.0, "MODIFIED allowed 0, healthy 3 of 3, 1 disrupted")
                assert story[-2:] == [
                    (0.0, "MODIFIED allowed 0, healthy 2 of 3, 0 disrupted"),
                    (0.05, "MODIFIED allowed 1, healthy 3 of 3, 0 disrupted"),
                ]
        assert {node_of(found) for found in cluster.pods()} == {"new"}


async def test_a_deployment_scales_and_says_how_many_are_ready() -> None:
    async with running("a", "b") as cluster:
        await cluster.create(workload("Deployment", "web", 5))
        await settle(cluster)
        assert len(cluster.pods()) == 5
        path = path_of(DEPLOYMENTS, NAMESPACE, "web")
        deployment = await get(cluster, path)
        assert deployment is not None
        assert {key: deployment["status"][key] for key in ("replicas", "readyReplicas", "observedGeneration")} == {
            "replicas": 5,
            "readyReplicas": 5,
            "observedGeneration": 1,
        }
        available = condition_of(deployment, "Available")
        assert available is not None
        assert available["status"] == "True"
        await patch(cluster, path, {"spec": {"replicas": 2}})
        await settle(cluster)
        assert len(cluster.pods()) == 2
        await patch(cluster, path, {"spec": {"replicas": 0}})
        await settle(cluster)
        deployment = await get(cluster, path)
        assert deployment is not None
        assert deployment["status"].get("replicas", 0) == 0


async def test_a_new_template_gets_a_replica_set_of_its_own() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2))
        await settle(cluster)
        (first,) = await names(cluster, REPLICA_SETS)
        change = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 5}}}}
        await patch(cluster, path_of(DEPLOYMENTS, NAMESPACE, "web"), change)
        await settle(cluster)
        sets = await names(cluster, REPLICA_SETS)
        assert len(sets) == 2
        (second,) = set(sets) - {first}
        prefixes = {found["metadata"]["generateName"] for found in cluster.pods()}
        assert prefixes == {f"{second}-"}


async def test_a_pod_that_fails_is_replaced() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 1))
        await settle(cluster)
        (one,) = cluster.pods()
        await patch(
            cluster,
            path_of(PODS, NAMESPACE, one["metadata"]["name"], "status"),
            {"status": {"phase": "Failed"}},
        )
        await settle(cluster)
        assert sorted(found["status"]["phase"] for found in cluster.pods()) == ["Failed", "Running"]


async def test_a_stateful_set_makes_its_pods_in_order_under_stable_names() -> None:
    async with running("a", "b") as cluster:
        async with Timeline(cluster).watching() as timeline:
            await cluster.create(workload("StatefulSet", "db", 3, annotations=sim(ready_seconds=2)))
            await settle(cluster, 10)
            added = [(at, who) for at, who, what in timeline.rows if what == "ADDED unbound"]
            assert added == [(0.0, "db-0"), (2.0, "db-1"), (4.0, "db-2")]
        stateful_set = await get(cluster, path_of(STATEFUL_SETS, NAMESPACE, "db"))
        assert stateful_set is not None
        assert stateful_set["status"]["readyReplicas"] == 3
        await patch(cluster, path_of(STATEFUL_SETS, NAMESPACE, "db"), {"spec": {"replicas": 1}})
        await settle(cluster, 10)
        assert await names(cluster, PODS) == ["db-0"]


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
        assert [is_ready(found) for found in cluster.pods()] == ([True] if comes_back else [])


async def test_a_taint_that_ends_pods_ends_daemon_pods() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("DaemonSet", "agent"))
        await settle(cluster)
        taint = {"key": "gone", "effect": "NoExecute"}
        await patch(cluster, path_of(NODES, name="a"), {"spec": {"taints": [taint]}})
        await settle(cluster)
        assert cluster.pods() == []


async def test_pods_are_spread_by_owner_then_by_load() -> None:
    async with running("a", "b", "c") as cluster:
        await cluster.create(workload("Deployment", "web", 7))
        await cluster.create(workload("Deployment", "api", 2))
        await settle(cluster)
        placed = Counter((found["metadata"]["labels"]["app"], node_of(found)) for found in cluster.pods())
        assert placed == {
            ("web", "a"): 3,
            ("web", "b"): 2,
            ("web", "c"): 2,
            ("api", "b"): 1,
            ("api", "c"): 1,
        }


async def test_pods_wait_for_room_and_take_it_when_it_comes() -> None:
    async with running() as cluster:
        await cluster.add_node(NodeSpec(name="small", pods=2))
        await cluster.create(workload("Deployment", "web", 4))
        await settle(cluster)
        waiting = [found for found in cluster.pods() if not node_of(found)]
        assert len(waiting) == 2
        scheduled = condition_of(waiting[0], "PodScheduled")
        assert scheduled is not None
        assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
        await cluster.add_node(NodeSpec(name="big"))
        await settle(cluster)
        assert Counter(map(node_of, cluster.pods())) == {"small": 2, "big": 2}
        assert all(map(is_ready, cluster.pods()))


async def test_room_counts_until_a_pod_is_gone() -> None:
    async with running() as cluster:
        await cluster.add_node(NodeSpec(name="small", pods=1))
        await cluster.create(workload("Deployment", "web", 1, annotations=sim(stop_seconds=4)))
        await settle(cluster)
        (first,) = cluster.pods()
        async with Timeline(cluster).watching() as timeline:
            await delete_pod(cluster, first["metadata"]["name"])
            await settle(cluster, 10)
            bound = [at for at, _, what in timeline.rows if what == "MODIFIED bound"]
            assert bound == [4.0]


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
        assert [node_of(found) for found in cluster.pods()] == [""]
        # And goes there as soon as it does.
        await patch(
            cluster,
            path_of(NODES, name="a"),
            {"spec": {"unschedulable": None, "taints": None}, "metadata": {"labels": {"disk": "fast"}}},
        )
        await settle(cluster)
        assert [node_of(found) for found in cluster.pods()] == ["a"]


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "k", "operator": "Exists"},
        {"key": "k", "value": "v"},
        {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"},
    ],
)
async def test_a_tolerated_taint_keeps_no_pod_away(toleration: JsonObject) -> None:
    async with running("a") as cluster:
        taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
        await patch(cluster, path_of(NODES, name="a"), {"spec": {"taints": [taint]}})
        await cluster.create(pod("one", tolerations=[toleration]))
        await settle(cluster)
        assert [node_of(found) for found in cluster.pods()] == ["a"]


async def test_what_a_deleted_deployment_owned_goes_too() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 3))
        await cluster.create(pod("bystander", "a"))
        await settle(cluster)
        options = {"propagationPolicy": "Background"}
        await cluster.api.call("DELETE", path_of(DEPLOYMENTS, NAMESPACE, "web"), options)
        await settle(cluster)
        assert await names(cluster, REPLICA_SETS) == []
        assert await names(cluster, PODS) == ["bystander"]


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
        assert [found["metadata"].get("ownerReferences") for found in cluster.pods()] in ([None, None], [[], []])


async def test_pods_of_a_removed_node_go_after_the_quarantine() -> None:
    async with running("a", "b", quarantine_seconds=40) as cluster:
        await cluster.create(pod("one", "a"))
        await cluster.create(pod("two", "b"))
        await quiet()
        cluster.kubelet.kill("a")
        async with Timeline(cluster).watching() as timeline:
            await cluster.api.call("DELETE", path_of(NODES, name="a"))
            await settle(cluster, 100)
            # First it is said to have Failed (since 1.26), although its readiness stays.
            assert timeline.of("one") == [
                (40.0, "MODIFIED ready"),
                (40.0, "MODIFIED terminating, grace 0"),
                (40.0, "DELETED"),
            ]
            assert timeline.of("two") == []


async def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async with running("a", quarantine_seconds=40) as cluster:
        await cluster.create(pod("one", "a"))
        await quiet()
        await cluster.api.call("DELETE", path_of(NODES, name="a"))
        await settle(cluster, 30)
        await cluster.add_node(NodeSpec(name="a"))
        await settle(cluster, 100)
        assert await names(cluster, PODS) == ["one"]


async def test_pods_of_a_removed_node_go_at_a_look_of_pod_gc() -> None:
    """Recording nodes-orphans: 40 s of quarantine, looked at every 20 s."""
    async with running("a") as cluster:
        await cluster.create(pod("one", "a"))
        await cluster.pace.clock.sleep(5)  # A look at 0, the next at 20.
        cluster.kubelet.kill("a")
        async with Timeline(cluster).watching() as timeline:
            await cluster.api.call("DELETE", path_of(NODES, name="a"))
            await settle(cluster, 100)
            # First it is said to have Failed (since 1.26), although its readiness stays.
            assert timeline.of("one") == [
                (55.0, "MODIFIED ready"),
                (55.0, "MODIFIED terminating, grace 0"),
                (55.0, "DELETED"),
            ]


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
