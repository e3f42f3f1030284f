"""Two controllers beside each other: one leads, the other one takes over; as processes, against any cluster."""

from __future__ import annotations

import signal
import sys
from typing import Any

import anyio
import msgspec
import pytest
from e2e_support.program import Program
from e2e_support.story import Story
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE

from gracectl.model.times import parse_time

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

LEADS = "this process leads"
SELDOM = {"leaseDurationSeconds": 120, "renewDeadlineSeconds": 110, "retryPeriodSeconds": 60}
"""A standby that does not watch the lease would look at it once a minute."""


async def lease(story: Story) -> JsonObject:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{story.namespace}/leases/gracectl"
    status, found = await story.api.call("GET", path)
    assert status == 200
    spec: JsonObject = found["spec"]
    return spec


async def two(story: Story, **lease: int) -> tuple[Program, Program]:
    """The leader, and the standby."""
    settings: dict[str, Any] = {"leaderElection": {"namespace": story.namespace, **lease}} if lease else {}
    first = await story.controller(**settings)
    await first.until_said(LEADS)
    second = await story.controller(**settings)
    await second.until_said("standby: ")
    return first, second


async def a_drain_in_the_middle(story: Story) -> tuple[str, list[JsonObject]]:
    """A node that is being drained one pod after the other, and these pods."""
    (leaving,) = await story.nodes("a")
    pods = await story.workload("Deployment", "web", 4, replicas=4, behaviour={"stop-seconds": "1"})
    await story.budget("web", "web", maxUnavailable=1)
    await story.nodes("refuge")
    await story.delete("Node", leaving)
    await story.sight.until("a pod is leaving", lambda: any(map(story.sight.asked, pods)))
    return leaving, pods


async def test_a_leader_hands_over_at_sigterm_in_the_middle_of_a_drain(story: Story) -> None:
    first, second = await two(story, **SELDOM)
    leaving, pods = await a_drain_in_the_middle(story)
    before = len(story.sight.journal)
    told = story.clock.monotonic()
    first.send(signal.SIGTERM)
    await second.until_said(LEADS)
    taken = story.clock.monotonic() - told
    assert await first.ended() == 0
    assert first.said("the lease is released")
    assert taken < SELDOM["retryPeriodSeconds"]
    await story.until_gone(leaving)
    assert story.sight.lowest_health(before, app="web") >= 3
    assert {pod["metadata"]["uid"] for pod in pods} == {
        entry["uid"] for one in (first, second) for entry in one.said("pod evicted")
    }
    found = await lease(story)
    assert (found["leaseTransitions"], found["holderIdentity"]) == (1, second.said(LEADS)[0]["identity"])


async def test_after_a_kill_the_standby_takes_over_when_the_lease_has_expired(story: Story) -> None:
    first, second = await two(story)
    leaving, _ = await a_drain_in_the_middle(story)
    before = len(story.sight.journal)
    last = await lease(story)
    first.send(signal.SIGKILL)
    await first.ended()
    while (now := await lease(story))["holderIdentity"] == last["holderIdentity"]:
        last = now
        await story.clock.sleep(0.1)
    await second.until_said(LEADS)
    assert 5 <= parse_time(now["acquireTime"]) - parse_time(last["renewTime"]) < story.at_most(10)
    await story.until_gone(leaving)
    assert story.sight.lowest_health(before, app="web") >= 3


async def test_a_paused_leader_finds_another_leader_and_stands_by(story: Story) -> None:
    first, second = await two(story)
    leaving, _ = await a_drain_in_the_middle(story)
    before = len(story.sight.journal)
    first.send(signal.SIGSTOP)
    await second.until_said(LEADS)
    first.send(signal.SIGCONT)
    await first.until_said("lost leadership")
    await first.until_said("standby: ")
    await story.until_gone(leaving)
    assert story.sight.lowest_health(before, app="web") >= 3
    assert first.exit_code is None
    second.send(signal.SIGTERM)
    assert await second.ended() == 0
    with anyio.fail_after(PATIENCE):
        while len(first.said(LEADS)) < 2:
            await story.clock.sleep(0.05)


async def test_status_shows_at_once_that_no_controller_leads(story: Story) -> None:
    first, second = await two(story)
    (leaving,) = await story.nodes("a")
    for one in (first, second):
        one.send(signal.SIGTERM)
        assert await one.ended() == 0
    await story.delete("Node", leaving)
    await story.clock.sleep(6)
    command = [sys.executable, "-m", "gracectl", "status", "--kubeconfig", str(story.target.kubeconfig)]
    config = story.folder / "settings-0.yaml"
    done = await anyio.run_process([*command, "--config", str(config), "-o", "json", leaving])
    told = msgspec.json.decode(done.stdout)
    assert (told["controller"]["state"], told["controller"]["lease"]) == ("none", f"{story.namespace}/gracectl")
    [warning] = told["nodes"][0]["warnings"]
    assert warning["kind"] == "NoController"
    assert "was released at" in warning["message"]
    await story.controller()
    await story.until_gone(leaving)
