"""Ends by the Machines of Cluster API: which one, when it is gone, and all that must not be taken for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import Refuse, Rule
from kubesim_support.accounts import as_admin, guarded, rule
from support.inprocess import InProcessTransport
from support.instances import DEFINITION, MACHINES, PLACE, ClusterApi, machine_definition, marks
from support.stage import Stage, staged

from gracectl.cloud.clusterapi import VERBS, ClusterApiProvider, MachineFinder, Scope
from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderRefused,
    ProviderSettings,
    ProviderUnavailable,
    UsesCluster,
    load_provider,
)
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.errors import NotLeading
from gracectl.kube.rbac import Permission
from gracectl.model import names
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import Fence

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SLOW = CloudSettings(terminate_delay=20.0)
RUNNING, ENDING, GONE = InstanceState.RUNNING, InstanceState.ENDING, InstanceState.GONE


class Site:
    """A stage with Cluster API, and the provider under test."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.capi = ClusterApi(stage)

    def provider(self, **options: Any) -> ClusterApiProvider:
        made = ClusterApiProvider(msgspec.convert(options, ClusterApiProvider.Options))
        made.use(KubeClient(self.stage.transport, self.stage.clock, settings=ClientSettings(page_size=2)))
        return made

    def id_of(self, node: str) -> str:
        node_object = self.stage.node(node)
        assert node_object is not None
        provider_id: str = node_object["spec"]["providerID"]
        return provider_id

    def asked(self, verb: str, resource: str = "machines.cluster.x-k8s.io") -> int:
        """How often the server was asked that."""
        return sum(
            operation.verb == verb and operation.plural == resource.partition(".")[0]
            for operation in (each.operation for each in self.stage.transport.executed)
        )


@asynccontextmanager
async def site(*nodes: str, definition: Any = DEFINITION, **options: Any) -> AsyncIterator[Site]:
    """These nodes, with a Machine each."""
    async with staged(*nodes, definitions=(definition,), **options) as stage:
        made = Site(stage)
        if "v1beta2" in [each["name"] for each in definition["spec"]["versions"] if each["served"]]:
            for node in nodes:
                await made.capi.add(node)
        yield made


# -- the life of one ---------------------------------------------------------------------------------------------------


async def test_the_life_of_a_machine() -> None:
    async with site("n1", "n2", cloud=SLOW) as there, there.capi.working():
        provider, id_ = there.provider(), there.id_of("n1")
        assert await provider.state(id_) is RUNNING
        await provider.terminate(id_)
        assert await provider.state(id_) is ENDING
        await provider.terminate(id_)  # idempotent
        assert there.asked("delete") == 1
        await there.stage.clock.sleep(30)
        assert there.stage.instance_state("n1") == "terminated"
        assert await provider.state(id_) is GONE
        with pytest.raises(InstanceGone, match="no Machine has providerID sim:///"):
            await provider.terminate(id_)
        assert there.stage.instance_state("n2") == "running"


async def test_the_deletion_carries_the_uid_of_the_machine_that_is_meant() -> None:
    async with site("n1", "n2") as there:
        machine = there.capi.machine("m-n1")
        assert machine is not None
        await there.provider().terminate(there.id_of("n1"))
        (deletion,) = there.stage.transport.of("delete", "machines")
        assert msgspec.json.decode(deletion.request.body or b"")["preconditions"] == {"uid": machine["metadata"]["uid"]}


@pytest.mark.parametrize(("options", "expected"), [
    ({}, {names.EXCLUDE_NODE_DRAINING, names.EXCLUDE_VOLUME_DETACH}),
    ({"excludeNodeDraining": False}, {names.EXCLUDE_VOLUME_DETACH}),
    ({"excludeNodeDraining": False, "excludeWaitForNodeVolumeDetach": False}, set()),
])  # fmt: skip
async def test_cluster_api_is_told_what_to_skip_before_deletion(options: dict[str, bool], expected: set[str]) -> None:
    async with site("n1", "n2") as there:
        await there.capi.patch("m-n1", {"metadata": {"annotations": {"mine": "kept"}}})
        await there.provider(**options).terminate(there.id_of("n1"))
        machine = there.capi.machine("m-n1")
        assert machine is not None
        assert machine["metadata"]["annotations"].keys() == expected | {"mine"}
        assert "deletionTimestamp" in machine["metadata"]


