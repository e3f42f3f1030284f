"""A node and its claim are terminated together, by the deadline of the claim's termination grace period."""

from __future__ import annotations

import pytest
from e2e_support.deadlines import LATE, assert_deleted_in_time, deadline_of, finished_by_itself, gone, until_deadline
from e2e_support.story import Story
from kubesim.server.api import JsonObject

from gracectl.model import names
from gracectl.model.times import parse_time

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

PERIOD, GRACE = 12, 9
NEEDS = {"stop-seconds": "4"}
"""Seconds of the pod's grace that it needs: it stops by itself, unless it is deleted far too late."""


async def a_claim_and_a_pod_that_cannot_be_evicted(story: Story) -> tuple[str, JsonObject, JsonObject]:
    (node,) = await story.nodes("a")
    claim = await story.claim(node, terminationGracePeriod=f"{PERIOD}s")
    pod = await story.pod("held", on=node, behaviour=NEEDS, spec={"terminationGracePeriodSeconds": GRACE})
    await story.budget("spent", "held", minAvailable=1)
    return node, claim, pod


def assert_deleted_with_its_full_grace(story: Story, pod: JsonObject, deadline: float) -> None:
    assert_deleted_in_time(story, pod, deadline, GRACE)
    assert finished_by_itself(story, pod)


async def test_a_deleted_node_deletes_its_claim_and_both_are_terminated_by_the_deadline(claim_story: Story) -> None:
    story = claim_story
    await story.controller()
    name, claim, pod = await a_claim_and_a_pod_that_cannot_be_evicted(story)
    node = story.sees("Node", name)

    await story.delete("Node", name)
    deadline = await until_deadline(story, "NodeClaim", f"{name}-claim")
    assert await until_deadline(story, "Node", name) == deadline
    begun = story.sees("NodeClaim", f"{name}-claim")["metadata"]["deletionTimestamp"]
    assert deadline == parse_time(begun) + PERIOD
    reason = names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRING
    await story.sight.until(
        "both are told of it", lambda: story.events_about(node, reason) and story.events_about(claim, reason)
    )
    await story.sight.until(
        "the claim goes", lambda: story.sight.gone("NodeClaim", claim), seconds=PERIOD + story.at_most(LATE)
    )

    assert_deleted_with_its_full_grace(story, pod, deadline)
    assert gone(story, "Node", node).version < gone(story, "NodeClaim", claim).version
    assert await story.server_time() <= deadline + story.at_most(LATE)
    await story.sight.until(
        "the pod's owner is told", lambda: story.events_about(pod, names.EventReason.DELETED_FOR_DEADLINE)
    )


async def test_a_deleted_claim_deletes_its_node(claim_story: Story) -> None:
    story = claim_story
    await story.controller()
    name, claim, pod = await a_claim_and_a_pod_that_cannot_be_evicted(story)
    node = story.sees("Node", name)

    await story.delete("NodeClaim", f"{name}-claim")
    deadline = await until_deadline(story, "Node", name)
    assert deadline_of(story, "NodeClaim", f"{name}-claim") in (None, deadline)
    assert "deletionTimestamp" in story.sees("Node", name)["metadata"]
    await story.sight.until(
        "the claim goes", lambda: story.sight.gone("NodeClaim", claim), seconds=PERIOD + story.at_most(LATE)
    )

    assert_deleted_with_its_full_grace(story, pod, deadline)
    assert gone(story, "Node", node).version < gone(story, "NodeClaim", claim).version


async def test_a_claim_without_a_grace_period_is_waited_for(claim_story: Story) -> None:
    story = claim_story
    await story.controller()
    (name,) = await story.nodes("a")
    claim = await story.claim(name)
    pod = await story.pod("guarded", on=name, annotations={names.DO_NOT_DISRUPT: "true"})

    await story.delete("NodeClaim", f"{name}-claim")
    await story.sight.until(
        "the claim says what it waits for",
        lambda: any(
            each["type"] == names.DRAINED and "guarded" in each["message"]
            for each in story.sees("NodeClaim", f"{name}-claim")["status"].get("conditions", ())
        ),
    )
    assert deadline_of(story, "Node", name) is None
    assert story.sight.asked(pod) is None
    await story.patch("Pod", "guarded", {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}})
    await story.until_gone(name, seconds=story.at_most(2 * LATE))
    await story.sight.until("the claim goes", lambda: story.sight.gone("NodeClaim", claim), seconds=story.at_most(LATE))
