"""Slots of the pace that campaigns ask for: each goes to the node that is next when it is granted."""

from __future__ import annotations

from kubesim.server.api import JsonObject
from support.campaigns import counts, create_campaign, states, until_campaign
from support.stage import a_pod_manifest, staged, the_settings

from gracectl.model import names

POOL = ["n0", "n1", "n2", "n3"]


def protected(node: str, duration: str) -> JsonObject:
    return a_pod_manifest(f"for-{duration}", node=node, annotations={names.DO_NOT_DISRUPT: duration})


async def test_a_node_that_others_precede_by_now_keeps_no_slot() -> None:
    """n1 is next and waits for a slot; then another protected pod makes it the slowest."""
    settings = the_settings(voluntary={"maximumAtOnce": 1, "waitForReplacement": False})
    async with staged(*POOL, settings=settings) as stage:
        await stage.create(a_pod_manifest("slow", node="n0", behaviour={"stop-seconds": 20}))
        for node, duration in (("n1", "60s"), ("n2", "80s"), ("n3", "100s")):
            await stage.create(protected(node, duration))
        async with stage.settled():
            await create_campaign(stage, maxConcurrent=2, onUndrainable="Skip", nodeNames=POOL)
            await until_campaign(stage, lambda: states(stage).get("n0") == "Draining", 10.0)
            await stage.create(protected("n1", "10m"))
            await stage.create(a_pod_manifest("late", node="n0"))  # the campaign looks again
            await until_campaign(stage, lambda: counts(stage).get("done") == 3, 200.0)
            assert states(stage)["n1"] == "Draining"
            await until_campaign(stage, lambda: counts(stage).get("done") == 4, 900.0)
