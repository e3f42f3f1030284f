"""Campaigns over nodes, from a manifest or a command to their end: killed leaders, pauses, a freeze, windows, budgets
that never allow anything, overlaps; on any cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import anyio
import pytest
from e2e_support import manifests
from e2e_support.story import Story
from kubesim.controllers.client import ask
from kubesim.controllers.objects import is_terminating
from kubesim.server.api import JsonObject
from kubesim_support.kubectl import needs_kubectl
from kubesim_support.patience import PATIENCE

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

ALL = {"maximumAtOnce": "100%"}
"""The NodeDrain alone limits how many nodes are away."""
NEVER_OPEN = [{"schedule": "0 0 1 1 *", "duration": "1s"}]


def seen_drain(story: Story, name: str) -> JsonObject:
    return story.sees("NodeDrain", name)


def counts(story: Story, name: str) -> dict[str, int]:
    found: dict[str, int] = (story.sight.get("NodeDrain", name) or {}).get("status", {}).get("counts") or {}
    return found


def condition(story: Story, name: str, kind: str) -> JsonObject:
    """A condition of a NodeDrain; empty if it has none of that type."""
    found = (story.sight.get("NodeDrain", name) or {}).get("status", {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), {})


def is_true(story: Story, name: str, kind: str) -> bool:
    return bool(condition(story, name, kind).get("status") == "True")


async def until_complete(story: Story, name: str, seconds: float = PATIENCE) -> None:
    await story.sight.until(f"{name} is complete", lambda: is_true(story, name, names.COMPLETE), seconds=seconds)


async def until_left(story: Story, nodes: Collection[str], number: int) -> None:
    def is_so() -> bool:
        return sum(story.sight.get("Node", node) is not None for node in nodes) <= number

    await story.sight.until(f"{number} nodes are left", is_so, seconds=4 * PATIENCE)


def is_cordoned(story: Story, node: str) -> bool:
    return bool(story.sees("Node", node)["spec"].get("unschedulable"))


def most_begun(story: Story, nodes: Collection[str]) -> int:
    """How many of these nodes were cordoned or being deleted at the same time, at most."""
    begun: set[str] = set()
    most = 0
    for seen in story.sight.journal:
        if seen.kind != "Node" or seen.object["metadata"]["name"] not in nodes:
            continue
        is_away = seen.type != "DELETED" and (seen.object["spec"].get("unschedulable") or is_terminating(seen.object))
        (begun.add if is_away else begun.discard)(seen.uid)
        most = max(most, len(begun))
    return most


async def command(story: Story, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    name, *rest = arguments
    whole = [sys.executable, "-m", "gracectl", name, "--kubeconfig", str(story.target.kubeconfig), *rest]
    with anyio.fail_after(2 * PATIENCE):
        done = await anyio.run_process(whole, check=False, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.decode()


async def pinned(story: Story, node: str) -> None:
    """A pod on a node under a budget that never allows a disruption."""
    await story.create(manifests.pod("pinned", story.run, on=node))
    await story.sight.until("it is ready", lambda: story.ready("pinned"))
    await story.budget("never", "pinned", maxUnavailable=0)


async def test_a_pool_is_rotated_while_leaders_are_killed_and_nodes_join(drain_story: Story) -> None:
    story = drain_story
    controller = await story.controller(voluntary=ALL)
    old = await story.nodes(*(f"old-{number}" for number in range(40)))
    refuges = await story.nodes(*(f"refuge-{number}" for number in range(4)))
    for name in old:
        await story.patch("Node", name, {"metadata": {"labels": {"pool": story.run}}})
    await story.workload("Deployment", "web", 40, replicas=40)
    await story.budget("web", "web", maxUnavailable="10%")
    before = len(story.sight.journal)
    selector = {"matchLabels": {"pool": story.run}}
    name = await story.node_drain("rotate", action="Terminate", nodeSelector=selector, maxConcurrent="10%")
    for left in (36, 24, 12):
        await until_left(story, old, left)
        if left == 24:
            (joined,) = await story.nodes("joined")
            await story.patch("Node", joined, {"metadata": {"labels": {"pool": story.run}}})
        controller.send(signal.SIGKILL)
        await controller.ended()
        controller = await story.controller(voluntary=ALL)
    await until_complete(story, name, 4 * PATIENCE)
    found = counts(story, name)
    assert (found["total"], found["done"], found["terminated"]) == (40, 40, 40)
    assert 1 <= most_begun(story, old) <= 4
    assert story.sight.lowest_health(before, app="web") >= 36
    assert all(story.sight.get("Node", node) is None for node in old)
    assert not any(is_cordoned(story, node) for node in (joined, *refuges))
    status = seen_drain(story, name)["status"]
    assert {"startTime", "completionTime"} <= status.keys()
    await story.sight.until("all are well", lambda: len(story.healthy("web")) == 40)


async def test_a_node_drain_is_paused_frozen_closed_and_canceled(drain_story: Story) -> None:
    story = drain_story
    await story.controller(voluntary=ALL)
    nodes = await story.nodes("a", "b", "c", "d")
    name = await story.node_drain("steps", action="Drain", nodeNames=nodes, paused=True, waitForReplacement=False)
    await story.sight.until("it is paused", lambda: counts(story, name).get("pending") == 4)

    async def until_held(words: str, **spec: Any) -> None:
        """Change the spec, and wait until it says what holds it as it is now."""
        changed = await story.patch("NodeDrain", name, {"spec": spec})
        generation = changed["metadata"]["generation"]
        await story.sight.until(
            f"it says {words}",
            lambda: (
                seen_drain(story, name)["status"].get("observedGeneration") == generation
                and words in condition(story, name, names.PROGRESSING)["message"]
            ),
        )
        assert not any(is_cordoned(story, node) for node in nodes)

    await until_held("window", paused=False, windows=NEVER_OPEN)
    freeze = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.FREEZE, "namespace": story.namespace}}
    path = f"/api/v1/namespaces/{story.namespace}/configmaps"
    await ask(story.api, "POST", path, {**freeze, "data": {"reason": "launch day", "by": "e2e"}})
    await until_held("launch day")
    await until_held("launch day", windows=None)
    await until_held("launch day", windows=NEVER_OPEN)
    await ask(story.api, "DELETE", f"{path}/{names.FREEZE}")
    await until_held("window")
    await pinned(story, nodes[3])
    await story.patch("NodeDrain", name, {"spec": {"windows": None, "maxConcurrent": 2}})
    await story.sight.until("two are drained", lambda: counts(story, name).get("drained", 0) >= 2)

    await story.delete("NodeDrain", name)
    await story.sight.until("it is gone", lambda: story.sight.get("NodeDrain", name) is None)
    await story.sight.until("all are returned", lambda: not any(is_cordoned(story, node) for node in nodes))
    assert all(names.NODE_DRAIN not in story.sees("Node", node)["metadata"].get("annotations", {}) for node in nodes)
    assert story.sight.asked(story.sees("Pod", "pinned")) is None


async def test_an_undrainable_node_blocks_or_is_set_aside(drain_story: Story) -> None:
    story = drain_story
    await story.controller(voluntary=ALL)
    nodes = await story.nodes("a", "b", "c")
    await pinned(story, nodes[0])
    waits = await story.node_drain("waits", action="Terminate", nodeNames=[nodes[0]])
    await story.sight.until("it says what blocks it", lambda: is_true(story, waits, names.BLOCKED))
    assert f"{story.namespace}/never" in str(seen_drain(story, waits)["status"])
    await story.delete("NodeDrain", waits)
    await story.sight.until("it is gone", lambda: story.sight.get("NodeDrain", waits) is None)

    skips = await story.node_drain("skips", action="Terminate", nodeNames=nodes, onUndrainable="Skip", maxConcurrent=3)
    await until_complete(story, skips)
    found = counts(story, skips)
    assert (found["terminated"], found["skipped"]) == (2, 1)
    await story.sight.until("the first is returned", lambda: not is_cordoned(story, nodes[0]))
    assert story.sight.asked(story.sees("Pod", "pinned")) is None
    assert all(story.sight.get("Node", node) is None for node in nodes[1:])


async def test_of_two_over_the_same_nodes_the_termination_wins(drain_story: Story) -> None:
    story = drain_story
    await story.controller(voluntary=ALL)
    nodes = await story.nodes("a", "b")
    older = await story.node_drain("older", action="Drain", nodeNames=nodes, paused=True)
    await story.sight.until("it is observed", lambda: counts(story, older).get("pending") == 2)
    stronger = await story.node_drain("stronger", action="Terminate", nodeNames=nodes, maxConcurrent=2)
    await story.patch("NodeDrain", older, {"spec": {"paused": False}})
    await until_complete(story, stronger)
    await story.until_gone(*nodes)
    assert counts(story, stronger)["terminated"] == 2
    await story.sight.until(
        "the other one has ended, too",
        lambda: is_true(story, older, names.COMPLETE) or is_true(story, older, names.FAILED),
    )


async def test_commands_create_follow_and_cancel(drain_story: Story) -> None:
    story = drain_story
    await story.controller(voluntary=ALL)
    nodes = await story.nodes("a", "b", "c")
    code, output = await command(story, "drain", *nodes[:2])
    assert code == 0, output
    (drain,) = re.findall(r"nodedrain/(drain-\w+) created", output)
    story.adopt_node_drain(drain)
    assert all(f"{node}: drained for maintenance; to undo: gracectl uncordon {node}" in output for node in nodes[:2])
    assert (await command(story, "uncordon", *nodes[:2]))[0] == 0
    await story.sight.until("both are returned", lambda: not any(is_cordoned(story, node) for node in nodes[:2]))

    code, output = await command(story, "rotate", *nodes[:2], "--at-once", "50%", "--yes", "--wait")
    assert code == 0, output
    (rotation,) = re.findall(r"nodedrain/(rotate-\w+) created", output)
    story.adopt_node_drain(rotation)
    assert all(f"{node}: terminated" in output for node in nodes[:2])
    code, output = await command(story, "drains", "show", rotation)
    assert code == 0, output
    assert f"{rotation}: complete: terminate 2 nodes, 50% at a time" in output
    assert "done: 2 of 2 nodes" in output

    await pinned(story, nodes[2])
    code, output = await command(story, "rotate", nodes[2], "--yes")
    (stuck,) = re.findall(r"nodedrain/(rotate-\w+) created", output)
    story.adopt_node_drain(stuck)
    await story.sight.until("it has begun", lambda: is_cordoned(story, nodes[2]))
    code, output = await command(story, "status", nodes[2])
    assert f"by NodeDrain {stuck}" in output
    assert (await command(story, "drains", "cancel", stuck, "--yes"))[0] == 0
    await story.sight.until("it is returned", lambda: not is_cordoned(story, nodes[2]))
    assert not is_terminating(story.sees("Node", nodes[2]))


@needs_kubectl
async def test_kubectl_creates_by_generate_name_and_waits(drain_story: Story) -> None:
    story = drain_story
    await story.controller(voluntary=ALL)
    (node,) = await story.nodes("a")
    manifest: dict[str, Any] = {
        "apiVersion": "gracectl.io/v1alpha1",
        "kind": "NodeDrain",
        "metadata": {"generateName": f"{story.run}-"},
        "spec": {"action": "Terminate", "nodeName": node},
    }
    kubectl = ["kubectl", "--kubeconfig", str(story.target.kubeconfig)]
    environment = {**os.environ, "HOME": str(story.folder)}
    made = await anyio.run_process(
        [*kubectl, "create", "-o", "name", "-f", "-"], input=str(manifest).replace("'", '"').encode(), env=environment
    )
    name = made.stdout.decode().strip().partition("/")[2]
    story.adopt_node_drain(name)
    await anyio.run_process(
        [*kubectl, "wait", f"nodedrain/{name}", "--for=condition=Complete", f"--timeout={PATIENCE:g}s"], env=environment
    )
    assert story.sight.get("Node", node) is None
