"""The embedded cluster as a whole, and the demo's world in every size: repeatable, roomy, and never stuck."""

from __future__ import annotations

import random
import stat
from collections import Counter
from pathlib import Path

import anyio
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubesim.clock import LoopClock
from kubesim.cluster import ClusterOptions, EmbeddedCluster
from kubesim.controllers.objects import is_mirror, is_ready, key_of, node_of
from kubesim.controllers.paths import ATTACHMENTS, BUDGETS, NODES, PODS, path_of
from kubesim.scenarios.demo import APPS, DemoPlan, demo_options, demo_plan, sizes
from kubesim.server.api import JsonObject
from kubesim.serving import write_kubeconfig
from kubesim.values import scaled_value
from kubesim_support.clusters import Timeline, patch, pod, quiet, running

pytestmark = pytest.mark.anyio


def replicas_of(world: DemoPlan) -> dict[str, int]:
    return {o["metadata"]["name"]: o["spec"]["replicas"] for o in world.objects if "replicas" in o["spec"]}


@given(nodes=st.integers(2, 30), pods=st.integers(1, 3000), seed=st.integers(0, 50))
def test_a_world_of_any_size_has_its_pods_its_room_and_budgets_that_let_go(nodes: int, pods: int, seed: int) -> None:
    world = demo_plan(nodes=nodes, pods=pods, seed=seed)
    replicas = replicas_of(world)
    assert len({spec.name for spec in world.nodes}) == nodes
    assert sum(replicas.values()) == pods == world.pods
    assert world.all_pods == pods + 2 * nodes
    assert all(spec.pods >= world.pods + 2 for spec in world.nodes)
    for app in APPS:
        assert replicas.get(app.name, 0) <= (app.limit or pods)
    for object_ in world.objects:
        if object_["kind"] == "PodDisruptionBudget":
            expected = replicas[object_["metadata"]["name"]]
            spec = object_["spec"]
            if "maxUnavailable" in spec:
                allowed = scaled_value(spec["maxUnavailable"], expected, round_up=True)
            else:
                allowed = expected - scaled_value(spec["minAvailable"], expected, round_up=True)
            assert allowed >= 1


def test_the_demos_own_size_has_everything_in_it() -> None:
    world = demo_plan()
    kinds = Counter(object_["kind"] for object_ in world.objects)
    assert kinds == {"Deployment": 12, "StatefulSet": 1, "DaemonSet": 1, "PodDisruptionBudget": 5}
    bounds = {
        object_["metadata"]["name"]: {k: v for k, v in object_["spec"].items() if k != "selector"}
        for object_ in world.objects
        if object_["kind"] == "PodDisruptionBudget"
    }
    assert bounds == {
        "web": {"maxUnavailable": 1},
        "db": {"maxUnavailable": 1},
        "api": {"minAvailable": "80%"},
        "dns": {"minAvailable": 2},
        "worker": {"maxUnavailable": "30%"},
    }
    assert len({object_["metadata"]["namespace"] for object_ in world.objects}) >= 5


def test_the_same_seed_is_the_same_world() -> None:
    assert demo_plan(seed=4) == demo_plan(seed=4)
    assert demo_plan(seed=4) != demo_plan(seed=5)


def test_few_pods_go_to_the_first_apps() -> None:
    assert sizes(3, random.Random(1))[:5] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(("nodes", "pods"), [(1, 10), (2, 0)])
def test_a_world_too_small_is_refused(nodes: int, pods: int) -> None:
    with pytest.raises(ValueError, match="at least two nodes and one pod"):
        demo_plan(nodes=nodes, pods=pods)


@pytest.mark.parametrize(("nodes", "pods"), [(2, 1), (3, 20), (8, 120)])
async def test_every_pod_of_a_world_runs(nodes: int, pods: int) -> None:
    world = demo_plan(nodes=nodes, pods=pods)
    cluster = EmbeddedCluster(LoopClock(), demo_options())
    async with anyio.create_task_group() as group:
        await group.start(cluster.run)
        await world.build(cluster)
        found = cluster.pods()
        assert len(found) == world.all_pods
        assert all(map(is_ready, found))
        assert Counter(map(node_of, filter(is_mirror, found))) == {spec.name: 1 for spec in world.nodes}
        assert await budgets_that_block(cluster) == []
        group.cancel_scope.cancel()