async def test_a_machine_of_another_node_that_is_there_is_not_deleted() -> None:
    async with site("n1", "n2") as there:
        provider, id_ = there.provider(), there.id_of("n1")
        await there.capi.patch("m-n1", {"status": {"nodeRef": {"name": "n1"}}}, "/status")
        with pytest.raises(ProviderRefused) as caught:
            await provider.terminate(id_, NodeIdentity("n2"))
        assert str(caught.value) == (
            "Machine fleet/m-n1 belongs to another node: n1, and not to n2; check spec.providerID of the node, which "
            "its kubelet has written; or delete node n1 if it is a leftover"
        )
        assert there.asked("delete") == 0
        await there.capi.patch("m-n1", {"status": {"nodeRef": {"name": "before"}}}, "/status")
        await provider.terminate(id_, NodeIdentity("n2"))  # it came back under another name, and the old node is gone
        assert there.asked("delete") == 1


async def test_a_machine_that_another_client_has_deleted_is_terminating_and_left_as_it_is() -> None:
    async with site("n1", "n2") as there:
        await there.stage.call("DELETE", f"{MACHINES}/m-n1")
        provider = there.provider()
        assert await provider.state(there.id_of("n1")) is ENDING
        await provider.terminate(there.id_of("n1"))
        assert (there.asked("patch"), there.asked("delete")) == (0, 0)


async def test_a_concurrent_write_is_no_failure() -> None:
    async with site("n1", "n2") as there:
        provider = there.provider()
        assert await provider.state(there.id_of("n1")) is RUNNING
        there.stage.transport.before.add(Rule(fault=Refuse(409), method="PATCH", count=2))
        await provider.terminate(there.id_of("n1"))
        assert await provider.state(there.id_of("n1")) is ENDING


async def test_it_is_found_by_one_list_and_then_asked_for_alone() -> None:
    async with site("n1", "n2", "n3", "n4", "n5") as there:
        provider = there.provider()
        async with anyio.create_task_group() as group:
            for node in ("n1", "n2", "n3"):
                group.start_soon(provider.state, there.id_of(node))
        once = there.asked("list")
        assert once == 3  # pages; the first caller has listed for all
        for _ in range(10):
            assert await provider.state(there.id_of("n1")) is RUNNING
        assert (there.asked("list"), there.asked("get")) == (once, 10)


async def test_an_older_cluster_serves_v1beta1() -> None:
    async with site(definition=machine_definition("v1beta1")) as there:
        await there.stage.add_nodes("n1", "n2")
        for node in ("n1", "n2"):
            body = {
                "apiVersion": "cluster.x-k8s.io/v1beta1",
                "kind": "Machine",
                "metadata": {"name": node, "finalizers": ["held"]},
                "spec": {"clusterName": "c1", "providerID": there.id_of(node)},
            }
            await there.stage.call("POST", MACHINES.replace("v1beta2", "v1beta1").replace(PLACE, "default"), body)
        provider = there.provider()
        await provider.terminate(there.id_of("n1"))
        assert await provider.state(there.id_of("n1")) is ENDING


# -- what is not there -------------------------------------------------------------------------------------------------


async def test_no_machine_for_a_node_that_cluster_api_has_made_is_gone() -> None:
    async with site("n1", "n2") as there:
        await there.capi.drop("m-n1")
        provider = there.provider()
        assert await provider.state(there.id_of("n1")) is GONE
        with pytest.raises(InstanceGone):
            await provider.terminate(there.id_of("n1"))


