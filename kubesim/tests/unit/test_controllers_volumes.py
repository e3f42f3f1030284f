"""Volumes: a StatefulSet's claim is bound, attached where its pod runs, and detached when the pod has gone."""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.attachments import attachment_name, claims_of
from kubesim.controllers.objects import is_ready, node_of
from kubesim.controllers.paths import ATTACHMENTS, CLAIMS, NODES, STATEFUL_SETS, VOLUMES, path_of
from kubesim.server.api import JsonObject
from kubesim_support.clusters import (
    NAMESPACE,
    delete_pod,
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

TEMPLATE: JsonObject = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


async def attachments(cluster: EmbeddedCluster) -> list[tuple[str, bool, bool]]:
    """(node, attached, going) of each attachment."""
    await quiet()
    _, answer = await cluster.api.call("GET", ATTACHMENTS)
    return sorted(
        (item["spec"]["nodeName"], item["status"]["attached"], "deletionTimestamp" in item["metadata"])
        for item in answer["items"]
    )


async def test_a_volume_follows_its_pod_from_node_to_node() -> None:
    async with running("a", "b", attach_seconds=1.0, detach_seconds=2.0) as cluster:
        await patch(cluster, path_of(NODES, name="b"), {"spec": {"unschedulable": True}})
        await cluster.create(
            workload("StatefulSet", "db", 1, annotations=sim(stop_seconds=5), volumeClaimTemplates=[TEMPLATE])
        )
        assert await attachments(cluster) == [("a", False, False)]
        claim = await get(cluster, path_of(CLAIMS, NAMESPACE, "data-db-0"))
        assert claim is not None
        room = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
        assert claim["status"] == {"phase": "Bound", **room}
        assert await names(cluster, VOLUMES) == [claim["spec"]["volumeName"]]
        assert await names(cluster, ATTACHMENTS) == [attachment_name(claim["spec"]["volumeName"], "a")]
        await cluster.pace.clock.sleep(1)
        assert await attachments(cluster) == [("a", True, False)]

        await patch(cluster, path_of(NODES, name="a"), {"spec": {"unschedulable": True}})
        await patch(cluster, path_of(NODES, name="b"), {"spec": {"unschedulable": None}})
        await delete_pod(cluster, "db-0")
        await cluster.pace.clock.sleep(4.9)
        assert await attachments(cluster) == [("a", True, False)]
        await cluster.pace.clock.sleep(0.2)
        # The old attachment goes while the new one comes; the claim stays the same.
        assert await attachments(cluster) == [("a", True, True), ("b", False, False)]
        await cluster.pace.clock.sleep(1.8)
        assert await attachments(cluster) == [("a", True, True), ("b", True, False)]
        await cluster.pace.clock.sleep(0.2)
        assert await attachments(cluster) == [("b", True, False)]
        assert await names(cluster, CLAIMS) == ["data-db-0"]


async def test_a_claim_takes_the_volume_that_is_kept_for_it() -> None:
    volume: JsonObject = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "kept"},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/kept"},
            "claimRef": {"namespace": NAMESPACE, "name": "mine"},
        },
    }
    claim: JsonObject = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "mine", "namespace": NAMESPACE},
        "spec": TEMPLATE["spec"],
    }
    async with running() as cluster:
        await cluster.create(volume)
        await quiet()
        await cluster.create(claim)
        await quiet()
        bound = await get(cluster, path_of(CLAIMS, NAMESPACE, "mine"))
        assert bound is not None
        assert bound["spec"]["volumeName"] == "kept"
        room = {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany"]}
        assert bound["status"] == {"phase": "Bound", **room}
        kept = await get(cluster, path_of(VOLUMES, "", "kept"))
        assert kept is not None
        assert (kept["status"]["phase"], kept["spec"]["claimRef"]["uid"]) == ("Bound", bound["metadata"]["uid"])
        assert await names(cluster, VOLUMES) == ["kept"]


async def test_the_volumes_of_a_dead_node_stay_attached_until_its_pods_are_gone() -> None:
    async with running("a", "b", quarantine_seconds=40) as cluster:
        await cluster.create(workload("StatefulSet", "db", 1, volumeClaimTemplates=[TEMPLATE]))
        await quiet()
        (one,) = cluster.pods()
        dead = node_of(one)
        other = {"a": "b", "b": "a"}[dead]
        cluster.kubelet.kill(dead)
        await cluster.api.call("DELETE", path_of(NODES, name=dead))
        await cluster.pace.clock.sleep(39)
        assert await attachments(cluster) == [(dead, True, False)]
        await cluster.pace.clock.sleep(2)
        assert await attachments(cluster) == [(other, True, False)]


async def test_a_volume_is_unstaged_only_while_a_plugin_runs_on_its_node() -> None:
    async with running("a", unstage_seconds=2.0, node_plugin="app=plugin") as cluster:
        await cluster.create(workload("StatefulSet", "db", 1, volumeClaimTemplates=[TEMPLATE]))
        await cluster.create(pod("plugin", "a", labels={"app": "plugin"}))
        await quiet()
        await patch(cluster, path_of(STATEFUL_SETS, NAMESPACE, "db"), {"spec": {"replicas": 0}})
        await quiet()
        await delete_pod(cluster, "plugin")
        await cluster.pace.clock.sleep(30)
        assert await attachments(cluster) == [("a", True, False)]
        await cluster.create(pod("plugin", "a", labels={"app": "plugin"}))
        assert await attachments(cluster) == []


def test_the_claims_of_a_pod() -> None:
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "x"}},
        {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "c", "emptyDir": {}},
    ]
    assert claims_of(pod("one", volumes=volumes)) == ("x", "one-b")


