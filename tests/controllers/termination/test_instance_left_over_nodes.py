"""Two nodes of one claim or instance, as when a machine comes back under another name: the old node goes alone."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Refuse, Rule
from kubesim.server.api import JsonObject
from support.disruption import TERMINABLE, lost_at
from support.stage import SILENT, STOPS_AFTER_5, Stage, a_pod_manifest, reasons, staged

from gracectl.model import names
from gracectl.model.times import format_time

CLAIM = ClaimSpec(termination_grace_period="1h")
QUARTER = 900.0
"""So long a node may be unhealthy."""


async def add_left_over(stage: Stage, name: str, *, has_provider_id: bool = True, is_ready: bool = False) -> None:
    """The object under which the machine of n2 was registered before; its claim names it to this day."""
    node = stage.node("n2")
    assert node is not None
    spec = {"providerID": node["spec"]["providerID"]} if has_provider_id else {}
    await stage.call("POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": spec})
    await report(stage, name, is_ready=is_ready)
    await stage.patch_claim("n2-claim", {"status": {"nodeName": name}}, "/status")


async def report(stage: Stage, name: str, *, is_ready: bool) -> None:
    """What a kubelet, or the node controller in its place, says of a node from now on."""
    status = "True" if is_ready else "Unknown"
    ready = {"type": "Ready", "status": status, "lastTransitionTime": format_time(stage.clock.now())}
    await stage.patch_node(name, {"status": {"conditions": [ready]}}, "/status")


def deleted(thing: JsonObject | None) -> bool:
    return thing is None or "deletionTimestamp" in thing["metadata"]


def lives(stage: Stage) -> bool:
    """Whether n2, its claim, its instance and its pod are untouched."""
    pods = [pod["metadata"]["name"] for pod in stage.pods_on("n2") if not deleted(pod)]
    is_there = not deleted(stage.node("n2")) and not deleted(stage.claim("n2-claim"))
    return is_there and stage.instance_state("n2") == "running" and pods == ["a"]


def terminations(stage: Stage) -> int:
    return len([entry for entry in stage.cluster.cloud.journal if entry.what == "shutting-down"])


@pytest.mark.parametrize("is_ready", [False, True])
@pytest.mark.parametrize("has_provider_id", [False, True])
async def test_a_left_over_node_goes_alone(has_provider_id: bool, is_ready: bool) -> None:
    async with staged("n2", objects=[a_pod_manifest("a", "n2", **STOPS_AFTER_5)], claim=CLAIM, kubelet=SILENT) as stage:
        async with stage.settled() as controller:
            await add_left_over(stage, "n1", has_provider_id=has_provider_id, is_ready=is_ready)
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.001)
            await stage.clock.sleep(60)
            assert lives(stage)
            assert stage.provider.instants_of("terminate") == []
            assert controller.claims_under_way() == ()
            node = stage.node("n2")
            assert node is not None
            assert names.TERMINATION_TIMESTAMP not in node["metadata"].get("annotations", {})
        assert "InstanceShared" in await reasons(stage, "n1")


@pytest.mark.parametrize("pause", [0.001, 60.0])
async def test_the_node_that_is_ready_goes_alone_until_the_left_over_one_is_deleted(pause: float) -> None:
    """Objects cannot tell the machine that came back from a copy of its providerID."""
    async with staged("n2", claim=CLAIM, kubelet=SILENT) as stage:
        await add_left_over(stage, "n1")
        async with stage.settled() as controller:
            await report(stage, "n1", is_ready=False)
            await stage.settle(controller)
            start = await stage.delete_node("n2")
            await stage.clock.sleep(pause)
            if pause > 2.0:
                assert stage.node("n2") is None
                assert stage.instance_state("n2") == "running"
                message = (
                    "instance kept: n1 uses the same instance; not Ready: if the node is left over, delete it, which "
                    "terminates the instance"
                )
                assert ("n2", "InstanceShared", message) in await stage.events()
            await stage.delete_node("n1")
            await stage.until_gone("n1", "n2")
            await stage.until_claims_gone("n2-claim")
            assert stage.clock.monotonic() - start < pause + 10.0
            assert stage.instance_state("n2") == "terminated"
            assert terminations(stage) == 1


@pytest.mark.parametrize("left_over", ["n1", "n3"])
@pytest.mark.parametrize("pause", [0.0, 0.005, 1.995, 2.005, 2.5])
async def test_when_the_other_one_is_deleted_as_well_the_instance_ends(pause: float, left_over: str) -> None:
    """However close to the end of the first: what comes first by name waits for the others."""
    async with staged("n2", claim=CLAIM, kubelet=SILENT) as stage:
        await add_left_over(stage, left_over)
        # Answers take 10 ms, so that a deletion meets a request that is under way.
        stage.transport.behind.add(Rule(fault=Latency(0.01, 0.01)))
        async with stage.settled():
            await stage.delete_node(left_over)
            await stage.clock.sleep(pause)
            await stage.delete_node("n2")
            await stage.until_gone(left_over, "n2")
            await stage.until_claims_gone("n2-claim")
            assert stage.instance_state("n2") == "terminated"
            assert terminations(stage) == 1


@pytest.mark.parametrize("claim", [None, CLAIM])
async def test_an_instance_is_not_left_to_a_node_that_goes_without_it_already(claim: ClaimSpec | None) -> None:
    """The finalizer of the first by name is on its way for long: the other one must not count on it."""
    async with staged("n2", claim=claim, kubelet=SILENT) as stage:
        node = stage.node("n2")
        assert node is not None
        body = {"metadata": {"name": "n1"}, "spec": {"providerID": node["spec"]["providerID"]}}
        await stage.call("POST", "/api/v1/nodes", body)
        await report(stage, "n1", is_ready=False)
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(1.0)
            stage.transport.before.add(Rule(fault=Latency(8.0, 8.0), method="PATCH", path="/nodes/n1$"))
            await stage.clock.sleep(2.0)
            await stage.delete_node("n2")
            await stage.until_gone("n1", "n2")
            assert stage.instance_state("n2") == "terminated"
            assert terminations(stage) == 1


@pytest.mark.parametrize("is_labelled", [False, True])
async def test_neither_its_health_nor_its_label_terminates_the_node_that_lives(is_labelled: bool) -> None:
    """Nothing was deleted by hand: a node that is left over is unhealthy for ever."""
    async with staged("n3", "n4", "n5", "n6") as stage:
        await stage.add_nodes("n2", claim=CLAIM)
        await stage.create(a_pod_manifest("a", "n2", **STOPS_AFTER_5))
        await add_left_over(stage, "n1")
        async with stage.settled():
            start = await lost_at(stage, "n1")
            if is_labelled:
                await stage.patch_node("n1", TERMINABLE)
                start = stage.clock.monotonic()
            took = await stage.until_gone("n1") - start
            assert took == pytest.approx(2.0 if is_labelled else QUARTER + 2.0, abs=0.01)
            await stage.clock.sleep(60)
            assert lives(stage)


async def test_a_claim_that_cannot_be_deleted_is_let_be_when_another_node_comes() -> None:
    objects = [a_pod_manifest("a", "n2", **STOPS_AFTER_5)]
    async with staged("n2", objects=objects, claim=CLAIM, kubelet=SILENT) as stage, stage.settled():
        stage.transport.before.add(Rule(fault=Refuse(403), method="DELETE", path="nodeclaims"))
        await stage.delete_node("n2")
        await stage.clock.sleep(1.0)
        await add_left_over(stage, "n1", is_ready=True)
        await stage.clock.sleep(0.5)
        stage.transport.before.clear()
        await stage.until_gone("n2")
        await stage.clock.sleep(60)
        assert not deleted(stage.claim("n2-claim"))
        assert not deleted(stage.node("n1"))
        assert terminations(stage) == 0