async def test_the_last_machine_of_a_cluster_is_gone_when_we_have_seen_it_end() -> None:
    async with site("n1") as there:
        provider, id_ = there.provider(), there.id_of("n1")
        await provider.terminate(id_)
        await there.capi.drop("m-n1")
        assert await provider.state(id_) is GONE
        assert await provider.state(id_) is GONE  # no list says so: it is remembered
        with pytest.raises(InstanceGone):
            await provider.terminate(id_)


async def test_an_answer_from_before_the_deletion_does_not_take_it_back() -> None:
    async with site("n1") as there:
        client = KubeClient(there.stage.transport, there.stage.clock)

        async def theirs() -> KubeClient:
            return client

        machines = MachineFinder(Scope(), theirs, lambda: client)
        before = await machines.find(there.id_of("n1"))
        assert before is not None
        machines.remember(msgspec.structs.replace(before, is_deleted=True))
        machines.remember(before)
        await there.capi.drop("m-n1")
        assert await machines.find(there.id_of("n1")) is None


async def test_a_cluster_without_any_machine_proves_nothing() -> None:
    async with site("n1") as there:
        await there.capi.drop("m-n1")
        with pytest.raises(ProviderRefused, match=r"of the 0 Machines in all namespaces none belongs .*kubeconfig"):
            await there.provider().state(there.id_of("n1"))


async def test_machines_of_another_cluster_prove_nothing() -> None:
    async with site("n1") as there:
        await there.capi.drop("m-n1")
        await there.capi.add_alone("foreign", providerID="aws:///eu-1a/i-9")
        with pytest.raises(ProviderRefused, match="of the 1 Machines"):
            await there.provider().terminate(there.id_of("n1"))


async def test_a_machine_that_has_vanished_without_a_deletion_has_to_be_proven_gone() -> None:
    """clusterctl move takes Machines from one management cluster to another."""
    async with site("n1", "n2") as there:
        provider = there.provider()
        assert await provider.state(there.id_of("n1")) is RUNNING
        await there.capi.drop("m-n1")
        await there.capi.drop("m-n2")
        with pytest.raises(ProviderRefused, match="are right for its Machines"):
            await provider.state(there.id_of("n1"))


async def test_one_that_was_paused_when_it_vanished_has_to_be_proven_gone() -> None:
    async with site("n1") as there:
        provider, id_ = there.provider(), there.id_of("n1")
        await provider.terminate(id_)
        await there.capi.patch("m-n1", {"metadata": {"annotations": {names.CLUSTER_API_PAUSED: ""}}})
        with pytest.raises(ProviderRefused, match="paused"):
            await provider.state(id_)
        await there.capi.patch("m-n1", {"metadata": {"finalizers": None}})
        with pytest.raises(ProviderRefused, match="of the 0 Machines"):
            await provider.state(id_)


@pytest.mark.parametrize(("options", "words"), [
    ({"namespace": "elsewhere"}, 'its namespace "fleet".*correct provider.options.namespace'),
    ({"clusterName": "c2"}, 'its clusterName "c1".*correct provider.options.clusterName'),
])  # fmt: skip
async def test_an_invalid_scope_is_reported_and_nothing_is_gone(options: dict[str, str], words: str) -> None:
    async with site("n1", "n2") as there:
        await there.capi.add_alone("other", place="elsewhere", providerID=there.id_of("n2"), clusterName="c2")
        with pytest.raises(ProviderRefused, match=words):
            await there.provider(**options).state(there.id_of("n1"))


async def test_the_right_scope_finds_it() -> None:
    async with site("n1", "n2") as there:
        provider = there.provider(namespace=PLACE, clusterName="c1")
        assert await provider.state(there.id_of("n1")) is RUNNING
        await there.capi.drop("m-n1")
        assert await provider.state(there.id_of("n1")) is GONE


async def test_a_node_that_cluster_api_has_not_made_is_not_gone() -> None:
    async with site("n1") as there:
        await there.stage.add_nodes("bare")
        with pytest.raises(
            ProviderRefused, match=r"node bare has no annotation cluster\.x-k8s\.io/machine:.*finalizer"
        ):
            await there.provider().terminate(there.id_of("bare"))


