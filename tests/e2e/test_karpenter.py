"""Next to Karpenter: its drains with and without assistance, and what is said of them; the real one, or a model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e_support.karpenter import a_karpenter, is_real, karpenters_kinds, pooled, writers, writers_of
from e2e_support.story import Story, told
from e2e_support.target import Target
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

NUMBERS = count(1)
ASSIST: dict[str, Any] = {"assist": {"karpenter": True}}
TAINT = "karpenter.sh/disrupted"
GRACECTL = "gracectl"
"""Field manager of all that the controller writes."""
LONG = 4 * PATIENCE
"""Seconds for what Karpenter does at its own pace, after its Lease has run out."""


@pytest.fixture(scope="module")
def karpenters(target: Target, request: pytest.FixtureRequest) -> Iterator[None]:
    """The cluster serves what Karpenter needs. The model needs claims, which are lent for all stories of the run."""
    if not is_real():
        request.getfixturevalue("node_claims")
    with karpenters_kinds(target) if is_real() else nullcontext():
        yield


@pytest.fixture
async def story(target: Target, karpenters: None, tmp_path: Path) -> AsyncIterator[Story]:
    """A story that sees its NodeClaims."""
    async with told(target, f"karpenter-{next(NUMBERS)}", tmp_path, with_claims=True) as story:
        yield story


async def chain(story: Story, replicas: int = 6) -> list[JsonObject]:
    """Pods under one budget, on the nodes that are there by now; then a node on which there is room."""
    pods = await story.workload("Deployment", "web", replicas, replicas=replicas)
    await story.budget("web", "web", maxUnavailable=1)
    await story.nodes("refuge", managed=False)
    return pods


async def until_drained(story: Story, nodes: list[str]) -> None:
    await story.until_gone(*nodes, seconds=LONG)
    await story.sight.until(
        "their claims are gone", lambda: all(story.sight.get("NodeClaim", each) is None for each in nodes), seconds=LONG
    )


def lowest(story: Story) -> int:
    return story.sight.lowest_health(0, app="web")


async def test_with_assistance_budgets_are_kept_and_nothing_is_written_to_karpenters_objects(story: Story) -> None:
    async with a_karpenter(story):
        nodes = await pooled(story, "a", "b")
        pods = await chain(story)
        wire = await story.wire()
        controller = await story.controller(through=wire, **ASSIST)
        await controller.until_said("this process leads")
        since = len(story.sight.journal)
        await story.delete("Node", *nodes)
        await until_drained(story, nodes)
    assert story.sight.lowest_health(since, app="web") >= len(pods) - 1
    assert wire.agreed
    assert len(wire.agreed) == len(set(wire.agreed))
    assert GRACECTL not in writers(story, "Node", "NodeClaim")


async def test_each_owner_terminates_its_own_nodes_and_karpenter_works_on_without_gracectl(story: Story) -> None:
    async with a_karpenter(story):
        theirs = await pooled(story, "a", "b")
        await story.pod("web", on=theirs[0])
        controller = await story.controller()
        await controller.until_said("this process leads")
        (ours,) = await story.nodes("c")
        (finalizer,) = story.sees("Node", ours)["metadata"]["finalizers"]
        assert finalizer == (names.OWN_FINALIZER if is_real() else names.FINALIZER)  # the model has no NodePools
        await story.delete("Node", theirs[0], ours)
        await story.until_gone(ours)
        await until_drained(story, theirs[:1])
        controller.send(signal.SIGTERM)
        await controller.ended()
        await story.delete("NodeClaim", theirs[1])
        await until_drained(story, theirs[1:])
    assert writers_of(story, *theirs).isdisjoint({GRACECTL})


async def command(story: Story, *arguments: str) -> str:
    """What a command prints that must succeed."""
    program = [sys.executable, "-m", "gracectl", *arguments, "--kubeconfig", str(story.target.kubeconfig)]
    with anyio.fail_after(LONG):
        done = await anyio.run_process(program, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_a_drain_by_hand_of_a_node_of_karpenter_is_undone_by_uncordon_and_karpenter_terminates_it_then(
    story: Story,
) -> None:
    async with a_karpenter(story):
        (node,) = await pooled(story, "a")
        await story.pod("web", on=node)
        controller = await story.controller()
        await controller.until_said("this process leads")

        def spec() -> JsonObject:
            found: JsonObject = story.sees("Node", node)["spec"]
            return found

        assert "drained for maintenance" in await command(story, "drain", node)
        await story.sight.until("it is cordoned", lambda: bool(spec().get("unschedulable")))
        assert TAINT not in str(spec())
        await command(story, "uncordon", node)
        await story.sight.until("it is open again", lambda: not spec().get("unschedulable"))
        assert "gracectl.io" not in str(story.sees("Node", node)["metadata"].get("annotations"))
        await story.delete("NodeClaim", node)
        await until_drained(story, [node])


@pytest.mark.parametrize("killed", ["gracectl", "karpenter", "both"])
async def test_a_kill_of_either_leaves_the_other_working(story: Story, killed: str) -> None:
    async with a_karpenter(story) as karpenter:
        nodes = await pooled(story, "a", "b")
        pods = await chain(story)
        controller = await story.controller(**ASSIST)
        await controller.until_said("this process leads")
        since = len(story.sight.journal)
        await story.delete("Node", *nodes)
        await until_it_drains(story, nodes, pods)
        if killed != "karpenter":
            controller.send(signal.SIGKILL)
            await controller.ended()
        if killed != "gracectl":
            await karpenter.kill()
        if killed == "karpenter":
            await all_left(story, pods)
        if killed != "gracectl":
            await karpenter.start()
        await until_drained(story, nodes)
    assert story.sight.lowest_health(since, app="web") >= len(pods) - 1
    assert GRACECTL not in writers(story, "Node", "NodeClaim")


async def until_it_drains(story: Story, nodes: list[str], pods: list[JsonObject]) -> None:
    """Karpenter has begun on each node, and a pod leaves."""
    await story.sight.until(
        "all are tainted", lambda: all(TAINT in str(story.sees("Node", each)["spec"]) for each in nodes), seconds=LONG
    )
    await story.sight.until("a pod is leaving", lambda: any(map(story.sight.asked, pods)), seconds=LONG)


async def all_left(story: Story, pods: list[JsonObject]) -> None:
    await story.sight.until("all pods were told to leave", lambda: all(map(story.sight.asked, pods)), seconds=LONG)


async def test_a_karpenter_that_loses_its_lease_does_not_stop_the_assistance(story: Story) -> None:
    async with a_karpenter(story) as karpenter:
        nodes = await pooled(story, "a")
        pods = await chain(story, 4)
        controller = await story.controller(**ASSIST)
        await controller.until_said("this process leads")
        await story.delete("Node", *nodes)
        await until_it_drains(story, nodes, pods)
        await karpenter.lose_lease()
        await all_left(story, pods)
        await karpenter.kill()  # the real one has exited, and its Deployment would start it again
        await karpenter.start()
        await until_drained(story, nodes)


async def test_deadlines_of_claims_end_protected_pods_with_the_grace_that_is_left(story: Story) -> None:
    async with a_karpenter(story):
        (node,) = await pooled(story, "a", grace=15)
        pod = await story.pod("held", on=node, annotations={"karpenter.sh/do-not-disrupt": "true"})
        controller = await story.controller(**ASSIST)
        await controller.until_said("this process leads")
        await story.delete("NodeClaim", node)
        await story.sight.until("it is told to end", lambda: story.sight.asked(pod), seconds=LONG)
        seen = story.sight.asked(pod)
        assert seen is not None
        # Karpenter's own DELETE comes up to 10 s later, with less: this is the first.
        assert seen.object["metadata"]["deletionGracePeriodSeconds"] == pod["spec"]["terminationGracePeriodSeconds"]
        await until_drained(story, [node])


# -- what is said, without a controller --------------------------------------------------------------------------------


def status_of(story: Story, node: str) -> dict[str, Any]:
    """The node in `status -o json`."""
    command = [sys.executable, "-m", "gracectl", "status", node, "-o", "json"]
    options = ["--kubeconfig", str(story.target.kubeconfig)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE, check=True)
    (found,) = json.loads(done.stdout)["nodes"]
    return dict(found)


async def test_status_names_what_blocks_karpenters_drain_and_the_remedy_works(story: Story) -> None:
    async with a_karpenter(story):
        (node,) = await pooled(story, "a")
        await story.workload("Deployment", "web", 1, replicas=1)
        await story.budget("web", "web", maxUnavailable=0)
        await story.nodes("refuge", managed=False)
        await story.delete("Node", node)
        await story.sight.until(
            "it is tainted", lambda: "karpenter.sh/disrupted" in str(story.sees("Node", node)["spec"])
        )
        found = status_of(story, node)
        assert (found["owner"]["name"], found["owner"]["assisted"], found["never"]) == ("Karpenter", False, True)
        (pod,) = found["pods"]
        assert pod["state"] == "blocked"
        assert "allows no disruption" in pod["message"]
        assert f"kubectl patch pdb -n {story.namespace} web --type merge -p " in pod["remedy"]
        await story.patch("PodDisruptionBudget", "web", {"spec": {"maxUnavailable": 1}})
        await until_drained(story, [node])
