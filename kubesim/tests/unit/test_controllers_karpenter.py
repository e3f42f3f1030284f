"""The model of Karpenter: taint, groups, backoff, deadlines and their lateness, finalizers, Lease, kills."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.karpenter import DEADLINE, FINALIZER, LEASE, LEASE_NAMESPACE, TAINT, Karpenter, karpenters
from kubesim.controllers.nodeclaims import NODE_CLAIM, NODE_CLAIMS
from kubesim.controllers.objects import annotations_of, condition_of
from kubesim.controllers.paths import EVENTS, LEASES, NODES, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, budget, get, patch, pod, quiet, running, workload

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def with_karpenter(*nodes: str, **claim: Any) -> AsyncIterator[tuple[EmbeddedCluster, Karpenter]]:
    """A cluster with a Karpenter, and these nodes of its."""
    async with running("other", definitions=(NODE_CLAIM,)) as cluster, anyio.create_task_group() as group:
        karpenter = Karpenter(cluster.api, cluster.pace)
        group.start_soon(karpenter.run)
        for name in nodes:
            await cluster.add_node(NodeSpec(name=name, claim=karpenters(**claim)))
        await quiet()
        yield cluster, karpenter
        group.cancel_scope.cancel()


async def delete(cluster: EmbeddedCluster, node: str = "a") -> float:
    await cluster.call("DELETE", path_of(NODES, name=node))
    return cluster.pace.clock.monotonic()


async def gone_after(cluster: EmbeddedCluster, began: float, node: str = "a") -> float:
    path = path_of(NODES, name=node)
    while await get(cluster, path) is not None:
        await cluster.pace.clock.sleep(0.05)
    return cluster.pace.clock.monotonic() - began


async def events(cluster: EmbeddedCluster, name: str = "a") -> list[tuple[str, str]]:
    _, answer = await cluster.api.call("GET", EVENTS)
    about = [event for event in answer["items"] if event["involvedObject"]["name"] == name]
    return [(event["reason"], event["message"]) for event in about if event["source"]["component"] == "karpenter"]


def pods(cluster: EmbeddedCluster) -> dict[str, JsonObject]:
    return {pod_object["metadata"]["name"]: pod_object for pod_object in cluster.pods()}


async def test_it_takes_charge_of_its_own_nodes_and_claims_only() -> None:
    async with with_karpenter("a") as (cluster, _):
        node, other = await get(cluster, path_of(NODES, name="a")), await get(cluster, path_of(NODES, name="other"))
        claim = await get(cluster, path_of(NODE_CLAIMS, name="a-claim"))
        assert node
        assert other
        assert claim
        assert [FINALIZER in thing["metadata"].get("finalizers", ()) for thing in (node, claim, other)] == [
            True,
            True,
            False,
        ]


async def test_it_drains_for_five_seconds_at_least_and_takes_claim_and_instance_along() -> None:
    async with with_karpenter("a") as (cluster, _):
        began = await delete(cluster)
        await cluster.pace.clock.sleep(1)
        node = await get(cluster, path_of(NODES, name="a"))
        claim = await get(cluster, path_of(NODE_CLAIMS, name="a-claim"))
        assert node
        assert claim
        assert TAINT.items() <= node["spec"]["taints"][0].items()
        assert "deletionTimestamp" in claim["metadata"]
        drained = condition_of(claim, "Drained")
        assert drained
        assert (drained["status"], drained["reason"]) == ("Unknown", "Draining")
        assert 5.0 <= await gone_after(cluster, began) <= 12.0
        await cluster.pace.clock.sleep(6)
        assert await get(cluster, path_of(NODE_CLAIMS, name="a-claim")) is None
        states = {instance.node: instance.state for instance in cluster.cloud.instances}
        assert states == {"a": "terminated", "other": "running"}


async def test_groups_leave_one_after_another() -> None:
    async with with_karpenter("a") as (cluster, _):
        await cluster.create(pod("critical", "a", priorityClassName="system-cluster-critical"))
        await cluster.create(pod("plain", "a"))
        await quiet()
        await delete(cluster)
        await cluster.pace.clock.sleep(0.5)
        assert "deletionTimestamp" in pods(cluster)["plain"]["metadata"] if "plain" in pods(cluster) else True
        assert "deletionTimestamp" not in pods(cluster)["critical"]["metadata"]
        await cluster.until(lambda: "plain" not in pods(cluster))
        await cluster.pace.clock.sleep(1.5)
        assert "critical" not in pods(cluster) or "deletionTimestamp" in pods(cluster)["critical"]["metadata"]


async def test_a_pod_behind_a_spent_budget_is_tried_less_and_less_often() -> None:
    async with with_karpenter("a") as (cluster, _):
        await cluster.create(budget("web", minAvailable=1))
        await cluster.create(workload("Deployment", "web", 1, spec={"nodeSelector": {"kubernetes.io/hostname": "a"}}))
        await quiet()
        (name,) = pods(cluster)
        await delete(cluster)
        await cluster.pace.clock.sleep(30)
        assert list(pods(cluster)) == [name]
        assert ("FailedDraining", "Failed to drain node, 1 pods are waiting to be evicted") in await events(cluster)
        await patch(
            cluster, f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/web", {"spec": {"minAvailable": 0}}
        )
        freed = cluster.pace.clock.monotonic()
        await cluster.until(lambda: name not in pods(cluster) or "deletionTimestamp" in pods(cluster)[name]["metadata"])
        assert 1.0 < cluster.pace.clock.monotonic() - freed <= 10.0


async def test_protection_counts_from_the_start_of_the_pod_and_true_never_ends() -> None:
    async with with_karpenter("a") as (cluster, _):
        for name, value in (("long", "60s"), ("always", "true"), ("nonsense", "soon")):
            await cluster.create(pod(name, "a", annotations={"karpenter.sh/do-not-disrupt": value}))
        await quiet()
        await delete(cluster)
        await cluster.pace.clock.sleep(30)
        assert set(pods(cluster)) == {"long", "always"}
        await cluster.pace.clock.sleep(45)
        assert set(pods(cluster)) == {"always"}


async def test_deadlines_delete_what_is_left_with_what_time_is_left_and_late() -> None:
    async with with_karpenter("a", termination_grace_period="2m") as (cluster, _):
        await cluster.create(
            pod("held", "a", annotations={"karpenter.sh/do-not-disrupt": "true"}, terminationGracePeriodSeconds=30)
        )
        await quiet()
        began = await delete(cluster)
        await quiet()
        claim = await get(cluster, path_of(NODE_CLAIMS, name="a-claim"))
        assert claim
        assert DEADLINE in annotations_of(claim)
        await cluster.until(
            lambda: "held" not in pods(cluster) or "deletionTimestamp" in pods(cluster)["held"]["metadata"]
        )
        assert 89.0 <= cluster.pace.clock.monotonic() - began <= 101.0
        assert await gone_after(cluster, began) <= 135.0


async def test_a_killed_one_resumes_and_a_lost_lease_ends_its_process() -> None:
    async with with_karpenter("a") as (cluster, karpenter):
        await cluster.create(pod("held", "a", annotations={"karpenter.sh/do-not-disrupt": "true"}))
        await quiet()
        began = await delete(cluster)
        await cluster.pace.clock.sleep(3)
        karpenter.kill()
        await cluster.pace.clock.sleep(20)  # its Lease must run out
        assert karpenter.lives == 2
        lease = path_of(LEASES, LEASE_NAMESPACE, LEASE)
        stolen = {"holderIdentity": "thief_1", "renewTime": "2099-01-01T00:00:00.000000Z"}
        await patch(cluster, lease, {"spec": stolen})
        await cluster.pace.clock.sleep(15)
        assert karpenter.lives == 3
        await patch(cluster, lease, {"spec": {"holderIdentity": ""}})
        await patch(cluster, path_of(PODS, NAMESPACE, "held"), {"metadata": {"annotations": None}})
        assert await gone_after(cluster, began) < 60.0
