"""Several nodes or claims stand for one instance: what ends must not end the machine of what lives on."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Rule
from kubesim.server.api import JsonObject
from support.disruption import TERMINABLE
from support.stage import SILENT, Stage, a_pod_manifest, reasons, staged, unregistered
from support.stories import asked_to_end, delete_at_start, deletions, draining, until, with_grace_period

from gracectl.cloud.provider import NodeIdentity
from gracectl.model import names
from gracectl.model.times import format_time

PROTECTED = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"ignores-sigterm": "true"}}


async def add_left_over(stage: Stage, name: str, instance_of: str, **metadata: JsonObject) -> None:
    """The object under which a machine was registered before it came back under another name."""
    node = stage.node(instance_of)
    assert node is not None
    body = {"metadata": {"name": name, **metadata}, "spec": {"providerID": node["spec"]["providerID"]}}
    await stage.call("POST", "/api/v1/nodes", body)


@pytest.mark.parametrize("grace_period", ["0s", "60s"])
async def test_a_deadline_of_the_old_object_is_none_of_the_machine(grace_period: str) -> None:
    async with staged("n2", settings=with_grace_period(grace_period)) as stage:
        await add_left_over(stage, "n1", "n2")
        await stage.create(a_pod_manifest("a", "n2"))
        await stage.call("POST", "/api/v1/namespaces/shop/pods", a_pod_manifest("stuck", "n1", **PROTECTED))
        async with draining(stage, "n1"):
            await stage.until_gone("n1")
            assert asked_to_end(stage) == []
            assert stage.instance_state("n2") == "running"
            assert "stuck" in {name for name, _, _ in deletions(stage)}
        assert "InstanceShared" in await reasons(stage, "n1")


async def test_the_claim_of_the_old_object_ends_not_the_machine_of_the_new_one() -> None:
    """It names its node only, so the new one is not its own."""
    async with staged("n2") as stage:
        await add_left_over(stage, "n1", "n2")
        await stage.create_claim("old", {"nodeName": "n1"})
        await stage.create(a_pod_manifest("a", "n2"))
        async with draining(stage, "n1"):
            await stage.until_claims_gone("old")
            await until(stage, 100.0)
            assert stage.node("n1") is None
            assert stage.instance_state("n2") == "running"
            assert [pod["metadata"]["name"] for pod in stage.pods_on("n2")] == ["a"]


async def test_the_pods_of_a_namesake_are_left_alone_by_a_walk_that_has_begun_before() -> None:
    """The node is gone and registered anew while its cordon is on the way; its pods are bound to the name."""
    async with staged("n1", settings=with_grace_period("1s"), node_grace_seconds=1e6) as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        async with stage.settled() as controller:
            await until(stage, -1.0)
            node = stage.node("n1")
            assert node is not None
            stage.transport.behind.add(Rule(fault=Latency(0.5, 0.5), method="PATCH", path="/nodes/n1$"))
            await delete_at_start(stage, "n1")
            await until(stage, 0.7)
            await stage.patch_node("n1", {"metadata": {"finalizers": []}})
            body = {"metadata": {"name": "n1"}, "spec": {"providerID": node["spec"]["providerID"]}}
            await stage.call("POST", "/api/v1/nodes", body)
            await until(stage, 30.0)
            assert controller.under_way() == ()
            assert stage.evictions == []
            assert deletions(stage) == []
            assert asked_to_end(stage) == []


async def test_of_two_nodes_that_end_together_the_first_goes_as_soon_as_the_other_has_gone() -> None:
    async with staged("n2") as stage:
        await add_left_over(stage, "n1", "n2")
        await stage.patch_node("n1", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "/status")
        await stage.create(a_pod_manifest("a", "n2", behaviour={"stop-seconds": 20}))
        async with draining(stage, "n1", "n2"):
            await until(stage, 10.0)
            assert asked_to_end(stage) == []
            await stage.until_gone("n2")
            await stage.clock.sleep(1.0)
            assert stage.node("n1") is None
            assert len(asked_to_end(stage)) == 1


async def test_another_spelling_of_a_providerid_is_the_same_instance() -> None:
    """A kubelet may write any providerID on its own node: an instance of another zone is none that exists."""
    async with staged("victim", "n2", objects=[a_pod_manifest("a", "victim")]) as stage:
        victim = f"sim:///zone-b/{stage.instances['victim']}"
        await stage.call("POST", "/api/v1/nodes", {"metadata": {"name": "attacker"}, "spec": {"providerID": victim}})
        async with stage.settled():
            await stage.patch_node("attacker", TERMINABLE)
            await stage.until_gone("attacker")
            await stage.clock.sleep(60)
            assert asked_to_end(stage) == []
            assert stage.instance_state("victim") == "running"
            assert [pod["metadata"]["name"] for pod in stage.pods_on("victim")] == ["a"]
        messages = [message for name, reason, message in await stage.events() if (name, reason) == SHARED]
        assert len(messages) == 1
        assert messages == ["instance kept: victim uses the same instance"]


SHARED = ("attacker", "InstanceShared")


@pytest.mark.parametrize("trigger", ["delete", "label"])
@pytest.mark.parametrize("claim", [None, ClaimSpec(termination_grace_period="1h")])
async def test_a_copied_providerid_ends_no_instance_whose_node_is_not_ready(
    claim: ClaimSpec | None, trigger: str
) -> None:
    """A kubelet copies name, addresses and providerID of a machine that misses its heartbeats for a minute."""
    async with staged("n3", "n4", kubelet=SILENT) as stage:
        await stage.add_nodes("victim", claim=claim)
        await stage.create(a_pod_manifest("a", "victim"))
        copied = {"spec": {"providerID": f"sim:///zone-b/{stage.instances['victim']}"}}
        await stage.call("POST", "/api/v1/nodes", {"metadata": {"name": "attacker"}, **copied})
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "addresses": ADDRESSES}
        await stage.patch_node("attacker", {"status": ready}, "/status")
        async with stage.settled() as controller:
            unknown = {"type": "Ready", "status": "Unknown", "lastTransitionTime": format_time(stage.clock.now())}
            await stage.patch_node("victim", {"status": {"conditions": [unknown]}}, "/status")
            await stage.settle(controller)
            start = stage.clock.monotonic()
            if trigger == "delete":
                await stage.delete_node("attacker")
            else:
                await stage.patch_node("attacker", TERMINABLE)
            assert await stage.until_gone("attacker") - start == pytest.approx(2.0, abs=0.01)
            await stage.clock.sleep(60)
            assert asked_to_end(stage) == []
            assert stage.instance_state("victim") == "running"
            for each in (stage.node("victim"), *stage.claims()):
                assert each is not None
                assert "deletionTimestamp" not in each["metadata"]
            assert [pod["metadata"]["name"] for pod in stage.pods_on("victim")] == ["a"]
        assert "InstanceShared" in await reasons(stage, "attacker")


async def test_the_provider_is_told_of_the_claim_and_of_the_other_nodes_of_its_instance() -> None:
    async with staged("n2", claim=ClaimSpec(), kubelet=SILENT) as stage:
        await add_left_over(stage, "n1", "n2")
        # A finalizer of another keeps the second node, so that the first one is overdue.
        await stage.patch_node("n2", {"metadata": {"finalizers": ["other.io/hold", names.FINALIZER]}})
        async with stage.settled():
            await stage.delete_claim("n2-claim")
            await stage.clock.sleep(60.0)
            assert {each and (each.claim, each.conflicts) for each in stage.provider.told} <= WITH_CONFLICTS
            assert stage.provider.told


WITH_CONFLICTS = {("n2-claim", ()), ("n2-claim", ("n1",)), ("n2-claim", ("n2",))}


async def test_the_provider_is_told_of_the_node_whose_instance_it_ends() -> None:
    async with staged("n1") as stage, stage.settled():
        await stage.patch_node("n1", {"status": {"addresses": ADDRESSES}}, "/status")
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert stage.provider.told == [NodeIdentity("n1", ("10.0.0.7", "n1.local"))]


ADDRESSES = [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "n1.local"}]


async def test_the_provider_is_told_of_no_node_where_the_claim_names_the_instance() -> None:
    async with staged() as stage, stage.controller() as controller:
        stage.cluster.cloud.create("i-1", "x")
        await stage.create_claim("c", unregistered(providerID="sim:///zone-a/i-1"))
        await stage.settle(controller)
        await stage.delete_claim("c")
        await stage.until_claims_gone("c")
        assert stage.provider.told == [None]
