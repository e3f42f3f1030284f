"""Protected pods stay as long as their protection lasts, and not longer."""

from __future__ import annotations

import pytest
from e2e_support.deadlines import LATE, told_to_end
from e2e_support.story import Story

from gracectl.model import names
from gracectl.model.times import parse_time

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


async def test_do_not_disrupt_protects_its_own_pod_until_the_annotation_is_removed(story: Story) -> None:
    await story.controller()
    (leaving,) = await story.nodes("a")
    guarded = await story.pod("guarded", on=leaving, annotations={names.DO_NOT_DISRUPT: "true"})
    ordinary = await story.pod("ordinary", on=leaving)

    await story.delete("Node", leaving)
    await story.sight.until("the ordinary pod goes", lambda: story.sight.gone("Pod", ordinary))
    await story.sight.until(
        "the condition names the protected pod",
        lambda: "guarded" in story.condition(leaving, names.DRAINED).get("message", ""),
    )
    assert story.sight.asked(guarded) is None
    await story.patch("Pod", "guarded", {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}})
    await story.until_gone(leaving, seconds=story.at_most(5))


async def test_do_not_disrupt_by_duration_expires(story: Story) -> None:
    await story.controller()
    (leaving,) = await story.nodes("a")
    guarded = await story.pod("guarded", on=leaving)
    created = parse_time(guarded["metadata"]["creationTimestamp"])
    seconds = int(await story.server_time() - created) + 4
    await story.patch("Pod", "guarded", {"metadata": {"annotations": {names.DO_NOT_DISRUPT: f"{seconds}s"}}})

    await story.delete("Node", leaving)
    await story.until_gone(leaving)
    evicted, _ = told_to_end(story, guarded)
    assert 0 <= evicted - (created + seconds) <= story.at_most(LATE)


@pytest.mark.parametrize("where", ["labels", "annotations"])
async def test_do_not_evict_blocks_every_pod_of_the_node(story: Story, where: str) -> None:
    await story.controller()
    (leaving,) = await story.nodes("a")
    holder = await story.pod("holder", on=leaving)
    await story.patch("Pod", "holder", {"metadata": {where: {names.DO_NOT_EVICT: "true"}}})
    ordinary = await story.pod("ordinary", on=leaving)

    await story.delete("Node", leaving)
    await story.sight.until(
        "the condition names the pod that holds the node",
        lambda: "holder" in story.condition(leaving, names.DRAINED).get("message", ""),
    )
    await story.clock.sleep(0.5)
    assert story.sight.asked(holder) is None
    assert story.sight.asked(ordinary) is None
    await story.patch("Pod", "holder", {"metadata": {where: {names.DO_NOT_EVICT: None}}})
    await story.until_gone(leaving, seconds=story.at_most(5))