async def test_a_node_of_a_machine_pool_is_not_gone() -> None:
    async with site("n1") as there:
        await there.stage.add_nodes("pooled")
        await there.stage.patch_node("pooled", {"metadata": {"annotations": marks("", owner_kind="MachinePool")}})
        with pytest.raises(ProviderRefused, match="node pooled belongs to a MachinePool"):
            await there.provider().state(there.id_of("pooled"))


async def test_its_machine_that_has_no_provider_id_yet_is_not_gone() -> None:
    async with site("n1") as there:
        await there.stage.add_nodes("young")
        await there.stage.patch_node("young", {"metadata": {"annotations": marks("m-young")}})
        await there.capi.add_alone("m-young")
        with pytest.raises(ProviderUnavailable, match="Machine fleet/m-young of node young"):
            await there.provider().state(there.id_of("young"))


async def test_two_machines_with_one_provider_id_are_for_people_to_sort_out() -> None:
    async with site("n1", "n2") as there:
        await there.capi.add_alone("twin", providerID=there.id_of("n1"))
        provider = there.provider()
        for call in (provider.state, provider.terminate):
            with pytest.raises(
                ProviderRefused, match=r"several Machines .*: fleet/m-n1, fleet/twin; delete the wrong one"
            ):
                await call(there.id_of("n1"))
        assert await provider.state(there.id_of("n2")) is RUNNING


async def test_another_machine_of_the_same_name_is_another_one() -> None:
    async with site("n1", "n2") as there:
        provider, id_ = there.provider(), there.id_of("n1")
        await provider.terminate(id_)
        await there.capi.drop("m-n1")
        await there.capi.add_alone("m-n1", providerID="sim:///zone-a/i-new")
        assert await provider.state(id_) is GONE
        assert there.capi.machine("m-n1") is not None


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_a_paused_machine_is_refused_before_and_after_its_deletion() -> None:
    async with site("n1", "n2") as there:
        provider, id_ = there.provider(), there.id_of("n1")
        await there.capi.patch("m-n1", {"metadata": {"annotations": {names.CLUSTER_API_PAUSED: "true"}}})
        assert await provider.state(id_) is RUNNING
        with pytest.raises(ProviderRefused, match=r"remove the annotation cluster\.x-k8s\.io/paused from it"):
            await provider.terminate(id_)
        assert there.asked("delete") == 0
        await there.capi.patch("m-n1", {"metadata": {"annotations": {names.CLUSTER_API_PAUSED: None}}})
        await provider.terminate(id_)
        paused = {"conditions": [{"type": "Paused", "status": "True", "reason": "Paused", "message": "by its Cluster"}]}
        await there.capi.patch("m-n1", {"status": paused}, "/status")
        with pytest.raises(ProviderRefused, match="is being deleted, but paused: Cluster API does not act on it"):
            await provider.state(id_)


