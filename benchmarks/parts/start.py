"""How soon a controller acts in the largest cluster: from a cold start, and as a standby once the lease is free.

A cold start is measured from the start of the process to the first pod that it has evicted from a node that was deleted
before, beside a bare client that lists everything once. A standby runs beside the leader until that is stopped; a node
is deleted when the lease is seen to be free, so the time until its first pod is evicted includes that deletion.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from signal import SIGTERM

import anyio
import msgspec

from benchmarks.contenders.gracectl import Program, running
from benchmarks.contenders.leadership import leadership
from benchmarks.ground.ground import Service, at, service
from benchmarks.ground.nodes import PATIENCE, delete, until_held
from benchmarks.ground.world import WorldSpec, world
from benchmarks.report import Figure, Outcome
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection, connected
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE
from gracectl.kube.requests import bound_to
from gracectl.kube.resources import NODES, PODS

ROUNDS = 3
"""Of each; the best of them counts, as a busy machine only adds."""
START, HANDOVER = 2.0, 1.0
"""A start may take so many times as long as the list of everything, and a takeover so many seconds."""
MEMORY = {"largest": 800.0}
"""MiB that the controller may hold at its peak, by scenario."""


class Huge(msgspec.Struct, frozen=True):
    """The cluster: the way to it, nodes that have not ended yet, and the bare client."""

    kubeconfig: Path
    folder: Path
    there: Connection
    nodes: Iterator[str]
    bare: Service

    @property
    def client(self) -> KubeClient:
        """Requests of ours."""
        return self.there.client


async def run(scale: float = 1.0, scenario: str = "huge") -> Outcome:
    """Starts and lists by turns, then takeovers."""
    async with world(WorldSpec(scenario, scale, alive=False)) as (opened, _), _huge(opened.url) as huge:
        held = await _first_start(huge)
        rounds = [(await _list(huge), await _start(huge)) for _ in range(ROUNDS)]
        handovers = [await _handover(huge) for _ in range(ROUNDS)]
    lists, starts = zip(*rounds, strict=True)
    seconds, cpu, peaks = zip(*starts, strict=True)
    return Outcome(
        scenario=f"start-{scenario}",
        about=f"a controller begins to act in a cluster of {opened.nodes:,} nodes and {opened.pods:,} pods",
        figures=(
            Figure(
                "a cold start until the first eviction, vs a list of everything", min(seconds) / min(lists), " ×", START
            ),
            Figure("a bare list of everything, in pages", min(lists), " s"),
            Figure("a cold start until the first eviction", min(seconds), " s"),
            Figure("CPU until then", min(cpu), " s"),
            Figure("memory until then, at its peak", max(peaks), " MiB", MEMORY.get(scenario)),
            Figure("a standby, until the first eviction, since the lease was free", min(handovers), " s", HANDOVER),
            Figure("the first start of all, until it holds all nodes", held, " s"),
        ),
        parameters={"rounds": ROUNDS, "scale": scale},
    )


async def _first_start(huge: Huge) -> float:
    """Seconds until every node has its finalizer."""
    began = huge.there.clock.monotonic()
    async with running(huge.kubeconfig, {}, huge.folder) as program:
        await until_held(huge.client, await _names(huge.client), program.last_words)
        return huge.there.clock.monotonic() - began


async def _list(huge: Huge) -> float:
    await huge.bare.ask()
    return float(huge.bare.said)


async def _start(huge: Huge) -> tuple[float, float, float]:
    """Seconds from the start of a process until it has evicted a pod; CPU seconds and the most MiB until then."""
    node, clock = next(huge.nodes), huge.there.clock
    async with _first_eviction(huge, node) as evicted:
        await delete(huge.client, [node])
        began = clock.monotonic()
        async with running(huge.kubeconfig, {}, huge.folder) as program:
            await evicted.wait()
            return clock.monotonic() - began, program.cpu, program.peak


async def _handover(huge: Huge) -> float:
    """Seconds from the end of a leader's lease until the standby has evicted a pod."""
    node, clock, begin = next(huge.nodes), huge.there.clock, partial(running, huge.kubeconfig, {}, huge.folder)
    async with (
        leadership(huge.client, clock, DEFAULT_NAMESPACE) as led,
        _first_eviction(huge, node) as evicted,
        begin() as leader,
    ):
        await _ready(leader)
        async with begin() as standby:
            await _ready(standby)
            async with anyio.create_task_group() as group:
                await group.start(led.until_released)
                leader.send(SIGTERM)
            await delete(huge.client, [node])
            await evicted.wait()
            assert led.free_since is not None
            return clock.monotonic() - led.free_since


async def _ready(program: Program) -> None:
    """Wait until it has listed all pods and nodes."""
    with anyio.fail_after(PATIENCE):
        while True:
            lists = (await program.values()).get("gracectl_watch_lists_total", [])
            if all(value for labels, value in lists if labels["resource"] in {"pods", "nodes"}):
                return
            await anyio.sleep(0.5)


@asynccontextmanager
async def _first_eviction(huge: Huge, node: str) -> AsyncIterator[anyio.Event]:
    """An event that is set when the first pod of a node is told to leave."""
    version, evicted = (await huge.client.get(NODES, ("", node))).resource_version, anyio.Event()

    async def look() -> None:
        async with huge.client.watch(PODS, version, selection=bound_to(node), timeout_seconds=round(PATIENCE)) as watch:
            async for event in watch.events():
                if event.type == "MODIFIED" and PODS.decode(event.object).deletion_timestamp is not None:
                    evicted.set()
                    return

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        yield evicted
        group.cancel_scope.cancel()


async def _names(client: KubeClient) -> list[str]:
    return [node.name async for page in client.list(NODES) for node in page.items if not node.deletion_timestamp]


@asynccontextmanager
async def _huge(url: str) -> AsyncIterator[Huge]:
    with tempfile.TemporaryDirectory(prefix="gracectl-bench-") as name:
        folder = Path(name)
        kubeconfig = at(url, folder / "kubeconfig")
        async with (
            connected(str(kubeconfig)) as there,
            service("benchmarks.contenders.bare_reader", "list", str(kubeconfig)) as bare,
        ):
            yield Huge(kubeconfig, folder, there, iter(await _names(there.client)), bare)