async def budgets_that_block(cluster: EmbeddedCluster) -> list[JsonObject]:
    await quiet()
    _, answer = await cluster.api.call("GET", BUDGETS)
    return [budget for budget in answer["items"] if not budget["status"]["disruptionsAllowed"]]


async def a_short_life(seed: int) -> tuple[list[tuple[float, str, str]], list[tuple[float, str, str]]]:
    """Build the demo's world, cordon a node, evict what is there, end its instance: all that happened."""
    cluster = EmbeddedCluster(LoopClock(), demo_options(seed=seed))
    world = demo_plan(nodes=4, pods=40, seed=seed)
    async with anyio.create_task_group() as group, Timeline(cluster).watching() as timeline:
        await group.start(cluster.run)
        await world.build(cluster)
        name = world.nodes[0].name
        await patch(cluster, path_of(NODES, name=name), {"spec": {"unschedulable": True}})
        for found in [found for found in cluster.pods() if node_of(found) == name]:
            namespace, pod_name = key_of(found)
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod_name}}
            await cluster.api.call("POST", path_of(PODS, namespace, pod_name, "eviction"), body)
            await cluster.pace.clock.sleep(0.1)
        cluster.cloud.terminate(cluster.cloud.instances[0].id)
        await cluster.pace.clock.sleep(60)
        group.cancel_scope.cancel()
    return list(timeline.rows), [(entry.instant, entry.id, entry.what) for entry in cluster.cloud.journal]


async def test_two_runs_with_one_seed_are_the_same_to_the_last_event() -> None:
    first, second, other = await a_short_life(3), await a_short_life(3), await a_short_life(4)
    assert len(first[0]) > 200
    assert [row[1:] for row in first[0]] == [row[1:] for row in second[0]]
    # Virtual time has a resolution of a microsecond, and the second run begins where the first has ended.
    assert [row[0] for row in first[0]] == pytest.approx([row[0] for row in second[0]], abs=2e-4)
    assert [entry[1:] for entry in first[1]] == [entry[1:] for entry in second[1]]
    assert first[0] != other[0]


async def test_a_drained_node_leaves_its_volume_behind_and_its_pods_run_elsewhere() -> None:
    world = demo_plan(nodes=3, pods=30)
    cluster = EmbeddedCluster(LoopClock(), demo_options())
    async with anyio.create_task_group() as group:
        await group.start(cluster.run)
        await world.build(cluster)
        database = next(found for found in cluster.pods() if found["metadata"]["name"] == "db-0")
        name = node_of(database)
        taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
        await patch(cluster, path_of(NODES, name=name), {"spec": {"unschedulable": True, "taints": [taint]}})

        def left() -> list[JsonObject]:
            return [found for found in cluster.pods() if node_of(found) == name and not is_mirror(found)]

        with anyio.fail_after(60):
            while found := left():
                for each in found:
                    namespace, pod_name = key_of(each)
                    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod_name}}
                    await cluster.api.call("POST", path_of(PODS, namespace, pod_name, "eviction"), body)
                await cluster.pace.clock.sleep(0.2)
            await cluster.until_ready()
        await cluster.pace.clock.sleep(1)
        _, answer = await cluster.api.call("GET", ATTACHMENTS)
        assert name not in [item["spec"]["nodeName"] for item in answer["items"]]
        assert len(cluster.pods()) == world.all_pods - 1  # One DaemonSet pod fewer.
        group.cancel_scope.cancel()


async def test_a_part_that_is_left_out_does_nothing() -> None:
    async with running("a", parts=frozenset(("kubelet",))) as cluster:
        await cluster.create(pod("one"))
        await cluster.pace.clock.sleep(10)
        assert [node_of(found) for found in cluster.pods()] == [""]


async def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="no such part of a cluster: bogus"):
        EmbeddedCluster(LoopClock(), ClusterOptions(parts=frozenset(("bogus",))))
    with pytest.raises(ValueError, match="speed must be greater than 0"):
        EmbeddedCluster(LoopClock(), ClusterOptions(speed=0))


def test_the_kubeconfig_is_private_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, "http://127.0.0.1:1234", token="sesame")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = yaml.safe_load(path.read_text())
    assert config["current-context"] == "kubesim"
    assert config["clusters"][0]["cluster"]["server"] == "http://127.0.0.1:1234"
    assert config["users"][0]["user"] == {"token": "sesame"}
    write_kubeconfig(path, "http://127.0.0.1:1234")
    assert yaml.safe_load(path.read_text())["users"][0]["user"] == {}
