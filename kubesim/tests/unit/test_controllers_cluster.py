"""The embedded cluster as a whole, and the demo's world in every size: repeatable, roomy, and never stuck."""

from __future__ import annotations

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.cluster import ClusterOptions, EmbeddedCluster
from kubesim.controllers.objects import is_mirror, key_of, node_of
from kubesim.controllers.paths import ATTACHMENTS, NODES, PODS, path_of
from kubesim.scenarios.demo import demo_options, demo_plan
from kubesim.server.api import JsonObject
from kubesim_support.clusters import Timeline, patch

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("nodes", "pods"), [(1, 10), (2, 0)])
def test_a_world_too_small_is_refused(nodes: int, pods: int) -> None:
    with pytest.raises(ValueError, match="at least two nodes and one pod"):
        demo_plan(nodes=nodes, pods=pods)


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


async def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="no such part of a cluster: bogus"):
        EmbeddedCluster(LoopClock(), ClusterOptions(parts=frozenset(("bogus",))))
    with pytest.raises(ValueError, match="speed must be greater than 0"):
        EmbeddedCluster(LoopClock(), ClusterOptions(speed=0))
