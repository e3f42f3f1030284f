"""Drains are requested by the commands: each a process of its own, beside a controller that does the work."""

from __future__ import annotations

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

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time, pytest.mark.anyio, pytest.mark.timeout(120)]


class Ended(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str


def spelt(story: Story, command: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gracectl", command, "--kubeconfig", str(story.target.kubeconfig), *arguments]


async def run(story: Story, command: str, *arguments: str) -> Ended:
    with anyio.fail_after(60):
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
    assert (ended.code, ended.err) == (0, "")
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
    assert (ended.code, ended.err) == (0, "")
    assert f"{node}: drained for maintenance; to undo: gracectl uncordon {node}\n" in ended.out
    assert story.sight.asked(pod) is not None
    assert story.sight.asked(daemon) is None
    await story.sight.until(
        "its condition says so", lambda: story.condition(node, names.DRAINED).get("status") == "True"
    )

    ended = await run(story, "uncordon", node)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{node}: uncordoned; the controller still has to remove the taint")
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
        told = await lines.until(f"the controller continues to terminate {node}, which cannot be undone")
        assert f"gracectl status -w {node}" in told
        with anyio.fail_after(10):
            assert await process.wait() == 130
    assert is_terminating(story.sees("Node", node))
    await story.until_gone(node)


async def test_no_drain_is_requested_if_one_node_would_be_deleted_at_once(story: Story) -> None:
    await story.controller()
    (held,) = await story.nodes("held")
    (foreign,) = await story.nodes("foreign", managed=False)
    ended = await run(story, "terminate", "--yes", held, foreign)
    assert (ended.code, ended.out) == (3, "")
    assert f"  - {foreign}: finalizer {names.FINALIZER} missing" in ended.err
    assert f"- {held}:" not in ended.err
    # A request sent by now would be seen after this.
    await story.patch("Node", foreign, {"metadata": {"labels": {"looked-at": "yes"}}})
    await story.sight.until(
        "the watch is as far", lambda: story.sees("Node", foreign)["metadata"]["labels"].get("looked-at")
    )
    assert not is_terminating(story.sees("Node", held))
    assert not is_terminating(story.sees("Node", foreign))
