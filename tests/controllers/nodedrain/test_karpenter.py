"""Campaigns over nodes of Karpenter: their NodeClaims are deleted, a few at a time, and Karpenter drains."""

from __future__ import annotations

from support.campaigns import condition, counts, create_campaign, states, until_campaign, until_complete
from support.disruption import deletions
from support.karpenter import karpenter_stage
from support.stage import the_settings

from gracectl.model import names


async def test_their_claims_are_deleted_one_after_the_other() -> None:
    settings = the_settings(voluntary={"maximumAtOnce": "100%"})
    async with karpenter_stage("k1", "k2", settings=settings) as (stage, _), stage.controller() as controller:
        await controller.wait_live()
        await create_campaign(stage, nodeNames=["k1", "k2"], order="ByName")
        most = 0
        while condition(stage, names.COMPLETE)[0] != "True":
            await stage.clock.sleep(0.25)
            going = [claim for claim in stage.claims() if "deletionTimestamp" in claim["metadata"]]
            most = max(most, len(going))
        assert most == 1
        assert [name for _, name in deletions(stage, "nodeclaims")] == ["k1-claim", "k2-claim"]
        assert deletions(stage) == []
        assert counts(stage) == {"total": 2, "done": 2, "terminated": 2}


async def test_they_are_not_drained_by_us() -> None:
    async with karpenter_stage("k1") as (stage, _), stage.controller() as controller:
        await controller.wait_live()
        await create_campaign(stage, action="Drain", nodeNames=["k1", "other"])
        await until_campaign(stage, lambda: condition(stage, names.FAILED)[0] == "True")
        assert states(stage) == {"k1": "Failed", "other": "Drained"}
        assert "Karpenter drains it" in condition(stage, names.FAILED)[2]
        node = stage.node("k1")
        assert node is not None
        assert not node["spec"].get("unschedulable")


async def test_one_that_is_being_terminated_counts() -> None:
    """Its claim was deleted before."""
    async with karpenter_stage("k1", "k2") as (stage, _), stage.controller() as controller:
        await controller.wait_live()
        await stage.delete_claim("k1-claim")
        await create_campaign(stage, nodeNames=["k1", "k2"])
        await until_complete(stage)
        assert [name for _, name in deletions(stage, "nodeclaims")] == ["k2-claim"]
