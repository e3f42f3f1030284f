"""Which claims are managed, and what blocks their termination."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import LateWatch, Refuse, Rule
from support.stage import (
    STOPS_AFTER_5,
    a_pod_manifest,
    finalizers_of,
    reasons,
    staged,
    the_settings,
    unregistered,
)

from gracectl.cloud.provider import ProviderUnavailable
from gracectl.model import names

CLAIM = ClaimSpec()
QUARTER = ClaimSpec(termination_grace_period="15m")

# -- which claims ------------------------------------------------------------------------------------------------------


async def test_claims_that_are_not_managed_are_left_alone() -> None:
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("n1", claim=ClaimSpec(spec={}), settings=settings) as stage:
        await stage.create_claim("held", annotations={}, labels={"pool": "other"})
        await stage.patch_claim("held", {"metadata": {"finalizers": [names.FINALIZER]}})
        await stage.create_claim("mine", labels={"pool": "mine"})
        await stage.add_nodes("n2", labels={"pool": "mine"}, claim=CLAIM)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(5)
            kept = {each["metadata"]["name"]: bool(finalizers_of(each)) for each in stage.claims()}
            assert kept == {"n1-claim": False, "held": True, "mine": True, "n2-claim": True}
            await stage.delete_claim("held")
            await stage.clock.sleep(60)
            assert stage.claim("held") is not None
            assert controller.claims_under_way() == ()
        assert await reasons(stage, "held") == ["UnmanagedNodeClaimHeld"]


async def test_a_claim_is_managed_as_soon_as_its_node_is() -> None:
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("n1", claim=CLAIM, settings=settings) as stage:
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(5)
            assert finalizers_of(stage.claims()[0]) == []
            await stage.patch_node("n1", {"metadata": {"labels": {"pool": "mine"}}})
            await stage.settle(controller)
            # When the node is gone, nothing says so any more but what was written on the way.
            await stage.delete_claim("n1-claim")
            await stage.clock.sleep(1.0)
            stage.transport.before.add(Rule(fault=Refuse(403), method="PATCH", path="/nodeclaims/n1-claim$"))
            await stage.until_gone("n1")
            await stage.clock.sleep(0.2)
            assert stage.claim("n1-claim") is not None
        stage.transport.before.clear()
        async with stage.controller() as controller:
            await stage.until_claims_gone("n1-claim")


async def test_finalizers_of_others_stay_on_the_claim() -> None:
    async with staged("n1", claim=CLAIM) as stage, stage.settled() as controller:
        await stage.patch_claim("n1-claim", {"metadata": {"finalizers": ["other.io/hold", names.FINALIZER]}})
        await stage.delete_claim("n1-claim")
        await stage.until_gone("n1")
        await stage.clock.sleep(30)
        claim = stage.claim("n1-claim")
        assert claim is not None
        assert finalizers_of(claim) == ["other.io/hold"]
        assert controller.claims_under_way() == ()


async def test_a_claim_recreated_under_the_same_name_is_another_claim() -> None:
    async with staged() as stage:
        await stage.create_claim("c", unregistered(providerID="sim:///zone-a/i-first"))
        stage.cluster.cloud.create("i-first", "x")
        stage.provider.moods.extend([ProviderUnavailable("busy")] * 100)
        async with stage.settled() as controller:
            await stage.delete_claim("c")
            await stage.clock.sleep(3)
            await stage.patch_claim("c", {"metadata": {"finalizers": []}})  # forced by hand
            stage.cluster.cloud.create("i-second", "x")
            await stage.create_claim("c", {"providerID": "sim:///zone-a/i-second"})
            calls = len(stage.provider.calls)
            await stage.clock.sleep(100)
            assert controller.claims_under_way() == ()
            assert len(stage.provider.calls) == calls
            assert {each.state for each in stage.cluster.cloud.instances} == {"running"}
            claim = stage.claim("c")
            assert claim is not None
            assert "deletionTimestamp" not in claim["metadata"]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_a_node_of_several_claims_has_none_and_one_of_them_may_go_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)], claim=QUARTER) as stage:
        claim = stage.claim("n1-claim")
        assert claim is not None
        twin = {key: claim["status"][key] for key in ("providerID", "nodeName")}
        await stage.create_claim("twin", twin)
        await stage.create_claim("triplet", twin)
        async with stage.settled():
            start = await stage.delete_claim("twin")
            assert await stage.until_claims_gone("twin") == start
            await stage.clock.sleep(10)
            node = stage.node("n1")
            assert node is not None
            assert "deletionTimestamp" not in node["metadata"]
            assert stage.provider.calls == []
            await stage.delete_node("n1")
            await stage.until_gone("n1")
            await stage.clock.sleep(10)
            assert {each["metadata"]["name"] for each in stage.claims()} == {"n1-claim", "triplet"}
            assert not any("deletionTimestamp" in each["metadata"] for each in stage.claims())
            for name in ("n1-claim", "triplet"):
                await stage.delete_claim(name)
            await stage.until_claims_gone("n1-claim", "triplet")
            assert len(stage.provider.instants_of("terminate")) == 1
        messages = [message for object_, reason, message in await stage.events() if reason == "SeveralNodeClaims"]
        # An Event counts what is told again; the log must not be told with every look.
        assert sum("have this node" in record.getMessage() for record in caplog.records) == 1
        assert any("n1-claim, triplet" in message and "delete all but one" in message for message in messages)
        assert "TerminationGracePeriodExpiring" not in await reasons(stage, "n1")


async def test_a_claim_that_may_not_be_deleted_stops_neither_drain_nor_deadline_and_makes_an_event() -> None:
    async with staged("n1", claim=ClaimSpec(termination_grace_period="60s")) as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, **STOPS_AFTER_5))
        stage.transport.before.add(Rule(fault=Refuse(403), method="DELETE", path="nodeclaims"))
        async with stage.settled() as controller:
            start = await stage.delete_node("n1")
            await stage.clock.sleep(100)
            assert stage.instance_state("n1") == "terminated"
            assert stage.provider.instants_of("terminate")[0] <= start + 60.0
            (progress,) = controller.under_way()
            assert (progress.step, progress.waits_for) == ("finalizer", "node claim n1-claim cannot be deleted")
            assert len([each for each in stage.transport.executed if each.operation.verb == "delete"]) <= 1
            stage.transport.before.clear()
            freed = stage.clock.monotonic()
            assert await stage.until_claims_gone("n1-claim") - freed <= 5.0
            await stage.until_gone("n1")
        for name in ("n1", "n1-claim"):
            assert "NodeClaimDeletionFailed" in await reasons(stage, name)


async def test_a_node_that_may_not_be_deleted_makes_an_event_on_the_claim_and_is_retried() -> None:
    async with staged("n1", claim=CLAIM) as stage:
        stage.transport.before.add(Rule(fault=Refuse(403), method="DELETE", path="nodes"))
        async with stage.settled():
            await stage.delete_claim("n1-claim")
            await stage.clock.sleep(30)
            condition = stage.claim_condition("n1-claim", names.DRAINED)
            assert condition is not None
            assert (condition["status"], condition["reason"]) == ("False", "NodeDeletionFailed")
            assert condition["message"].startswith("deletion of node n1 failed: ")
            assert stage.provider.calls == []
            stage.transport.before.clear()
            freed = stage.clock.monotonic()
            assert await stage.until_claims_gone("n1-claim") - freed <= 12.1
        assert "NodeDeletionFailed" in await reasons(stage, "n1-claim")


async def test_a_node_that_the_watch_has_not_shown_yet_keeps_its_instance() -> None:
    """Nodes and claims are watched apart; that of nodes is eight seconds behind here."""
    async with staged() as stage, stage.controller() as controller:
        await controller.wait_live()
        stage.transport.before.add(Rule(fault=LateWatch(8.0, 8.0), path="/nodes"))
        await stage.add_nodes("n1", claim=CLAIM)
        await stage.until_claims(lambda: names.FINALIZER in finalizers_of(stage.claims()[0]))
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        start = await stage.delete_claim("n1-claim")
        await stage.clock.sleep(5)
        assert stage.provider.calls == []
        (progress,) = controller.claims_under_way()
        assert progress.waits_for == "waiting for the watch to show node n1"
        await stage.until_claims_gone("n1-claim")
        assert stage.provider.instants_of("terminate")[0] >= start + 13.0
        assert [each.status for each in stage.evictions] == [201]


async def test_a_node_without_finalizer_gets_it_before_it_is_deleted() -> None:
    """Its claim was deleted before our finalizer came: a DELETE would take it away at once, pods and all."""
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)], claim=CLAIM) as stage:
        await stage.patch_claim("n1-claim", {"metadata": {"finalizers": [names.FINALIZER]}})
        await stage.delete_claim("n1-claim")
        async with stage.controller() as controller:
            await controller.wait_live()
            start = stage.clock.monotonic()
            assert await stage.until_gone("n1") - start == pytest.approx(5.0, abs=0.01)
            await stage.until_claims_gone("n1-claim")
        assert [each.status for each in stage.evictions] == [201]


async def test_a_claim_without_finalizer_gets_it_before_it_is_deleted() -> None:
    """Its clock must stand until its node is gone."""
    async with staged("n1", claim=QUARTER) as stage:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.patch_node("n1", {"metadata": {"finalizers": [names.FINALIZER]}})
        await stage.delete_node("n1")
        # The keeper is quicker, but does not succeed at once.
        stage.transport.before.add(Rule(fault=Refuse(403), method="PATCH", path="nodeclaims", count=1))
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(10)
            claim = stage.claim("n1-claim")
            assert claim is not None
            assert "deletionTimestamp" in claim["metadata"]
            assert names.FINALIZER in finalizers_of(claim)
            await stage.call("DELETE", "/api/v1/namespaces/shop/pods/a")
            await stage.until_gone("n1")
            await stage.until_claims_gone("n1-claim")


async def test_a_node_that_came_back_under_its_name_is_not_the_one_that_is_deleted() -> None:
    async with staged("n1", claim=CLAIM) as stage:
        async with stage.settled():
            await stage.clock.sleep(100)
            stage.transport.before.add(Rule(fault=LateWatch(5.0, 5.0), path="/nodes"))
            await stage.patch_node("n1", {"metadata": {"finalizers": []}})
            await stage.call("DELETE", "/api/v1/nodes/n1")
            await stage.add_nodes("n1")
            await stage.delete_claim("n1-claim")
            await stage.until_claims_gone("n1-claim")
            await stage.clock.sleep(60)
            node = stage.node("n1")
            assert node is not None
            assert "deletionTimestamp" not in node["metadata"]
            assert stage.instance_state("n1") == "running"
            deletions = stage.transport.of("delete", "nodes")
            assert [each.status for each in deletions] == [409]
        assert "NodeDeletionFailed" not in await reasons(stage, "n1-claim")


async def test_what_a_claim_says_beyond_our_understanding_survives_its_end() -> None:
    odd = {"resources": {"requests": {"cpu": "0.1000", "example.com/odd": "12e3"}}}
    async with staged("n1", claim=ClaimSpec(termination_grace_period="15m", spec=odd)) as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.patch_claim("n1-claim", {"status": {"capacity": {"example.com/odd": "0.50"}}}, "/status")
        (before,) = stage.claims()
        async with stage.settled():
            await stage.delete_claim("n1-claim")
            await stage.clock.sleep(60)
            (after,) = stage.claims()
            assert after["spec"] == before["spec"]
            assert after["spec"]["resources"] == odd["resources"]
            assert {**after["status"], "conditions": 0} == {**before["status"], "conditions": 0}
            ours = {each["type"] for each in after["status"]["conditions"]}
            assert {each["type"] for each in before["status"]["conditions"]} | {names.DRAINED} == ours
