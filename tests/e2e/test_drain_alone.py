"""Drains by the command itself: no controller runs, and the credentials have the rights of the page and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest
from e2e_support.accounts import access_with, account_with, token_of
from e2e_support.story import Story
from kubesim_support.kubectl import Lines, needs_kubectl
from kubesim_support.patience import PATIENCE

from gracectl.app.drainer import EVENTS, OWN_MANNER, RIGHTS, rights_for
from gracectl.model import names
from gracectl.model.times import parse_time

pytestmark = [pytest.mark.e2e, pytest.mark.real_time, pytest.mark.anyio]


@asynccontextmanager
async def laptop(story: Story) -> AsyncIterator[Path]:
    """A kubeconfig with exactly these rights."""
    async with account_with(story, (*RIGHTS, EVENTS)) as account:
        yield access_with(story, await token_of(story, account), "laptop").kubeconfig


def drain(kubeconfig: Path, *arguments: str, command: str = "drain") -> list[str]:
    return [sys.executable, "-m", "gracectl", command, "--kubeconfig", str(kubeconfig), *arguments]


@asynccontextmanager
async def running(kubeconfig: Path, *arguments: str) -> AsyncIterator[tuple[anyio.abc.Process, Lines]]:
    async with await anyio.open_process(drain(kubeconfig, *arguments), stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            yield process, Lines(process.stdout)
        finally:
            if process.returncode is None:
                process.kill()


async def test_nodes_are_drained_under_a_budget_with_nothing_installed(story: Story) -> None:
    (first,) = await story.nodes("a", managed=False)
    pods = await story.workload("Deployment", "web", 3, replicas=3)
    await story.budget("strict", "web", maxUnavailable=1)
    await story.nodes("b", managed=False)
    async with laptop(story) as kubeconfig:
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(drain(kubeconfig, first), check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert b"draining from here; interrupt and run again to resume" in done.stderr.splitlines()[0]
        assert f"{first}: drained for maintenance; to undo: gracectl uncordon {first}".encode() in done.stdout
        assert all(story.sight.asked(pod) for pod in pods)
        assert story.pods_on(first) == []
        assert story.most_ending() <= 1
        with anyio.fail_after(PATIENCE):
            await anyio.run_process(drain(kubeconfig, first, command="uncordon"))
    node = story.sees("Node", first)["metadata"]
    assert [key for key in node.get("annotations") or {} if "gracectl" in key] == []


async def test_a_run_that_is_killed_is_resumed_and_an_interrupted_one_says_how(story: Story) -> None:
    (node,) = await story.nodes("a", managed=False)
    pod = await story.pod("web", on=node)
    await story.budget("strict", "web", minAvailable=1)
    async with laptop(story) as kubeconfig:
        async with running(kubeconfig, node) as (process, lines):
            await lines.until("Z  ", f"{node}: ")
            process.kill()
        async with running(kubeconfig, node) as (process, lines):
            await lines.until("Z  ", f"{node}: ")
            process.send_signal(signal.SIGINT)
            said = await lines.until("interrupted")
            assert f"nothing continues to drain {node} until you run it again: gracectl drain {node}" in said
            assert await process.wait() == 130
        assert story.sight.asked(pod) is None
        assert names.KEEP_DRAINED in story.sees("Node", node)["metadata"]["annotations"]
        await story.delete("PodDisruptionBudget", "strict")
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(drain(kubeconfig, node), check=False)
        assert done.returncode == 0, done.stderr.decode()
    assert story.sight.asked(pod) is not None


async def test_a_controller_that_begins_meanwhile_takes_over(story: Story) -> None:
    (node,) = await story.nodes("a", managed=False)
    pod = await story.pod("web", on=node)
    await story.budget("strict", "web", minAvailable=1)
    async with laptop(story) as kubeconfig, running(kubeconfig, node) as (process, lines):
        await lines.until("Z  ", f"{node}: ")
        await story.controller(nodeSelector={"matchLabels": {"kubernetes.io/hostname": node}})
        await lines.until("a controller has begun with it: the controller continues; watching")
        await story.delete("PodDisruptionBudget", "strict")
        with anyio.fail_after(PATIENCE):
            assert await process.wait() == 0
    assert story.sight.asked(pod) is not None
    assert names.EXCLUDE_FROM_LOAD_BALANCERS in story.sees("Node", node)["metadata"]["labels"]


def settings_of(story: Story) -> Path:
    """Settings with which a command is blind to the Leases of other stories."""
    settings = story.folder / "settings.yaml"
    settings.write_text(f"leaderElection: {{namespace: {story.namespace}}}\n")
    return settings


def as_person(story: Story, *arguments: str, command: str = "drain") -> list[str]:
    """With all rights."""
    return drain(story.target.kubeconfig, *arguments, "--config", str(settings_of(story)), command=command)


async def test_one_node_after_the_other_and_one_that_would_never_drain_is_left_out(story: Story) -> None:
    first, second, never = await story.nodes("a", "b", "c", managed=False)
    pods = [await story.pod(f"on-{node}", on=node) for node in (first, second)]
    kept = await story.pod("kept", on=never, annotations={names.DO_NOT_DISRUPT: "true"})
    command = as_person(story, first, second, never, "--at-once", "1", "--skip-stuck")
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(command, check=False)
    assert done.returncode == 3, done.stderr.decode()
    assert f"skipped: never drained: {never}; to see why: gracectl plan {never}" in done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    told = [line for line in lines if line.startswith((f"{first}: dr", f"{second}: dr"))]
    assert [line.partition(": ")[2] for line in told] == [
        "drain requested",
        f"drained for maintenance; to undo: gracectl uncordon {told[0].partition(':')[0]}",
        "drain requested",
        f"drained for maintenance; to undo: gracectl uncordon {told[2].partition(':')[0]}",
    ]
    assert all(story.sight.asked(pod) for pod in pods)
    assert story.sight.asked(kept) is None
    assert names.KEEP_DRAINED not in (story.sees("Node", never)["metadata"].get("annotations") or {})


async def test_terminate_drains_from_here_and_deletes_the_node_object(story: Story) -> None:
    (node,) = await story.nodes("a", managed=False)
    pod = await story.pod("web", on=node)
    await story.budget("strict", "web", minAvailable=1)
    before = story.sees("Node", node)["metadata"]
    options = ("--force", "--deadline", "8s")
    with anyio.fail_after(PATIENCE):
        tried = await anyio.run_process(as_person(story, node, *options, "--dry-run=server", command="terminate"))
    answers = [line for line in tried.stdout.decode().splitlines() if "(server dry run)" in line]
    assert [answer.partition(" (server")[0].partition("; ")[0] for answer in answers] == [
        f"{node}: drain requested",
        f"{story.namespace}/web: waits for its budget",
    ]
    assert story.sees("Node", node)["metadata"].get("annotations") == before.get("annotations")
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(as_person(story, node, "--yes", *options, command="terminate"), check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert "when drained, the Node objects are deleted; from here no instance is terminated\n" in done.stderr.decode()
    assert story.sight.asked(pod) is not None
    await story.until_gone(node)


async def test_a_deadline_ends_what_a_budget_would_block_forever(story: Story) -> None:
    (node,) = await story.nodes("a", managed=False)
    pod = await story.pod("web", on=node)
    await story.budget("strict", "web", minAvailable=1)
    async with account_with(story, (*rights_for(OWN_MANNER, has_deadline=True), EVENTS)) as account:
        kubeconfig = access_with(story, await token_of(story, account), "laptop").kubeconfig
        async with running(kubeconfig, node, "--deadline", "20s", "--yes") as (process, lines):
            await lines.until(f"{node}: drain requested; deadline ")
            await lines.until("Z  ", f"{node}: ")
            deadline = story.sees("Node", node)["metadata"]["annotations"][names.DRAIN_DEADLINE]
            process.kill()
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(drain(kubeconfig, node, "--deadline", "20s", "--yes"), check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert f"; deadline {deadline}".encode() in done.stdout
    left = story.sight.asked(pod)
    assert left is not None
    assert parse_time(left.object["metadata"]["deletionTimestamp"]) >= parse_time(deadline) - 1
    assert names.DRAIN_DEADLINE not in story.sees("Node", node)["metadata"]["annotations"]


async def test_two_laptops_drain_the_same_node(story: Story) -> None:
    (node,) = await story.nodes("a", managed=False)
    pods = await story.workload("Deployment", "web", 3, replicas=3)
    await story.budget("strict", "web", maxUnavailable=1)
    await story.nodes("b", managed=False)
    done: list[int] = []

    async def run(kubeconfig: Path) -> None:
        found = await anyio.run_process(drain(kubeconfig, node), check=False)
        assert f"{node}: drained for maintenance".encode() in found.stdout, found.stderr.decode()
        done.append(found.returncode)

    async with laptop(story) as kubeconfig:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(run, kubeconfig)
                group.start_soon(run, kubeconfig)
    assert done == [0, 0]
    assert all(story.sight.asked(pod) for pod in pods)
    assert story.most_ending() <= 1


async def test_a_connection_that_is_cut_is_taken_up_again(story: Story) -> None:
    """The watches are cut in the middle of the drain, and no new connection is possible for a while."""
    (node,) = await story.nodes("a", managed=False)
    pod = await story.pod("web", on=node)
    await story.budget("strict", "web", minAvailable=1)
    wire = await story.wire()
    async with running(wire.kubeconfig, node, "--config", str(settings_of(story))) as (process, lines):
        await lines.until("Z  ", f"{node}: ")
        wire.cut()
        await story.delete("PodDisruptionBudget", "strict")
        await story.clock.sleep(3)
        assert story.sight.asked(pod) is None
        wire.join()
        with anyio.fail_after(PATIENCE):
            assert await process.wait() == 0
    assert story.sight.asked(pod) is not None


RUNBOOK = """set -eu
for node in $(kubectl get nodes -l upgrade=$POOL -o name); do
    kubectl cordon "$node"
