"""Termination of a node claim from its DELETE on: its nodes, its instance, itself; to the instant."""

from __future__ import annotations

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Refuse, Rule
from support.stage import (
    STOPS_AFTER_5,
    Stage,
    a_pod_manifest,
    instants,
    reasons,
    staged,
    the_settings,
    unregistered,
)

from gracectl.cloud.provider import ProviderUnavailable
from gracectl.model import names

CLAIM = ClaimSpec()
QUARTER = ClaimSpec(termination_grace_period="15m")


def finalizers_off(stage: Stage, resource: str) -> list[float]:
    """When the server took our finalizer off such objects."""
    writes = stage.transport.of("patch", resource)
    return [each.instant for each in writes if b'"remove"' in (each.request.body or b"") and each.status == 200]


# -- both end together -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted", ["claim", "node", "claim and node", "node and claim"])
async def test_node_and_claim_go_together_whichever_is_deleted(deleted: str) -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)], claim=CLAIM) as stage:
        async with stage.settled() as controller:
            for which in deleted.split(" and "):
                start = await (stage.delete_claim("n1-claim") if which == "claim" else stage.delete_node("n1"))
            assert await stage.until_gone("n1") - start == pytest.approx(5.0, abs=0.001)
            assert await stage.until_claims_gone("n1-claim") - start == pytest.approx(5.0, abs=0.001)
            assert instants(stage, "create", "pods/eviction", start) == [0.0]
            assert [verb for _, verb in stage.provider.calls] == ["terminate", "state"]
            off = [
                each.operation.plural
                for each in stage.transport.executed
                if each.operation.verb == "patch" and b'"remove"' in (each.request.body or b"")
            ]
            assert off == ["nodes", "nodeclaims"]
            assert stage.instance_state("n1") == "terminated"
            await stage.clock.sleep(0.001)
            assert (controller.under_way(), controller.claims_under_way()) == ((), ())
            (done,) = controller._manager.claims.registry.finished()
            assert {step: round(spent, 2) for step, spent in done.seconds.items() if spent > 0.01} == {"nodes": 5.0}
        assert "UnmanagedNodeClaimHeld" not in await reasons(stage, "n1-claim")


async def test_while_its_node_drains_the_claim_says_why() -> None:
    objects = [a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})]
    async with staged("n1", objects=objects, claim=CLAIM) as stage, stage.settled() as controller:
        await stage.delete_claim("n1-claim")
        await stage.clock.sleep(20)
        drained = stage.claim_condition("n1-claim", names.DRAINED)
        assert drained is not None
        assert (drained["status"], drained["reason"]) == ("False", "Draining")
        assert drained["message"].startswith("1 pod left: shop/job (protected by do-not-disrupt)")
        (progress,) = controller.claims_under_way()
        assert (progress.nodes, progress.step, progress.waits_for) == (
            ("n1",),
            "nodes",
            "waiting for its nodes: n1",
        )
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/job")
        await stage.until_claims_gone("n1-claim")


async def test_all_nodes_of_a_claim_are_gone_before_its_instance_ends() -> None:
    """Not when the first of them is drained."""
    async with staged("n2", claim=CLAIM) as stage:
        node = stage.node("n2")
        assert node is not None
        await stage.call(
            "POST", "/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {"providerID": node["spec"]["providerID"]}}
        )
        await stage.create(a_pod_manifest("a", "n2", behaviour={"stop-seconds": 9}))
        async with stage.settled() as controller:
            start = await stage.delete_claim("n2-claim")
            await stage.clock.sleep(0.1)
            (progress,) = controller.claims_under_way()
            assert progress.nodes == ("n1", "n2")
            assert all("deletionTimestamp" in each["metadata"] for each in stage.nodes())
            await stage.until_gone("n1", "n2")
            assert [round(each - start, 1) for each in stage.provider.instants_of("terminate")] == [
                pytest.approx(9.0, abs=1.1)
            ]
            assert await stage.until_claims_gone("n2-claim") == finalizers_off(stage, "nodes")[-1]
            assert len(stage.transport.of("delete", "nodes")) == 2


# -- the deadline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted", ["claim", "node"])
async def test_with_a_grace_period_the_deadline_and_its_event_are_on_both(deleted: str) -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)], claim=QUARTER) as stage:
        async with stage.settled() as controller:
            await stage.clock.sleep(10 - stage.clock.monotonic())
            await (stage.delete_claim("n1-claim") if deleted == "claim" else stage.delete_node("n1"))
            await stage.clock.sleep(1)
            for thing in (stage.node("n1"), stage.claim("n1-claim")):
                assert thing is not None
                assert thing["metadata"]["annotations"][names.TERMINATION_TIMESTAMP] == "2026-01-01T00:15:10Z"
            (progress,) = controller.claims_under_way()
            assert progress.deadline == progress.started + 900.0
            await stage.until_claims_gone("n1-claim")
        for name in ("n1", "n1-claim"):
            messages = [
                message for object_, reason, message in await stage.events() if (object_, reason) == (name, TGP)
            ]
            assert len(messages) == 1
            assert messages[0].startswith("ends by 2026-01-01T00:15:10Z (termination grace period 15m")


TGP = "TerminationGracePeriodExpiring"


