"""Node claims that cannot be written, or not in time: their nodes are terminated, and no claim is forgotten."""

from __future__ import annotations

import pytest
from kubesim.controllers.kubelet import KubeletSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Fault, LateWatch, Partition, Refuse, Rule
from support.stage import (
    NOT_READY,
    STOPS_AFTER_5,
    a_pod_manifest,
    staged,
    the_settings,
)
from support.stories import START, asked_to_end, evictions, until

from gracectl.model import names

QUARTER = ClaimSpec(termination_grace_period="15m")
SILENT = KubeletSettings(heartbeat_seconds=100_000.0)
NOBODY_WRITES = [Partition(), Refuse(500), Refuse(403)]
IDS = ["silent", "failing", "forbidden"]


@pytest.mark.parametrize("fault", NOBODY_WRITES, ids=IDS)
async def test_a_claim_that_is_deleted_and_cannot_be_written_deletes_its_node(fault: Fault) -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)], claim=QUARTER) as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.settled():
            stage.transport.before.add(rule := Rule(fault=fault, method="PATCH", path="/nodeclaims"))
            await until(stage, 0.0)
            await stage.delete_claim("n1-claim")
            await until(stage, 15.0)
            assert [pod for pod, _ in evictions(stage)] == ["a"]
            await stage.until_gone("n1")
            (asked,) = asked_to_end(stage)
            assert 870.0 <= asked <= 901.0
            stage.transport.before.remove(rule)
            await stage.until_claims_gone("n1-claim")


@pytest.mark.parametrize("fault", NOBODY_WRITES, ids=IDS)
async def test_a_node_whose_claim_cannot_be_written_is_drained_wave_by_wave(fault: Fault) -> None:
    """Each look at the node would wait for the claim anew."""
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)], claim=QUARTER) as stage:
        await stage.create(a_pod_manifest("b", "n1", priorityClassName="system-node-critical", **STOPS_AFTER_5))
        async with stage.settled():
            stage.transport.before.add(rule := Rule(fault=fault, method="PATCH", path="/nodeclaims"))
            await until(stage, 0.0)
            await stage.delete_node("n1")
            assert await stage.until_gone("n1") - START <= 60.0
            assert [pod for pod, _ in evictions(stage)] == ["a", "b"]
            stage.transport.before.remove(rule)
            await stage.until_claims_gone("n1-claim")


async def test_a_claim_whose_lost_node_went_at_once_is_still_ours() -> None:
    """Its own labels say nothing, and the watch shows its deletion when the node is gone already."""
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("n1", claim=ClaimSpec(), settings=settings, kubelet=SILENT, node_grace_seconds=1e6) as stage:
        await stage.patch_node("n1", {"metadata": {"labels": {"pool": "mine"}}})
        async with stage.settled():
            await until(stage, 0.0)
            await stage.patch_node("n1", NOT_READY, "/status")
            stage.cluster.cloud.terminate(stage.instances["n1"])
            stage.transport.before.add(Rule(fault=LateWatch(3.0, 3.0), path="/nodeclaims"))
            await stage.delete_node("n1")
            await stage.until_gone("n1")
            await until(stage, 60.0)
            assert stage.claims() == []


async def test_claims_whose_writes_hang_keep_no_node_without_its_finalizer() -> None:
    """More of them than there are places of both kinds."""
    async with staged(*(f"n{number}" for number in range(40)), claim=ClaimSpec()) as stage:
        stage.transport.before.add(rule := Rule(fault=Partition(), method="PATCH", path="/nodeclaims"))
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(5.0)
            await stage.add_nodes("late")
            await stage.clock.sleep(0.5)
            late = stage.node("late")
            assert late is not None
            assert names.FINALIZER in late["metadata"]["finalizers"]
            stage.transport.before.remove(rule)
