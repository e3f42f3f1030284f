"""Drains are requested by the commands: each a process of its own, beside a controller that does the work."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import anyio.abc
import pytest
from e2e_support.story import Story
from kubesim.controllers.objects import is_terminating
from kubesim_support.kubectl import Lines
from kubesim_support.patience import PATIENCE
from support.fleet import errors

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


class Ended(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str


def spelt(story: Story, command: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gracectl", command, "--kubeconfig", str(story.target.kubeconfig), *arguments]


async def run(story: Story, command: str, *arguments: str) -> Ended:
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(spelt(story, command, *arguments), check=False)
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@asynccontextmanager
async def running(story: Story, command: str, *arguments: str) -> AsyncIterator[tuple[anyio.abc.Process, Lines]]:
    """A command, and the lines that it prints; killed if it still runs at the end."""
    async with await anyio.open_process(spelt(story, command, *arguments), stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            yield process, Lines(process.stdout)
        finally:
            if process.returncode is None:
                process.kill()


async def test_nodes_are_drained_by_label_under_one_budget_and_waited_for(story: Story) -> None:
    await story.controller()
    first, second = await story.nodes("a", "b")
    # All pods are on the two nodes that are drained, and a third one has room for them.
    pods = await story.workload("Deployment", "web", 4, replicas=4)
    await story.budget("strict", "web", maxUnavailable=1)
    await story.nodes("c")
    for node in (first, second):
        await story.patch("Node", node, {"metadata": {"labels": {"leaves": story.run}}})
    ended = await run(story, "terminate", "--yes", "-l", f"leaves={story.run}", "--timeout", "50s")
    assert (ended.code, errors(ended.err)) == (0, "")
    assert f"cluster: {cluster_of(story)}\nterminate 2 nodes, 4 pods; " in ended.err
    for node in (first, second):
        assert f"{node}: deletion requested" in ended.out
        assert f"{node}: terminated after " in ended.out
    await story.until_gone(first, second)
    assert all(story.sight.asked(pod) for pod in pods)
    await story.sight.until("all are well again", lambda: len(story.healthy("web")) == 4)


async def test_maintenance_keeps_a_node_drained_until_it_is_uncordoned(story: Story) -> None:
    await story.controller()
    (node,) = await story.nodes("a")
    pod = await story.pod("web", on=node)
    (daemon,) = await story.workload("DaemonSet", "agent", 1)
    ended = await run(story, "drain", node, "--timeout", "50s")
    assert (ended.code, errors(ended.err)) == (0, "")
    assert f"cluster: {cluster_of(story)}\ndrain {node}, 1 pod; drained in " in ended.err
    assert f"! {node}: {story.namespace}/web has no controller: it is not recreated elsewhere" in flat(ended.err)
    assert f"{node}: drained for maintenance; to undo: gracectl uncordon {node}\n" in ended.out
    assert story.sight.asked(pod) is not None
    assert story.sight.asked(daemon) is None
    await story.sight.until(
        "its condition says so", lambda: story.condition(node, names.DRAINED).get("status") == "True"
    )

    ended = await run(story, "uncordon", node)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{node}: uncordoned; the controller still has to remove the label")
    await story.sight.until("nothing is left of it", lambda: is_free(story, node))
    await story.pod("new", on=node)


def is_free(story: Story, node: str) -> bool:
    now = story.sees("Node", node)
    annotations = now["metadata"].get("annotations") or {}
    return (
        not now["spec"].get("unschedulable")
        and all(taint["key"] != names.DISRUPTED_TAINT_KEY for taint in now["spec"].get("taints") or ())
        and not {names.KEEP_DRAINED, names.CORDONED} & annotations.keys()
    )


async def test_a_drain_continues_when_its_command_is_interrupted(story: Story) -> None:
    await story.controller()
    (node,) = await story.nodes("a")
    slow = await story.pod("slow", on=node, behaviour={"stop-seconds": "12"})
    async with running(story, "terminate", "--yes", node) as (process, lines):
        await lines.until(f"{node}: terminating for")
        await story.sight.until("the pod is asked", lambda: story.sight.asked(slow))
        process.send_signal(signal.SIGINT)
        told = await lines.until(f"the controller continues to terminate {node}; the deletion cannot be undone")
        assert f"gracectl status -w {node}" in told
        with anyio.fail_after(PATIENCE):
            assert await process.wait() == 130
    assert is_terminating(story.sees("Node", node))
    await story.until_gone(node)


async def test_several_nodes_show_how_many_are_done(story: Story) -> None:
    await story.controller()
    nodes = await story.nodes("a", "b")
    for node in nodes:
        await story.pod(f"on-{node}"[:60], on=node, behaviour={"stop-seconds": "3"})
    ended = await run(story, "terminate", "--yes", *nodes)
    assert ended.code == 0, ended.err
    done = re.findall(r"Z  (\d) of 2 nodes, \d+ of (\d+) pods; \S+ elapsed", ended.out)
    # A NodeDrain keeps the pace: one after the other.
    assert (done[0][0] in ("0", "1"), done[-1][0]) == (True, "2")
    assert int(done[-1][1]) >= 2


async def test_what_would_never_end_is_named_and_needs_force_to_be_terminated(story: Story) -> None:
    await story.controller()
    (node, other) = await story.nodes("a", "b")
    pod = await story.pod("pinned", on=node, annotations={names.DO_NOT_DISRUPT: "true"})
    for more in ("--yes", "--dry-run"):
        ended = await run(story, "terminate", more, node, other)
        assert ended.code == 3
        assert f"never for 1 node ({node})" in flat(ended.out + ended.err)
        assert f"! never ends: {story.namespace}/pinned on {node}: protected by " in flat(ended.out + ended.err)
        assert errors(ended.err).startswith(f"gracectl: nothing was changed: {node} would never be drained")
    assert await not_deleted(story, node, other)
    ended = await run(story, "terminate", "--yes", "--force", node, other, "--no-wait")
    assert (ended.code, errors(ended.err)) == (0, "")
    await story.until_gone(other)
    assert is_terminating(story.sees("Node", node))
    assert story.sight.asked(pod) is None


async def test_a_dry_run_shows_what_would_happen_and_changes_nothing(story: Story) -> None:
    await story.controller()
    (node,) = await story.nodes("a")
    await story.workload("Deployment", "web", 2, replicas=2)
    for command, what in (("terminate", "deleted"), ("drain", "drained for maintenance")):
        ended = await run(story, command, "--dry-run", node)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith(f"cluster: {cluster_of(story)}\n{command} {node}, 2 pods; drained in ")
        assert f"\nWhat happens if {node} is {what} now (" in ended.out
    assert await not_deleted(story, node)
    assert is_free(story, node)


def flat(text: str) -> str:
    """On one line: $COLUMNS may say where lines are folded."""
    return " ".join(text.split())


def cluster_of(story: Story) -> str:
    """As commands name it."""
    config = story.target.config
    (context,) = (each for each in config["contexts"] if each["name"] == config["current-context"])
    name = context["context"]["cluster"]
    (cluster,) = (each["cluster"] for each in config["clusters"] if each["name"] == name)
    return f"{context['name']} ({cluster['server'].rstrip('/')})"


async def not_deleted(story: Story, *nodes: str) -> bool:
    """Whether no deletion of these was requested: one that was sent by now would be seen after this."""
    await story.patch("Node", nodes[0], {"metadata": {"labels": {"looked-at": "yes"}}})
    await story.sight.until(
        "the watch is as far", lambda: story.sees("Node", nodes[0])["metadata"]["labels"].get("looked-at")
    )
    return not any(is_terminating(story.sees("Node", node)) for node in nodes)


async def test_no_drain_is_requested_if_one_node_would_be_deleted_at_once(story: Story) -> None:
    await story.controller()
    (held,) = await story.nodes("held")
    (foreign,) = await story.nodes("foreign", managed=False)
    ended = await run(story, "terminate", "--yes", held, foreign)
    assert (ended.code, ended.out) == (3, "")
    assert f"  - {foreign}: finalizer of gracectl missing" in ended.err
    assert f"- {held}:" not in ended.err
    assert await not_deleted(story, foreign, held)