async def test_a_claim_without_a_grace_period_has_that_of_the_group_of_its_node() -> None:
    groups = [
        {"selector": {"matchLabels": {"pool": "batch"}}, "terminationGracePeriod": "1h"},
        {"selector": {}, "terminationGracePeriod": "1m"},
    ]
    async with staged(settings=the_settings(nodeGroups=groups), cloud=CloudSettings(terminate_delay=30.0)) as stage:
        await stage.add_nodes("n1", claim=CLAIM, labels={"pool": "batch"})
        await stage.create_claim("other", unregistered())
        async with stage.settled() as controller:
            written = []
            for name in ("n1-claim", "other"):
                await stage.delete_claim(name)
                await stage.clock.sleep(0.1)
                written += [progress.deadline for progress in controller.claims_under_way() if progress.name == name]
            assert written == [NEW_YEAR_SECONDS + 3600.0]  # the other one never had an instance: it is gone
            assert "n1" in {progress.name for progress in controller.under_way()}
            await stage.until_gone("n1")
            await stage.until_claims_gone("n1-claim")
        deadlines = [message for object_, reason, message in await stage.events() if reason == TGP]
        assert {each.split(" (")[0] for each in deadlines} == {
            "ends by 2026-01-01T01:00:00Z",
            "ends by 2026-01-01T00:01:00Z",
        }


NEW_YEAR_SECONDS = 1_767_225_600.0


async def test_when_its_nodes_are_gone_their_deadline_stays() -> None:
    """And not that of the group which the claim's own labels would choose."""
    groups = [
        {"selector": {"matchLabels": {"pool": "batch"}}, "terminationGracePeriod": "1h"},
        {"selector": {}, "terminationGracePeriod": "1m"},
    ]
    async with staged("n1", claim=CLAIM, labels={"pool": "batch"}, settings=the_settings(nodeGroups=groups)) as stage:
        await stage.patch_claim("n1-claim", {"metadata": {"labels": {"pool": None}}})
        async with stage.settled() as controller:
            await stage.delete_claim("n1-claim")
            await stage.clock.sleep(1.0)
            stage.transport.before.add(Rule(fault=Refuse(403), method="PATCH", path="/nodeclaims/n1-claim$"))
            await stage.until_gone("n1")
            await stage.clock.sleep(0.5)
            (progress,) = controller.claims_under_way()
            assert progress.deadline == progress.started + 3600.0
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(0.1)
            assert [each.deadline for each in controller.claims_under_way()] == [progress.deadline]
            stage.transport.before.clear()
            await stage.until_claims_gone("n1-claim")


# -- claims without a node ---------------------------------------------------------------------------------------------


async def test_a_claim_that_was_never_launched_goes_at_once_and_the_provider_is_not_called() -> None:
    async with staged() as stage, stage.controller() as controller:
        await stage.create_claim("c")
        await stage.settle(controller)
        start = await stage.delete_claim("c")
        assert await stage.until_claims_gone("c") == start
        assert stage.provider.calls == []


async def test_the_node_of_a_claim_that_never_registered_is_not_deleted_but_its_instance_ends() -> None:
    """The Node object goes its own way: its kubelet is silent, its instance is gone."""
    async with staged("n1", claim=CLAIM, cloud=CloudSettings(terminate_delay=3.0)) as stage:
        await stage.patch_claim("n1-claim", {"status": unregistered()}, "/status")
        async with stage.settled() as controller:
            start = await stage.delete_claim("n1-claim")
            await stage.clock.sleep(1)
            (progress,) = controller.claims_under_way()
            assert (progress.nodes, progress.step) == ((), "instance")
            assert progress.waits_for.endswith("is ending")
            condition = stage.claim_condition("n1-claim", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert condition["status"] == "True"
            assert await stage.until_claims_gone("n1-claim") - start <= 3.0 + 4.0
            assert stage.instance_state("n1") == "terminated"
            assert stage.provider.calls[0] == (round(start, 3), "state")  # another client might have terminated it
            # Here the garbage collector deletes it, on the word of its owner reference.
            assert await stage.until_gone("n1") - start < 60.0
            assert stage.transport.of("delete", "nodes") == []
        assert (await reasons(stage, "n1-claim"))[-2:] == ["InstanceTerminating", "InstanceTerminated"]


async def test_a_node_that_never_registered_and_is_deleted_by_another_client_is_drained_first() -> None:
    async with staged("n1", claim=CLAIM) as stage:
        await stage.patch_claim("n1-claim", {"status": unregistered()}, "/status")
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.settled():
            start = await stage.delete_node("n1")
            assert await stage.until_claims_gone("n1-claim") - start == pytest.approx(5.0, abs=0.001)
            assert stage.provider.instants_of("terminate") == [pytest.approx(start + 5.0, abs=0.001)]


async def test_a_claim_whose_node_and_instance_are_gone_goes_without_requests() -> None:
    async with staged("n1", claim=CLAIM) as stage:
        stage.cluster.cloud.terminate(stage.instances["n1"])
        await stage.call("DELETE", "/api/v1/nodes/n1")
        async with stage.settled():
            start = await stage.delete_claim("n1-claim")
            assert await stage.until_claims_gone("n1-claim") == start
            assert stage.provider.calls == [(round(start, 3), "state")]


# -- the provider ------------------------------------------------------------------------------------------------------


async def test_a_node_that_another_client_releases_during_its_cordon_leaves_its_instance_to_the_claim() -> None:
    async with staged("n1", claim=CLAIM) as stage:
        stage.provider.moods.extend(ProviderUnavailable("throttled") for _ in range(7))
        async with stage.settled() as controller:
            cordon = Rule(fault=Latency(10.0, 10.0), method="PATCH", path="/nodes/n1")
            stage.transport.before.add(cordon)
            start = await stage.delete_claim("n1-claim")
            await stage.clock.sleep(1.0)
            await stage.patch_node("n1", {"metadata": {"finalizers": None}})
            assert stage.nodes() == []
            await stage.clock.sleep(11.0)
            assert [step.step for step in controller.claims_under_way()] == ["instance"]
            assert await stage.until_claims_gone("n1-claim") - start > 12.0
            assert stage.instance_state("n1") == "terminated"
