"""What is read around the pods of a node for warnings: little, and without failing for a missing permission."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.faults import Refuse, Rule
from kubesim_support.accounts import account_token, grant, rule
from support.clients import a_client, named
from support.inprocess import InProcessTransport
from support.stage import NAMESPACE, Stage, a_pod_manifest, a_workload, staged

from gracectl.inspect.surroundings import read_surroundings
from gracectl.inspect.watcher import snapshot
from gracectl.kube.client import KubeClient
from gracectl.policy.surroundings import Surroundings

NAMESPACED = f"/api/v1/namespaces/{NAMESPACE}"


async def around(stage: Stage, client: KubeClient | None = None) -> Surroundings:
    """Around the pods of n1."""
    cluster = await snapshot(a_client(stage), named("n1"))
    stage.transport.executed.clear()
    return await read_surroundings(client or a_client(stage), cluster, ("n1",))


async def a_local_volume(stage: Stage) -> dict[str, Any]:
    """A pod of n1 with one; its manifest."""
    affinity = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "/mnt"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [affinity]}},
        "claimRef": {"namespace": NAMESPACE, "name": "data"},
    }
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "volumeName": "pv",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    await stage.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "pv"}, "spec": volume})
    await stage.call("POST", f"{NAMESPACED}/persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": claim})
    pod = a_pod_manifest("db-0", "n1")
    pod["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    return pod


async def test_only_what_the_pods_name_is_read() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("other", "n1")]) as stage:
        await stage.create(await a_local_volume(stage))
        service: dict[str, Any] = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": {"app": "x"}}
        inner: dict[str, Any] = {"selector": {"app": "x"}}
        for name, spec in {"front": service, "inner": inner}.items():
            body = {"metadata": {"name": name}, "spec": {**spec, "ports": [{"port": 80}]}}
            await stage.call("POST", f"{NAMESPACED}/services", body)
        surroundings = await around(stage)
        assert {key: volume.name for key, volume in surroundings.volumes.items()} == {(NAMESPACE, "data"): "pv"}
        assert [each.full_name for each in surroundings.services] == [f"{NAMESPACE}/front"]
        assert [each.node.name for each in surroundings.others or ()] == ["n2"]
        assert (surroundings.missing, surroundings.note) == ((), "")
        asked = sorted(str(each.operation) for each in stage.transport.executed)
        assert asked == [
            f"get persistentvolumeclaims {NAMESPACE}/data",
            "get persistentvolumes pv",
            "list nodes",
            f"list pods in {NAMESPACE}",
            f"list replicasets.apps in {NAMESPACE}",
            f"list services in {NAMESPACE}",
            f"list statefulsets.apps in {NAMESPACE}",
        ]


async def test_a_drain_from_the_command_reads_no_other_nodes() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("other", "n1")]) as stage:
        await stage.create(await a_local_volume(stage))
        cluster = await snapshot(a_client(stage), named("n1"))
        stage.transport.executed.clear()
        surroundings = await read_surroundings(a_client(stage), cluster, ("n1",), has_others=False)
        assert (list(surroundings.volumes), surroundings.others) == ([(NAMESPACE, "data")], None)
        assert "list nodes" not in {str(each.operation) for each in stage.transport.executed}


async def test_many_claims_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gracectl.inspect.surroundings.MANY_CLAIMS", 0)
    async with staged("n1", "n2", objects=[a_pod_manifest("other", "n1")]) as stage:
        await stage.create(await a_local_volume(stage))
        surroundings = await around(stage)
        assert {key: volume.name for key, volume in surroundings.volumes.items()} == {(NAMESPACE, "data"): "pv"}
        assert {each.operation.verb for each in stage.transport.executed} == {"list"}


async def test_an_error_of_the_server_fails_nothing() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("other", "n1")]) as stage:
        cluster = await snapshot(a_client(stage), named("n1"))
        stage.transport.before.add(Rule(fault=Refuse(422), path="/services"))
        surroundings = await read_surroundings(a_client(stage), cluster, ("n1",))
        assert surroundings.missing == ()
        assert surroundings.note.startswith(f"not checked: list services in {NAMESPACE}: ")


async def test_a_node_without_pods_costs_nothing() -> None:
    async with staged("n1", "n2") as stage:
        await around(stage)
        assert stage.transport.executed == []


async def test_what_may_not_be_read_is_reported_and_fails_nothing() -> None:
    async with staged("n1", objects=[a_pod_manifest("other", "n1")]) as stage:
        await stage.create(await a_local_volume(stage))
        token = await account_token(stage.server, "reader")
        account = {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}
        await grant(stage.server, account, rule("list", "nodes pods"))
        transport = InProcessTransport(stage.server, stage.clock, token=token)
        surroundings = await around(stage, KubeClient(transport, stage.clock))
        assert surroundings.note == (
            "not checked: missing permissions: get persistentvolumeclaims, list replicasets.apps, list services, "
            "list statefulsets.apps"
        )


async def test_of_a_large_cluster_only_owners_and_namespaces_of_the_pods_are_listed() -> None:
    async with staged("n1") as stage:
        await stage.create(a_workload("Deployment", "web", 1), a_pod_manifest("alone", "n1"))
        for number in range(12):
            await stage.call("POST", "/api/v1/namespaces", {"metadata": {"name": f"team-{number}"}})
            pod = a_pod_manifest("a", "n1")
            pod["metadata"]["namespace"] = f"team-{number}"
            await stage.call("POST", f"/api/v1/namespaces/team-{number}/pods", pod)
        cluster = await snapshot(a_client(stage), named("n1"))
        stage.transport.executed.clear()
        found = await read_surroundings(a_client(stage), cluster, ("n1",), has_others=False)
        (owner,) = {pod.controller for pod in cluster.pods_on("n1") if pod.controller is not None}
        asked = [(each.operation.plural, each.operation.namespace, dict(each.request.query).get("fieldSelector"))
                 for each in stage.transport.executed]  # fmt: skip
        assert [each for each in asked if not each[1]] == []
        replica_sets = [each for each in asked if each[0] == "replicasets"]
        assert replica_sets == [("replicasets", NAMESPACE, f"metadata.name={owner.name}")]
        assert list(found.workloads) == [owner.uid]
