"""The same share of nodes ends in a small cluster, a larger one and the largest there are: what does each pod cost?

Pods elsewhere change all the time, in proportion to the cluster. What that costs the controller at rest is measured
first, and taken off: what is compared is what a terminated pod costs. At last all pods are listed anew, as after a lost
watch, for the peak of memory. On somebody's cluster the sizes are smaller, and watches stay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import anyio
import msgspec

from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Program, running
from benchmarks.ground.ground import LABEL, Ground, Pace, Service, at
from benchmarks.ground.nodes import PATIENCE, delete, until_gone, until_held
from benchmarks.ground.site import OLD, App, site
from benchmarks.ground.world import WorldSpec, world
from benchmarks.report import Figure, Outcome, Series
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.http import HttpTransport
from gracectl.kube.requests import Key, MergePatch
from gracectl.kube.resources import NODES, PODS
from gracectl.runtime.clock import SystemClock

SHARE = 0.02
"""Of the nodes that end at once."""
CHURN = 0.04
"""Pods of others that change in a second, for each node."""
REST = 15.0
"""Seconds for which the controller is watched at rest."""
CHURNED = 500
"""Pods that change, one after another, and again."""

clock = SystemClock()


class Size(msgspec.Struct, frozen=True):
    """A cluster of so many nodes; a share of them ends in each of the `rounds`: enough for a figure of some weight."""

    nodes: int
    rounds: int

    @property
    def at_once(self) -> int:
        """How many nodes end in a round."""
        return round(SHARE * self.nodes)


EMBEDDED = (Size(50, 12), Size(500, 3), Size(5_000, 1))
ELSEWHERE = (Size(50, 10), Size(250, 2))
PODS_ELSEWHERE = 8
"""Of each node, on somebody's cluster."""
LARGEST = 5_000
"""Nodes of the scenario `huge`, which is made smaller."""


class Field(msgspec.Struct, frozen=True):
    """What stands there: a cluster, its nodes in the order in which they end, pods of others that change."""

    kubeconfig: Path
    settings: Mapping[str, Any]
    client: KubeClient
    nodes: tuple[str, ...]
    churned: tuple[Key, ...]
    pods: int
    world: Service | None = None
    """That can be told to forget the past; None on somebody's cluster."""


class Growth(msgspec.Struct, frozen=True):
    """What one size has cost the controller. `started`: seconds until it held all nodes, `starting` their CPU; `rest`:
    the share of a processor while nothing ends; `each`: CPU seconds per terminated pod beyond that; memory in MiB."""

    nodes: int
    pods: int
    started: float
    starting: float
    rest: float
    each: float
    ended: int
    memory: float
    peak: float


async def run(ground: Ground) -> Outcome:
    """Size after size."""
    grown = []
    for size in EMBEDDED if ground.is_embedded else ELSEWHERE:
        field = _world(ground, size) if ground.is_embedded else _site(ground, size)
        async with field as one, running(one.kubeconfig, one.settings, ground.folder) as program:
            grown.append(await _measured(one, size, program))
    first, last = grown[0], grown[-1]
    is_whole = last.nodes >= LARGEST
    return Outcome(
        scenario="scale",
        about=f"{SHARE:.0%} of {', '.join(f'{each.nodes:,}' for each in grown)} nodes end, in clusters that are alive",
        figures=(
            Figure(
                f"CPU per terminated pod, {last.nodes:,} nodes vs {first.nodes}",
                last.each / first.each,
                " ×",
                1.2 if is_whole else None,
            ),
            *(Figure(f"CPU per terminated pod, {one.nodes:,} nodes", 1000 * one.each, " ms") for one in grown),
            Figure("memory at its peak", last.peak, " MiB", 256 if is_whole else None),
            *(Figure(f"memory with {one.nodes:,} nodes, {one.pods:,} pods", one.memory, " MiB") for one in grown),
            *(Figure(f"of a processor at rest, {one.nodes:,} nodes", 100 * one.rest, " %") for one in grown),
            *(Figure(f"from its start until it holds {one.nodes:,} nodes", one.started, " s") for one in grown),
            *(Figure(f"CPU until then, {one.nodes:,} nodes", one.starting, " s") for one in grown),
        ),
        parameters={"share": SHARE, "changes a second and node": CHURN, "terminated": [one.ended for one in grown]},
        series=(
            Series("CPU per terminated pod, ms", tuple((one.nodes, 1000 * one.each) for one in grown)),
            Series("memory at its peak, MiB", tuple((one.nodes, one.peak) for one in grown)),
        ),
        notes=("The peak is that of a new list of all pods.",) if ground.is_embedded else (),
    )


