"""Stories about campaigns (NodeDrains): each to its end, whatever disturbs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from simulation.sieve.story import story
from support.campaigns import cancel, condition, counts, create_campaign, status, until_campaign
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, the_settings

from gracectl.model import names

Telling = AsyncGenerator[None, None]
QUICK = the_settings(voluntary={"maximumAtOnce": "100%", "waitForReplacement": False})


@story(settings=QUICK)
async def a_campaign_terminates_two_nodes_one_after_the_other(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2", "spare")
    await stage.create(a_workload("Deployment", "web", 4, behaviour={"ready-seconds": 0.4, "stop-seconds": 0.3}))
    yield
    await create_campaign(stage, nodeNames=["n1", "n2"], order="ByName")
    await until_campaign(stage, lambda: counts(stage).get("terminated") == 2)


# If it has not seen the node, it is forecast twice before it could begin.
@story(settings=QUICK, of_chance=frozenset({"Cordoned", "Draining", "Uncordoned"}))
async def a_campaign_skips_a_node_and_tries_it_again(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("fixed", "n1"), a_budget_manifest("fixed", maxUnavailable=0))
    yield
    await create_campaign(stage, nodeNames=["n1", "n2"], order="ByName", onUndrainable="Skip")
    await until_campaign(stage, lambda: bool(status(stage).get("completionTime")))
    assert counts(stage) == {"total": 2, "done": 1, "terminated": 1, "skipped": 1}


@story(settings=QUICK)
async def a_campaign_is_canceled(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2", "n3")
    await stage.create(a_pod_manifest("fixed", "n2"), a_budget_manifest("fixed", maxUnavailable=0))
    yield
    await create_campaign(stage, action="Drain", nodeNames=["n1", "n2", "n3"], order="ByName")
    await until_campaign(stage, lambda: counts(stage).get("drained") == 1 and counts(stage).get("inProgress") == 1)
    await until_campaign(stage, lambda: condition(stage, names.BLOCKED)[0] == "True")
    await cancel(stage)
    await until_campaign(stage, lambda: not stage.server.store.table("nodedrains.gracectl.io"))