async def test_a_volume_that_is_only_mounted_is_not_attached() -> None:
    async with running("a") as cluster:
        await cluster.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "share"},
                "spec": {"capacity": {"storage": "1Gi"}, "nfs": {"server": "s", "path": "/"}},
            }
        )
        await cluster.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "shared", "namespace": NAMESPACE},
                "spec": {**TEMPLATE["spec"], "volumeName": "share"},
            }
        )
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}
        await cluster.create(pod("one", "a", volumes=[volume]))
        assert await attachments(cluster) == []
        assert [is_ready(pod_object) for pod_object in cluster.pods()] == [True]


async def test_the_claim_of_an_ephemeral_volume_comes_and_goes_with_its_pod() -> None:
    async with running("a", attach_seconds=1.0, detach_seconds=2.0) as cluster:
        volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": TEMPLATE["spec"]}}}]
        await cluster.create(pod("one", volumes=volumes))
        await quiet()
        assert await names(cluster, CLAIMS) == ["one-scratch"]
        await cluster.pace.clock.sleep(1)
        assert await attachments(cluster) == [("a", True, False)]
        assert [is_ready(pod_object) for pod_object in cluster.pods()] == [True]
        await delete_pod(cluster, "one")
        assert await attachments(cluster) == [("a", True, True)]
        await cluster.pace.clock.sleep(2)
        assert await attachments(cluster) == []
        assert (await names(cluster, CLAIMS), await names(cluster, VOLUMES)) == ([], [])


async def test_a_claim_that_is_used_outlives_its_deletion() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("StatefulSet", "db", 1, volumeClaimTemplates=[TEMPLATE]))
        await quiet()
        await cluster.api.call("DELETE", path_of(CLAIMS, NAMESPACE, "data-db-0"))
        await quiet()
        assert await names(cluster, CLAIMS) == ["data-db-0"]
        await patch(cluster, path_of(STATEFUL_SETS, NAMESPACE, "db"), {"spec": {"replicas": 0}})
        await quiet()
        assert (await names(cluster, CLAIMS), await names(cluster, VOLUMES)) == ([], [])