async def _measured(field: Field, size: Size, program: Program) -> Growth:
    began = clock.monotonic()
    await until_held(field.client, field.nodes)
    started, starting = clock.monotonic() - began, program.cpu
    async with anyio.create_task_group() as group:
        group.start_soon(_churn, field.client, field.churned, CHURN * size.nodes)
        await clock.sleep(2)
        cpu, began = program.cpu, clock.monotonic()
        await clock.sleep(REST)
        rest = (program.cpu - cpu) / (clock.monotonic() - began)
        before, began = await program.reading(), clock.monotonic()
        for number in range(size.rounds):
            ending = field.nodes[number * size.at_once :][: size.at_once]
            await delete(field.client, ending)
            await until_gone(field.client, ending)
        usage = (await program.reading()).since(before)
        assert usage.cpu is not None
        net = usage.cpu - rest * (clock.monotonic() - began)
        group.cancel_scope.cancel()
    if field.world is not None:
        await _listed_anew(program, field.world)
    ended = usage.requests[EVICTION]
    return Growth(
        nodes=size.nodes,
        pods=field.pods,
        started=started,
        starting=starting,
        rest=rest,
        each=net / ended,
        ended=ended,
        memory=program.memory,
        peak=program.peak,
    )


async def _listed_anew(program: Program, world: Service) -> None:
    """Make the controller list all pods once more: its memory must bear that at any time."""
    before = await _lists(program)
    await world.ask()
    with anyio.fail_after(PATIENCE):
        while await _lists(program) == before:
            await clock.sleep(1)


async def _lists(program: Program) -> float:
    """Complete lists of pods that it has taken over."""
    series = (await program.values())["gracectl_watch_lists_total"]
    return sum(value for labels, value in series if labels["resource"] == "pods")


async def _churn(client: KubeClient, pods: Sequence[Key], rate: float, at_once: int = 8) -> None:
    """Change so many pods a second, as their kubelets and owners do, until cancelled."""
    waiting = cycle(pods)

    async def work(turn: int) -> None:
        at = clock.monotonic() + turn / rate
        while True:
            await clock.sleep(max(0.0, at - clock.monotonic()))
            at += at_once / rate
            change = MergePatch({"metadata": {"annotations": {"bench/changed": f"{at:.3f}"}}})
            with suppress(NotFound):  # its node may have ended
                await client.patch(PODS, next(waiting), change)

    async with anyio.create_task_group() as group:
        for turn in range(at_once):
            group.start_soon(work, turn)


@asynccontextmanager
async def _world(ground: Ground, size: Size) -> AsyncIterator[Field]:
    """The scenario `huge` of the library, of this size."""
    async with world(WorldSpec("huge", size.nodes / LARGEST)) as (opened, service):
        kubeconfig = at(opened.url, ground.folder / f"{size.nodes}-kubeconfig")
        async with _client(ground.behind(kubeconfig)) as client:
            nodes = [node.name async for page in client.list(NODES) for node in page.items]
            ending = frozenset(nodes[: size.rounds * size.at_once])
            yield Field(kubeconfig, {}, client, tuple(nodes), await _others(client, ending), opened.pods, service)


@asynccontextmanager
async def _site(ground: Ground, size: Size) -> AsyncIterator[Field]:
    """A site of this size. The controller sees its nodes, and all pods that the cluster has."""
    pods = PODS_ELSEWHERE * size.nodes
    apps = (App("budgeted", pods // 2, {"maxUnavailable": "10%"}), App("free", pods // 2))
    async with site(ground, f"scale-{size.nodes}") as one:
        nodes = await one.add_nodes(OLD, size.nodes)
        await one.deploy(*apps, pace=Pace())
        settings = {"nodeSelector": {"matchLabels": {LABEL: one.name}}, "leaderElection": {"namespace": one.name}}
        ending = frozenset(nodes[: size.rounds * size.at_once])
        others = await _others(one.client, ending, one.name)
        yield Field(ground.kubeconfig, settings, one.client, nodes, others, pods)


async def _others(client: KubeClient, ending: Iterable[str], namespace: str = "") -> tuple[Key, ...]:
    """Some pods of nodes that stay."""
    found: list[Key] = []
    async for page in client.list(PODS, namespace=namespace):
        found += (pod.key for pod in page.items if pod.node_name not in ending)
        if len(found) >= CHURNED:
            break
    return tuple(found[:CHURNED])


@asynccontextmanager
async def _client(ground: Ground) -> AsyncIterator[KubeClient]:
    async with HttpTransport(await ground.credentials(), clock) as transport:
        yield KubeClient(transport, clock, settings=ClientSettings(timeout=60.0))
