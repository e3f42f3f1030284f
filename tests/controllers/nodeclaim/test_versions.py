"""Clusters without node claims, with their older version only, and those that get or lose them meanwhile."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import DropWatch, Refuse, Rule
from kubesim.server.api import Request
from support.stage import (
    CLAIMS,
    STOPS_AFTER_5,
    a_pod_manifest,
    finalizers_of,
    staged,
    the_settings,
    unregistered,
    without_v1,
)

from gracectl.cli.crds import shipped_definitions
from gracectl.model import names

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OLD = CLAIMS.replace("/v1/", "/v1beta1/")


async def test_a_cluster_without_the_definition_is_like_one_without_claims() -> None:
    groups = [{"selector": {}, "terminationGracePeriod": "1h"}]
    async with staged("n1", definitions=(), settings=the_settings(nodeGroups=groups)) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.settled() as controller:
            assert {each.name: each.live for each in controller.statistics().caches}["claims"]
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(5.0, abs=0.001)
            await stage.clock.sleep(600)
            asked = [each for each in stage.transport.executed if each.operation.plural == "nodeclaims"]
            assert {each.operation.verb for each in asked} == {"list"}
            assert len(asked) <= 2 * 21  # both versions, twice a minute


async def test_claims_that_come_later_are_found_within_a_minute() -> None:
    async with staged("n0", definitions=()) as stage, stage.settled():
        await stage.clock.sleep(100)
        for definition in shipped_definitions():
            await stage.call("POST", DEFINITIONS, definition)
        await stage.clock.sleep(1)
        installed = stage.clock.monotonic()
        await stage.add_nodes("n1", claim=ClaimSpec())
        await stage.until_claims(lambda: names.FINALIZER in finalizers_of(stage.claims()[0]))
        assert stage.clock.monotonic() - installed <= 60.0
        start = await stage.delete_claim("n1-claim")
        assert await stage.until_claims_gone("n1-claim") - start == pytest.approx(2.0, abs=0.001)
        assert [node["metadata"]["name"] for node in stage.nodes()] == ["n0"]


async def test_where_only_v1beta1_is_served_it_is_read_and_written() -> None:
    async with staged("n1", definitions=(without_v1(),)) as stage:
        node = stage.node("n1")
        assert node is not None
        reference = {"apiVersion": "example.com/v1", "kind": "Machine", "name": "default"}
        await stage.call(
            "POST",
            OLD,
            {
                "apiVersion": "karpenter.sh/v1beta1",
                "kind": "NodeClaim",
                "metadata": {"name": "c"},
                "spec": {"nodeClassRef": reference, "requirements": [], "terminationGracePeriod": "15m"},
            },
        )
        status = {"status": {"providerID": node["spec"]["providerID"], "nodeName": "n1"}}
        await stage.call("PATCH", f"{OLD}/c/status", status, "application/merge-patch+json")
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.settled():
            await stage.call("DELETE", f"{OLD}/c")
            start = stage.clock.monotonic()
            await stage.clock.sleep(1)
            claim = stage.claim("c")
            assert claim is not None
            assert names.TERMINATION_TIMESTAMP in claim["metadata"]["annotations"]
            assert await stage.until_claims_gone("c") - start == pytest.approx(5.0, abs=0.001)
            ours = [each for each in stage.transport.executed if each.operation.plural == "nodeclaims"]
            assert {each.request.path.split("/")[3] for each in ours if each.status < 400} == {"v1beta1"}
            await stage.clock.sleep(1)
        events = (await stage.call("GET", "/api/v1/events"))["items"]
        versions = {each["involvedObject"]["apiVersion"] for each in events if each["involvedObject"]["name"] == "c"}
        assert versions == {"karpenter.sh/v1beta1"}


async def test_claims_that_the_server_forgets_for_a_while_hold_up_no_node_and_are_not_lost() -> None:
    async with staged("n1", claim=ClaimSpec(termination_grace_period="15m")) as stage:
        await stage.create(a_pod_manifest("a", "n1", behaviour={"stop-seconds": 25}))
        async with stage.settled() as controller:
            start = await stage.delete_claim("n1-claim")
            await stage.clock.sleep(1)
            stage.transport.before.add(Rule(fault=DropWatch(0.0), path="nodeclaims", count=1))
            stage.transport.before.add(Rule(fault=Refuse(404), path="nodeclaims"))
            assert await stage.until_gone("n1") - start == pytest.approx(25.0, abs=0.001)
            await stage.clock.sleep(100)
            assert controller.statistics().caches[-1].objects == 0
            assert controller.claims_under_way() == ()
            stage.transport.before.clear()
            back = stage.clock.monotonic()
            assert await stage.until_claims_gone("n1-claim") - back <= 31.0
            assert len(stage.provider.instants_of("terminate")) == 1


async def test_a_server_that_forgets_its_claims_but_once_takes_none_away() -> None:
    async with staged("n1", claim=ClaimSpec(termination_grace_period="15m")) as stage, stage.settled() as controller:
        stage.transport.before.add(Rule(fault=DropWatch(0.0), path="nodeclaims", count=1))
        stage.transport.before.add(Rule(fault=Refuse(404), path="nodeclaims", count=3))
        await stage.patch_claim("n1-claim", {"metadata": {"labels": {"seen": "later"}}})
        await stage.clock.sleep(20)
        assert stage.transport.before.striking(Request(method="GET", path=CLAIMS)) == []  # all three have struck
        assert [each.objects for each in controller.statistics().caches if each.name == "claims"] == [1]
        await stage.clock.sleep(40)
        start = await stage.delete_node("n1")
        assert await stage.until_claims_gone("n1-claim") - start == pytest.approx(2.0, abs=0.001)


async def test_a_version_that_is_served_no_longer_is_written_no_longer() -> None:
    async with staged("n1", claim=ClaimSpec()) as stage:
        stage.cluster.cloud.protect(stage.instances["n1"])
        await stage.patch_claim("n1-claim", {"status": unregistered()}, "/status")
        async with stage.settled():
            await stage.delete_claim("n1-claim")
            await stage.clock.sleep(10)
            only_old = {"spec": {"versions": without_v1()["spec"]["versions"]}}
            await stage.call(
                "PATCH", f"{DEFINITIONS}/nodeclaims.karpenter.sh", only_old, "application/merge-patch+json"
            )
            await stage.clock.sleep(60)
            stage.cluster.cloud.unprotect(stage.instances["n1"])
            await stage.until_claims_gone("n1-claim")
            assert stage.transport.of("patch", "nodeclaims")[-1].request.path.startswith(OLD)


async def test_deleting_the_definition_deletes_all_claims() -> None:
    """Not recommended: but then everything is terminated gracefully."""
    objects = [a_pod_manifest("a", "n1", **STOPS_AFTER_5)]
    async with staged("n1", objects=objects, claim=ClaimSpec()) as stage, stage.settled() as controller:
        await stage.call("DELETE", f"{DEFINITIONS}/nodeclaims.karpenter.sh")
        await stage.until_gone("n1")
        await stage.until_claims_gone("n1-claim")
        assert [each.status for each in stage.evictions] == [201]
        assert stage.instance_state("n1") == "terminated"
        await stage.clock.sleep(120)
        assert controller.statistics().caches[-1].live
