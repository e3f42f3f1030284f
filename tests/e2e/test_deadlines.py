"""Plain nodes with a deadline: set by their group, tightened by an annotation, kept over restarts."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from e2e_support.deadlines import LATE, assert_deleted_in_time, deadline_of, told_to_end, until_deadline
from e2e_support.names import LABEL
from e2e_support.story import Story
from kubesim_support.kubectl import Kubectl, needs_kubectl

from gracectl.model import names
from gracectl.model.times import format_time, parse_time

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

FOR_EVER = {names.DO_NOT_DISRUPT: "true"}


def group_with(story: Story, period: str) -> list[dict[str, Any]]:
    """`nodeGroups` that give all nodes of the story this termination grace period."""
    return [{"selector": {"matchLabels": {LABEL: story.run}}, "terminationGracePeriod": period}]


async def test_a_protected_pod_of_a_plain_node_stays_until_its_grace_before_the_deadline(story: Story) -> None:
    await story.controller(nodeGroups=group_with(story, "7s"))
    (name,) = await story.nodes("a")
    node = story.sees("Node", name)
    guarded = await story.pod("guarded", on=name, annotations=FOR_EVER, spec={"terminationGracePeriodSeconds": 2})
    ordinary = await story.pod("ordinary", on=name)

    await story.delete("Node", name)
    deadline = await until_deadline(story, "Node", name)
    assert deadline == parse_time(story.sees("Node", name)["metadata"]["deletionTimestamp"]) + 7
    reason = names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRING
    await story.sight.until("people are told of the deadline", lambda: story.events_about(node, reason))
    await story.until_gone(name, seconds=7 + story.at_most(LATE))

    asked, _ = told_to_end(story, ordinary)
    assert asked < told_to_end(story, guarded)[0]
    assert_deleted_in_time(story, guarded, deadline, grace=2)
    assert await story.server_time() <= deadline + story.at_most(LATE)


@needs_kubectl
async def test_an_annotation_tightens_a_deadline_and_never_loosens_it(story: Story) -> None:
    await story.controller(nodeGroups=group_with(story, "1h"))
    (name,) = await story.nodes("a")
    guarded = await story.pod("guarded", on=name, annotations=FOR_EVER, spec={"terminationGracePeriodSeconds": 2})
    kubectl = Kubectl(story.target.kubeconfig, story.folder)

    async def annotate(at: float) -> None:
        await kubectl("annotate", "--overwrite", "node", name, f"{names.TERMINATION_TIMESTAMP}={format_time(at)}")

    await story.delete("Node", name)
    far = await until_deadline(story, "Node", name)
    assert story.sight.asked(guarded) is None
    soon = story.at_most(8)  # kubectl has to start twice before
    near = int(await story.server_time() + soon)
    await annotate(near)
    await annotate(far + 3600)
    late = story.at_most(LATE)
    await story.sight.until("the tighter one is back", lambda: deadline_of(story, "Node", name) == near, seconds=late)
    await story.until_gone(name, seconds=soon + late)

    assert_deleted_in_time(story, guarded, near, grace=2)
    assert await story.server_time() <= near + late


async def test_a_controller_restarted_after_the_deadline_deletes_at_once(story: Story) -> None:
    groups = group_with(story, "5s")
    first = await story.controller(nodeGroups=groups)
    (name,) = await story.nodes("a")
    guarded = await story.pod("guarded", on=name, annotations=FOR_EVER, spec={"terminationGracePeriodSeconds": 1})

    await story.delete("Node", name)
    deadline = await until_deadline(story, "Node", name)
    first.send(signal.SIGKILL)
    await first.ended()
    while await story.server_time() <= deadline + 1:
        await story.clock.sleep(0.2)
    assert story.sight.asked(guarded) is None
    assert deadline_of(story, "Node", name) == deadline

    # As another group would have it: what is written counts.
    second = await story.controller(nodeGroups=group_with(story, "1h"))
    await second.until_said("node is being terminated")
    await story.until_gone(name, seconds=story.at_most(LATE))
    at, grace = told_to_end(story, guarded)
    assert at > deadline
    assert grace == 1
