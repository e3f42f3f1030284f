"""Nodes are terminated as fast as their budget allows, whatever requests it; as a process, against any cluster."""

from __future__ import annotations

import signal

import pytest
from e2e_support.names import LABEL
from e2e_support.story import Story
from kubesim.server.api import JsonObject

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

TERMINABLE = {"metadata": {"labels": {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}}}
STOPS = {"stop-seconds": "1"}


def status_of(story: Story, budget: str) -> JsonObject:
    status: JsonObject = story.sees("NodeDisruptionBudget", budget)["status"]
    return status


async def test_labelled_nodes_are_terminated_one_by_one_under_their_budget(budget_story: Story) -> None:
    story = budget_story
    await story.controller()
    four = await story.nodes("a", "b", "c", "d")
    for name in four:
        await story.pod(f"on-{name[-1]}", on=name, behaviour=STOPS)
    budget = await story.node_budget("pool", maxUnavailable=1)
    assert status_of(story, budget)["disruptionsAllowed"] == 1
    for name in four[:3]:
        await story.patch("Node", name, TERMINABLE)
    await story.until_gone(*four[:3])
    assert story.most_ending() == 1
    await story.sight.until("the last one is counted", lambda: status_of(story, budget)["expectedNodes"] == 1)
    assert status_of(story, budget).get("disruptedNodes") in (None, {})


async def test_a_deleted_claim_waits_for_the_budget_of_its_node_over_a_kill(budget_story: Story) -> None:
    story = budget_story
    controller = await story.controller()
    first, second = await story.nodes("a", "b")
    await story.claim(first)
    budget = await story.node_budget("pool", minAvailable="100%")
    await story.delete("NodeClaim", f"{first}-claim")

    def says_why() -> bool:
        conditions = story.sees("NodeClaim", f"{first}-claim")["status"].get("conditions") or ()
        return any(each.get("reason") == "NodeDisruptionBudget" for each in conditions)

    await story.sight.until("the claim says what it waits for", says_why)
    controller.send(signal.SIGKILL)
    await controller.ended()
    await story.controller()
    await story.clock.sleep(2)
    assert "deletionTimestamp" not in story.sees("Node", first)["metadata"]
    await story.patch("NodeDisruptionBudget", budget, {"spec": {"minAvailable": "50%"}})
    await story.until_gone(first)
    assert story.sight.get("Node", second) is not None
    assert story.sees("Node", second)["metadata"]["labels"][LABEL] == story.run


async def test_a_deadline_stands_above_the_budget(budget_story: Story) -> None:
    story = budget_story
    await story.controller()
    (name,) = await story.nodes("a")
    await story.claim(name, terminationGracePeriod="6s")
    await story.node_budget("pool", maxUnavailable=0)
    node = story.sees("Node", name)
    await story.delete("NodeClaim", f"{name}-claim")
    await story.until_gone(name)
    assert node["metadata"]["name"] == name
