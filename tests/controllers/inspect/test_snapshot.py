"""A look at a cluster: everything about some nodes, and nothing about the pods of the others."""

from __future__ import annotations

import anyio
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Refuse, Rule
from support.clients import a_client, asked_pods, named
from support.stage import NAMESPACE, Stage, a_budget_manifest, a_pod_manifest, staged

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.informers import MANY
from gracectl.inspect.watcher import snapshot
from gracectl.kube import errors
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.model.node import Node


def attachment(node: str) -> dict[str, object]:
    source = {"persistentVolumeName": "pv"}
    spec = {"attacher": "csi.example", "nodeName": node, "source": source}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "va"}, "spec": spec}


def is_live(cluster: ClusterCache) -> bool:
    caches = (cluster.nodes, cluster.pods, cluster.budgets, cluster.attachments, cluster.claims)
    return all(cache.statistics().live for cache in caches)


async def test_everything_about_the_chosen_nodes_and_no_pod_of_another() -> None:
    async with staged("n1", "n2", "n3") as stage:
        await stage.add_nodes("n4", claim=ClaimSpec())
        await stage.create(
            a_budget_manifest("a", minAvailable=1),
            *(a_pod_manifest(name, node) for name, node in {"a": "n1", "b": "n1", "c": "n2", "d": "n3"}.items()),
        )
        await stage.call("POST", "/apis/storage.k8s.io/v1/volumeattachments", attachment("n1"))
        cluster = await snapshot(a_client(stage), named("n1", "n3", "gone"))
        assert is_live(cluster)
        assert sorted(node.name for node in cluster.nodes.values()) == ["n1", "n2", "n3", "n4"]
        assert {name: [pod.name for pod in cluster.pods_on(name)] for name in ("n1", "n2", "n3")} == {
            "n1": ["a", "b"],
            "n2": [],
            "n3": ["d"],
        }
        assert [each.name for each in cluster.attachments_on("n1")] == ["va"]
        assert [each.name for each in cluster.claims.values()] == ["n4-claim"]
        (budgets,) = cluster.budgets_by_pod(cluster.pods_on("n1")).values()
        assert [each.name for each in budgets] == ["a"]
        assert asked_pods(stage) == ["list spec.nodeName=n1", "list spec.nodeName=n3"]
        discovery = {"/apis/karpenter.sh/v1", "/apis/karpenter.sh/v1beta1"}  # whether Karpenter is installed
        asked = [each for each in stage.transport.executed if each.request.path not in discovery]
        assert {each.operation.verb for each in asked} == {"list"}


async def test_where_nothing_is_chosen_no_pod_is_asked_for() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")]) as stage:
        cluster = await snapshot(a_client(stage), named())
        assert is_live(cluster)
        assert asked_pods(stage) == []


async def many_nodes(stage: Stage, count: int) -> None:
    """So many nodes with a pod each, and `other` with one."""
    nodes = [f"n{number}" for number in range(count)]
    await stage.add_nodes(*nodes)
    await stage.create(*(a_pod_manifest(f"on-{node}", node) for node in (*nodes, "other")))


def but_other(node: Node) -> bool:
    return node.name != "other"


async def test_the_pods_of_a_few_nodes_are_asked_for_ten_at_a_time() -> None:
    async with staged("other") as stage:
        await many_nodes(stage, MANY)
        stage.transport.before.add(Rule(fault=Latency(1.0, 1.0), path="/pods$"))
        start = stage.clock.monotonic()
        cluster = await snapshot(a_client(stage), but_other)
        assert len(cluster.pods) == MANY
        answered = [round(each.instant - start, 3) for each in stage.transport.of("list", "pods")]
        assert answered == [1.0] * 10 + [2.0] * 10 + [3.0] * 10


async def test_of_many_nodes_the_pods_are_found_in_one_list_and_no_others_are_kept() -> None:
    async with staged("other") as stage:
        await many_nodes(stage, MANY + 1)
        client = KubeClient(stage.transport, stage.clock, settings=ClientSettings(page_size=10))
        cluster = await snapshot(client, but_other)
        assert is_live(cluster)
        assert len(cluster.pods) == MANY + 1
        assert cluster.pods_on("other") == ()
        assert asked_pods(stage) == ["list"]
        assert len(stage.transport.of("list", "pods")) == 4


async def test_a_cluster_without_node_claims_has_none() -> None:
    async with staged("n1", definitions=()) as stage:
        cluster = await snapshot(a_client(stage), named("n1"))
        assert (is_live(cluster), len(cluster.claims)) == (True, 0)


async def test_the_first_failure_is_told_as_it_comes_and_ends_the_rest() -> None:
    async with staged("other") as stage:
        await many_nodes(stage, MANY)
        stage.transport.before.add(Rule(fault=Refuse(500), path="poddisruptionbudgets"))
        stage.transport.before.add(Rule(fault=Latency(1.0, 1.0), path="/pods$"))
        with pytest.raises(errors.ServerError, match="poddisruptionbudgets"):
            await snapshot(a_client(stage), but_other)
        assert stage.transport.of("list", "pods") == []


async def test_a_pod_that_came_up_again_on_another_node_meanwhile_is_seen_there() -> None:
    """The lists of two nodes are not of one version: the one that comes last still shows what is gone."""
    async with staged("n1", "n2", objects=[a_pod_manifest("web-0", "n2")]) as stage:
        stage.transport.before.add(Rule(fault=Latency(2.0, 2.0), path="/pods$", count=1))  # the list of n1
        stage.transport.behind.add(Rule(fault=Latency(5.0, 5.0), path="/pods$", count=1))  # the answer for n2
        caches: list[ClusterCache] = []

        async def read() -> None:
            caches.append(await snapshot(a_client(stage), named("n1", "n2")))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await stage.clock.sleep(1)
            await stage.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/web-0", {"gracePeriodSeconds": 0})
            await stage.create(a_pod_manifest("web-0", "n1"))
        assert asked_pods(stage) == ["list spec.nodeName=n2", "list spec.nodeName=n1"]
        (cluster,) = caches
        assert (len(cluster.pods_on("n1")), cluster.pods_on("n2")) == (1, ())
