"""Ten nodes that are labeled at once are terminated one by one, and their pods are rescheduled; on any cluster."""

from __future__ import annotations

import signal
import sys
from typing import Any

import anyio
import msgspec
import pytest
from e2e_support.story import Story

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

TERMINABLE: dict[str, Any] = {"metadata": {"labels": {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}}}
NOT_TERMINABLE: dict[str, Any] = {"metadata": {"labels": {names.LIFECYCLE_PHASE: None}}}
SLOW_TO_START = {"start-seconds": "1", "ready-seconds": "1"}


def most_without_a_place(story: Story, bound: dict[str, set[str]], since: int) -> tuple[int, int]:
    """How many pods were there at once, at most, that were neither Ready nor terminating; and how many on one of these
    nodes, of which `bound` says which pods they had. After the first `since` events of the journal."""
    unready: set[str] = set()
    most, fullest = 0, max(len(pods) for pods in bound.values())
    for seen in story.sight.journal[since:]:
        if seen.kind != "Pod":
            continue
        conditions = seen.object.get("status", {}).get("conditions") or ()
        is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        is_over = seen.type == "DELETED" or "deletionTimestamp" in seen.object["metadata"]
        (unready.discard if is_ready or is_over else unready.add)(seen.uid)
        on = bound.get(seen.object["spec"].get("nodeName", ""), set())
        (on.discard if seen.type == "DELETED" else on.add)(seen.uid)
        most, fullest = max(most, len(unready)), max(fullest, *(len(pods) for pods in bound.values()))
    return most, fullest


def is_cordoned(story: Story, node: str) -> bool:
    return bool(story.sees("Node", node)["spec"].get("unschedulable"))


async def status(story: Story, node: str) -> dict[str, Any]:
    """The JSON of a node, from a status that names none."""
    command = [sys.executable, "-m", "gracectl", "status", "--kubeconfig", str(story.target.kubeconfig)]
    done = await anyio.run_process([*command, "-o", "json"])
    (found,) = [each for each in msgspec.json.decode(done.stdout)["nodes"] if each["name"] == node]
    return dict(found)


async def test_of_ten_labelled_nodes_never_more_than_the_maximum_are_terminated_at_once(story: Story) -> None:
    controller = await story.controller(voluntary={"maximumAtOnce": 2, "waitForReplacement": False})
    ten = await story.nodes(*"abcdefghij")
    for name in ten:
        await story.patch("Node", name, TERMINABLE)
    await story.until_gone(*ten[:3])
    controller.send(signal.SIGKILL)
    await controller.ended()
    await story.controller(voluntary={"maximumAtOnce": 2, "waitForReplacement": False})
    await story.until_gone(*ten)
    assert 1 <= story.most_ending() <= 2


async def test_no_more_pods_are_pending_than_those_of_the_terminating_node(story: Story) -> None:
    await story.controller()
    six = await story.nodes(*"abcdef")
    await story.workload("Deployment", "web", 12, replicas=12, behaviour=SLOW_TO_START)
    labeled = six[:3]
    bound = {name: {pod["metadata"]["uid"] for pod in story.pods_on(name)} for name in labeled}
    begun = len(story.sight.journal)
    for name in labeled:
        await story.patch("Node", name, TERMINABLE)
    await story.until_gone(*labeled)
    await story.sight.until("all pods are Ready elsewhere", lambda: len(story.healthy("web")) == 12)
    assert story.most_ending() == 1
    most, fullest = most_without_a_place(story, bound, begun)
    assert 0 < most <= fullest


async def test_a_pending_node_shows_why_and_is_cordoned_until_its_label_is_removed(story: Story) -> None:
    controller = await story.controller()
    waiting, _, _ = await story.nodes("a", "b", "c")
    await story.pod("guarded", on=waiting, annotations={names.DO_NOT_DISRUPT: "true"})
    await story.patch("Node", waiting, TERMINABLE)
    await story.sight.until("it is cordoned", lambda: is_cordoned(story, waiting))
    await story.sight.until("it says why", lambda: story.condition(waiting, names.TERMINATION_PENDING))
    assert story.condition(waiting, names.TERMINATION_PENDING)["reason"] == "Protected"
    told = await status(story, waiting)
    assert (told["state"], told["step"]) == ("pending", "pending")
    assert told["pending"] == {"causes": ["terminable"], "hold": "Protected"}
    assert "guarded" in told["waitsFor"]
    controller.send(signal.SIGKILL)
    await controller.ended()
    await story.delete("Pod", "guarded")
    await story.sight.until("the pod is gone", lambda: not story.pods_on(waiting))
    told = await status(story, waiting)
    assert told["state"] == "pending"
    await story.pod("another", on=waiting, annotations={names.DO_NOT_DISRUPT: "true"})
    told = await status(story, waiting)
    assert (told["state"], told["pending"]["hold"]) == ("pending", "Protected")
    assert "another" in told["waitsFor"]
    await story.controller()
    await story.patch("Node", waiting, NOT_TERMINABLE)
    await story.sight.until("it takes pods again", lambda: not is_cordoned(story, waiting))
    await story.sight.until("nothing is left", lambda: not story.condition(waiting, names.TERMINATION_PENDING))
    assert names.PENDING_CORDONED not in story.sees("Node", waiting)["metadata"].get("annotations", {})


async def test_a_node_that_is_labelled_while_no_controller_runs_is_pending(story: Story) -> None:
    controller = await story.controller()
    (labeled,) = await story.nodes("a")
    controller.send(signal.SIGKILL)
    await controller.ended()
    await story.pod("guarded", on=labeled, annotations={names.DO_NOT_EVICT: "true"})
    await story.patch("Node", labeled, TERMINABLE)
    told = await status(story, labeled)
    assert (told["state"], told["pending"]) == ("pending", {"causes": ["terminable"], "hold": "Protected"})
    assert story.condition(labeled, names.TERMINATION_PENDING) == {}
