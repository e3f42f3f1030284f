"""The board while much changes: CPU for a change, memory over time, and frames of the page in a browser.

5,000 nodes are terminated at the same time. Their pods cannot leave, so all nodes stay on the board. Pods become
Ready and unready, and now and then a node is gone and another one comes. Clients follow the stream all the time.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from benchmarks.ground.browser import VARIABLE, chromium, frames, page_at
from benchmarks.ground.ground import at
from benchmarks.ground.nodes import delete, together
from benchmarks.ground.process import cpu_seconds, free_port, memory, peak_memory, started
from benchmarks.ground.world import WorldSpec, world
from benchmarks.report import Figure, Outcome
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import connected
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES, PODS
from gracectl.model.names import FINALIZER
from gracectl.model.pod import Pod

SCALE = 1.0
"""Of the largest scenario: 5,000 nodes with 30 pods each."""
CLIENTS = 3
CHANGES = 2_500
PER_SECOND = 25.0
WARM_UP = 0.25
"""Share of the changes before memory is first looked at: the ring of past changes is full by then."""
SINGLE, SINGLE_SECONDS = 10, 4.0
"""Changes that come one by one, and the seconds between two."""
FRAME_SECONDS = 20.0
NODE_EVERY = 100
"""So many changes until a node goes."""


WITHOUT_BROWSER = f"No frames were measured: there is no Chromium; name one by {VARIABLE}."


async def run(scale: float = SCALE, changes: int = CHANGES) -> Outcome:
    """Measure the program from outside."""
    async with world(WorldSpec("huge", scale, alive=False)) as (opened, _):
        with tempfile.TemporaryDirectory(prefix="gracectl-bench-") as name:
            kubeconfig, port = at(opened.url, Path(name, "kubeconfig")), free_port()
            command = (sys.executable, "-m", "gracectl", "ui", f"--bind=127.0.0.1:{port}", f"--kubeconfig={kubeconfig}")
            async with (
                connected(str(kubeconfig)) as there,
                started(command, os.environ, Path(name, "log")) as process,
                aiohttp.ClientSession(trust_env=False, timeout=aiohttp.ClientTimeout(None)) as session,
                anyio.create_task_group() as group,
            ):
                pods = await _terminate_all(there.client)
                received = [0] * CLIENTS
                url = f"http://127.0.0.1:{port}/api/v1"
                snapshot = await _snapshot(session, f"{url}/board", opened.nodes)
                for number in range(CLIENTS):
                    group.start_soon(_follow, session, f"{url}/changes", received, number)
                await anyio.sleep(20)
                quiet = await _cpu_over(process.pid, 20.0)
                single = await _single(there.client, pods, process.pid, quiet)
                figures = await _churn(there.client, pods, process.pid, changes)
                group.start_soon(_churn, there.client, pods, process.pid, int(3 * FRAME_SECONDS * PER_SECOND))
                drawn = await _drawn(f"http://127.0.0.1:{port}/")
                group.cancel_scope.cancel()
    return Outcome(
        scenario="board",
        about=f"the server of the board, of {opened.nodes:,} terminating nodes with {opened.pods:,} pods",
        figures=(
            *figures,
            Figure("server: CPU of a single change", 1000 * single, " ms", at_most=20.0),
            *drawn,
            Figure("server: share of a processor without changes", 100 * quiet, " %"),
            Figure("size of the whole board", snapshot / 2**20, " MiB"),
            Figure("received by a client, with all changes", max(received) / 2**20, " MiB"),
        ),
        parameters={"scale": scale, "changes": changes, "per second": PER_SECOND, "clients": CLIENTS},
        notes=() if drawn else (WITHOUT_BROWSER,),
    )


async def _drawn(url: str) -> tuple[Figure, ...]:
    """Frames of the page; none without a browser."""
    if chromium() is None:
        return ()
    async with page_at(url) as page:
        return await frames(page, FRAME_SECONDS)


async def _single(client: KubeClient, pods: Sequence[Pod], pid: int, quiet: float) -> float:
    """CPU seconds of a single change, less what is used while nothing changes."""
    before, began = cpu_seconds(pid), time.monotonic()
    for number, pod in enumerate(pods[:: len(pods) // SINGLE][:SINGLE]):
        await _change(client, pod, is_ready=number % 2 == 0)
        await anyio.sleep(SINGLE_SECONDS)
    return (cpu_seconds(pid) - before - quiet * (time.monotonic() - began)) / SINGLE


async def _change(client: KubeClient, pod: Pod, *, is_ready: bool) -> None:
    ready = {"type": "Ready", "status": "True" if is_ready else "False"}
    await client.patch(PODS, pod.key, MergePatch({"status": {"conditions": [ready]}}), subresource="status")


async def _terminate_all(client: KubeClient) -> list[Pod]:
    """Every node is held by the finalizer and deleted; returns all pods."""
    nodes = [node.name async for page in client.list(NODES) for node in page.items]
    held: dict[str, Any] = {"metadata": {"finalizers": [FINALIZER]}}
    await together([partial(client.patch, NODES, ("", name), MergePatch(held)) for name in nodes])
    await delete(client, nodes)
    return [pod async for page in client.list(PODS) for pod in page.items]


async def _snapshot(session: aiohttp.ClientSession, url: str, nodes: int) -> int:
    """Bytes of the first snapshot with all nodes."""
    with anyio.fail_after(120):
        while True:
            try:
                async with session.get(url) as answer:
                    body = await answer.read()
                    if body.count(b'"podsLeft":') - body.count(b'"podsLeft":null') >= nodes:
                        return len(body)
            except aiohttp.ClientError:
                pass
            await anyio.sleep(1)


async def _follow(session: aiohttp.ClientSession, url: str, received: list[int], number: int) -> None:
    async with session.get(url) as answer:
        async for chunk in answer.content.iter_any():
            received[number] += len(chunk)


async def _cpu_over(pid: int, seconds: float) -> float:
    """Share of a processor."""
    before, began = cpu_seconds(pid), time.monotonic()
    await anyio.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


async def _churn(client: KubeClient, pods: Sequence[Pod], pid: int, changes: int) -> tuple[Figure, ...]:
    chance, began, before = random.Random(1), time.monotonic(), cpu_seconds(pid)
    warm = later = 0.0
    for number in range(changes):
        pod = chance.choice(pods)
        await _change(client, pod, is_ready=chance.random() < 0.5)
        if number % NODE_EVERY == 0:
            node = pod.node_name
            await client.patch(NODES, ("", node), MergePatch({"metadata": {"finalizers": []}}))
            await client.create(NODES, "", {"metadata": {"name": node, "finalizers": [FINALIZER]}})
            await delete(client, [node])
        if number == int(changes * WARM_UP):
            warm = memory(pid)
        await anyio.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
    later, cpu = memory(pid), cpu_seconds(pid) - before
    seconds = time.monotonic() - began
    return (
        Figure("server: memory after all changes vs a quarter of them", later / warm, " ×", at_most=1.1),
        Figure("server: memory after a quarter of the changes", warm, " MiB"),
        Figure("server: memory at its peak", peak_memory(pid), " MiB"),
        Figure("server: CPU per change, 25 changes a second", 1000 * cpu / changes, " ms", at_most=20.0),
        Figure("server: share of a processor, 25 changes a second", 100 * cpu / seconds, " %", at_most=60.0),
        Figure("changes a second", changes / seconds, ""),
    )