def says(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": type_, "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(("status", "words"), [
    (says("Deleting", "True", "DrainingNode", "Pod a/b: held"), "DrainingNode: Pod a/b: held"),
    ({"v1beta2": says("Deleting", "True", "WaitingForPreTerminateHook")}, "WaitingForPreTerminateHook"),
    (says("InfrastructureReady", "False", "Deleting", "wiping its disks"), "Deleting: wiping its disks"),
    ({"phase": "Deleting"}, "phase Deleting"), ({}, "Cluster API reports no reason"),
])  # fmt: skip
async def test_a_machine_that_does_not_end_is_reported_with_its_reason(status: dict[str, Any], words: str) -> None:
    async with site("n1", "n2") as there:
        provider, id_ = there.provider(stuckSeconds=120), there.id_of("n1")
        await provider.terminate(id_)
        await there.capi.patch("m-n1", {"status": status}, "/status")
        assert await provider.state(id_) is ENDING
        await there.stage.clock.sleep(119)
        assert await provider.state(id_) is ENDING
        await there.stage.clock.sleep(1)
        with pytest.raises(ProviderUnavailable, match=f"Machine fleet/m-n1 has been terminating for 2 min: {words}"):
            await provider.state(id_)
        await there.capi.drop("m-n1")
        assert await provider.state(id_) is GONE


async def test_a_cluster_without_cluster_api_is_refused_with_a_remedy() -> None:
    async with staged("n1", definitions=()) as stage:
        there = Site(stage)
        for call in (there.provider().state, there.provider().terminate):
            with pytest.raises(ProviderRefused, match=r"serves no machines\.cluster\.x-k8s\.io; .*kubeconfig"):
                await call(there.id_of("n1"))


async def test_a_definition_that_goes_away_does_not_make_instances_go_away() -> None:
    async with site("n1", "n2") as there:
        provider, id_ = there.provider(), there.id_of("n1")
        assert await provider.state(id_) is RUNNING
        await there.capi.drop("m-n1")
        await there.capi.drop("m-n2")
        await there.stage.call("DELETE", f"{DEFINITIONS}/machines.cluster.x-k8s.io")
        await there.stage.clock.sleep(10)
        with pytest.raises(ProviderUnavailable, match="does not serve"):
            await provider.state(id_)
        with pytest.raises(ProviderRefused, match="serves no machines"):
            await provider.state(id_)


async def test_missing_rights_are_refused_and_never_gone() -> None:
    clock = LoopClock()
    server = await guarded(clock, "gracectl", rule("get list", "nodes"))
    await as_admin(server, "POST", DEFINITIONS, DEFINITION)
    await clock.sleep(5)
    provider = ClusterApiProvider(ClusterApiProvider.Options())
    provider.use(KubeClient(InProcessTransport(server, clock, token="t"), clock))
    with pytest.raises(ProviderRefused, match=r"the verb list on machines .* its role needs get, list, patch, delete"):
        await provider.state("sim:///zone-a/i-1")


async def test_a_server_that_fails_is_unavailable() -> None:
    async with site("n1", "n2") as there:
        there.stage.transport.before.add(Rule(fault=Refuse(500), path="/machines"))
        provider = ClusterApiProvider(ClusterApiProvider.Options())
        once = ClientSettings(retry=RetrySettings(attempts=1))
        provider.use(KubeClient(there.stage.transport, there.stage.clock, settings=once))
        with pytest.raises(ProviderUnavailable, match="the server failed"):
            await provider.terminate(there.id_of("n1"))


async def test_that_we_may_not_write_is_passed_on() -> None:
    async with site("n1", "n2") as there:
        provider = there.provider()
        provider.use(KubeClient(there.stage.transport, there.stage.clock).fenced(Fence(there.stage.clock)))
        with pytest.raises(NotLeading):
            await provider.terminate(there.id_of("n1"))
        assert (there.asked("patch"), there.asked("delete")) == (0, 0)


# -- what it asks for --------------------------------------------------------------------------------------------------


def test_its_rights_are_those_of_its_scope_and_none_here_when_the_machines_are_elsewhere() -> None:
    def rights(**options: str) -> tuple[Permission, ...]:
        provider = load_provider(ProviderSettings("clusterapi", options))
        assert isinstance(provider, UsesCluster)
        return provider.rights()

    assert rights() == tuple(Permission(verb, "machines", "cluster.x-k8s.io") for verb in VERBS)
    assert rights(namespace="fleet")[0] == Permission("get", "machines", "cluster.x-k8s.io", namespace="fleet")
    assert rights(kubeconfig="/there") == rights(context="there") == ()


async def test_a_kubeconfig_that_is_not_there_is_refused() -> None:
    provider = ClusterApiProvider(ClusterApiProvider.Options(kubeconfig="/no/such/file"))
    with pytest.raises(ProviderRefused, match=r"management cluster of provider\.options\.kubeconfig: /no/such/file"):
        await provider.state("sim:///zone-a/i-1")
    await provider.aclose()
