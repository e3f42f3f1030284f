"""Claims of ReplicaSets: which pods they release and adopt, and which of too many pods goes first."""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.objects import controller_of, labels_of
from kubesim.controllers.paths import PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, path_of
from kubesim.controllers.victims import victims
from kubesim.faults import Refuse, Rule
from kubesim.server.api import JsonObject
from kubesim.values import format_time
from kubesim_support.clusters import NAMESPACE, get, patch, pod, quiet, running, workload

pytestmark = pytest.mark.anyio

NOW = 1_000_000.0


async def owners(cluster: EmbeddedCluster) -> dict[str, str]:
    """Names of the controllers, by pod."""
    await cluster.pace.clock.sleep(1)
    await quiet()
    return {
        pod_object["metadata"]["name"]: (controller_of(pod_object) or {}).get("name", "")
        for pod_object in cluster.pods()
    }


async def label(cluster: EmbeddedCluster, name: str, **labels: str | None) -> None:
    await patch(cluster, path_of(PODS, NAMESPACE, name), {"metadata": {"labels": labels}})


async def test_a_replication_controller_releases_and_adopts_too() -> None:
    async with running("a") as cluster:
        template = {"metadata": {"labels": {"app": "rc"}}, "spec": {"containers": [{"name": "c", "image": "pause"}]}}
        spec = {"replicas": 1, "selector": {"app": "rc"}, "template": template}
        metadata = {"name": "rc", "namespace": NAMESPACE}
        await cluster.create({"apiVersion": "v1", "kind": "ReplicationController", "metadata": metadata, "spec": spec})
        (first,) = await owners(cluster)
        await label(cluster, first, app="other")
        owned = await owners(cluster)
        assert owned.pop(first) == ""
        assert list(owned.values()) == ["rc"]
        await patch(cluster, path_of(REPLICATION_CONTROLLERS, NAMESPACE, "rc"), {"spec": {"replicas": 2}})
        await label(cluster, first, app="rc")
        assert list((await owners(cluster)).values()) == ["rc", "rc"]


async def test_a_new_replica_set_adopts_orphans_that_were_there_before() -> None:
    async with running("a") as cluster:
        for name, app in (("one", "web"), ("two", "web"), ("other", "db")):
            await cluster.create(pod(name, "a", {"app": app}))
        await quiet()
        await cluster.create(workload("ReplicaSet", "web", 2))
        assert await owners(cluster) == {"one": "web", "two": "web", "other": ""}


async def test_what_was_refused_is_claimed_later() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("ReplicaSet", "web", 1))
        (first,) = await owners(cluster)
        await label(cluster, first, app="other")
        rule = Rule(fault=Refuse(500), method="PATCH", path=f"/pods/{first}", count=2)
        cluster.server.faults.add(rule)
        await cluster.pace.clock.sleep(10)
        owned = await owners(cluster)
        assert (cluster.server.faults.struck(rule), len(owned), owned[first]) == (2, 2, "")


async def test_a_terminating_replica_set_releases_nothing() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("ReplicaSet", "web", 1))
        (first,) = await owners(cluster)
        path = path_of(REPLICA_SETS, NAMESPACE, "web")
        await patch(cluster, path, {"metadata": {"finalizers": ["test/hold"]}})
        await cluster.api.call("DELETE", path, {"propagationPolicy": "Orphan"})
        await label(cluster, first, app="other")
        await owners(cluster)
        pod_object = await get(cluster, path_of(PODS, NAMESPACE, first))
        assert pod_object is not None
        assert labels_of(pod_object)["app"] == "other"
        assert len(cluster.pods()) == 1


# -- which goes first


def replica(
    name: str, *, ready: float | None = 100.0, age: float = 100.0, node: str = "a", cost: str = ""
) -> JsonObject:
    """A pod that has been Ready and exists for that many seconds; its uid is its name."""
    conditions = [{"type": "Ready", "status": "False"}]
    if ready is not None:
        conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": format_time(NOW - ready)}]
    annotations = {"controller.kubernetes.io/pod-deletion-cost": cost} if cost else {}
    created = format_time(NOW - age)
    return {
        "metadata": {"name": name, "uid": name, "creationTimestamp": created, "annotations": annotations},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Running" if node else "Pending", "conditions": conditions},
    }


@pytest.mark.parametrize(
    ("pods", "together", "order"),
    [
        pytest.param([replica("b", cost="1"), replica("a", node="", ready=None)], {}, "ab", id="unbound before cost"),
        pytest.param([replica("b"), replica("a", ready=None, cost="9")], {}, "ab", id="not Ready before cost"),
        pytest.param([replica("a", ready=9, cost="1"), replica("b", ready=900)], {}, "ba", id="cost before time"),
        pytest.param([replica("a", node="x"), replica("b", node="y")], {"y": 2}, "ba", id="crowded node first"),
        pytest.param([replica("a", ready=900), replica("b", ready=90)], {}, "ba", id="Ready for less time first"),
        pytest.param([replica("b", ready=900), replica("a", ready=800)], {}, "ab", id="about as long: the uid decides"),
        pytest.param([replica("a", ready=800), replica("b", ready=900)], {}, "ab", id="though the other is older"),
        pytest.param([replica("a", age=900), replica("b", age=90)], {}, "ba", id="equally long Ready: young first"),
    ],
)
async def test_order_of_victims(pods: list[JsonObject], together: dict[str, int], order: str) -> None:
    assert "".join(victim["metadata"]["name"] for victim in victims(pods, NOW, together)) == order