done
for node in $(kubectl get nodes -l upgrade=$POOL -o name); do
    $DRAIN --ignore-daemonsets --delete-emptydir-data --force --grace-period=5 --timeout=120s "$node"
    kubectl uncordon "$node"
done
"""
"""As public guides to upgrades of node pools have it."""


@needs_kubectl
@pytest.mark.parametrize("command", ["kubectl drain", "kubectl grace drain"])
async def test_a_script_of_an_upgrade_runbook(story: Story, command: str) -> None:
    nodes = await story.nodes("a", "b", managed=False)
    for node in nodes:
        await story.patch("Node", node, {"metadata": {"labels": {"upgrade": story.run}}})
    scratch = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
    pods = await story.workload("Deployment", "web", 3, replicas=3, spec=scratch)
    daemons = await story.workload("DaemonSet", "agent", 2)
    naked = await story.pod("naked", on=nodes[0])
    await story.budget("strict", "web", maxUnavailable=1)
    await story.nodes("c", managed=False)
    folder = story.folder / "bin"
    folder.mkdir()
    plugin = folder / "kubectl-grace"
    plugin.write_text(
        f'#!/bin/sh\nname=$1; shift\nexec {sys.executable} -m gracectl "$name" --config {settings_of(story)} "$@"\n'
    )
    plugin.chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(story.folder),
        "KUBECONFIG": str(story.target.kubeconfig), "POOL": story.run, "DRAIN": command,
    }  # fmt: skip
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(["sh", "-c", RUNBOOK], check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert all(story.sight.asked(pod) for pod in (*pods, naked))
    assert [story.sight.asked(pod) for pod in daemons] == [None, None]
    assert story.most_ending() <= 1
    await story.sight.until(
        "both nodes take pods", lambda: all("unschedulable" not in story.sees("Node", node)["spec"] for node in nodes)
    )
