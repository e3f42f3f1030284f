"""Nodes end in a small cluster, a larger one and the largest there are: what does each of their pods cost?

As many at once in each of them, so that only the cluster differs; then a share of all nodes at once.

Pods elsewhere change all the time, in proportion to the cluster. What that costs the controller at rest is measured
first, and taken off: what is compared is what a terminated pod costs. At last all pods are listed anew, as after a lost
watch, for the peak of memory. On a foreign cluster the sizes are smaller, and watches stay. `scale-largest` compares
with 100,000 nodes, what EKS documents: ten minutes on an idle machine, and 6 GiB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import anyio
import msgspec

from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Program, running
from benchmarks.contenders.idle import Idle, idle
from benchmarks.ground.ground import LABEL, Ground, Pace, Service, at, opened
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

TOGETHER, ROUNDS = 2, 5
"""Nodes that end at once in a cluster of any size, and how often: what differs then is the cluster alone."""
SHARE, ENOUGH = 0.02, 4
"""Of the nodes that end at once afterwards, and how many end altogether at least: what differs then is how many ends
are under way as well."""
CHURN, FASTEST = 0.04, 600.0
"""Pods of others that change in a second, for each node, and at most."""
BEYOND, OTHERS = 1.0, 4.0
"""Per cent of a processor that an idle controller may take beyond decoding, and requests per minute that are not for
leases: watches are renewed every five to ten minutes."""
REST = 6.0
"""Seconds for which the controller is watched at rest."""
CHURNED = 500
"""Pods that change, one after another, and again."""

clock = SystemClock()


class Model(msgspec.Struct, frozen=True):
    """A scenario in several sizes, its nodes, and the share of them that ends at the same time."""

    scenario: str
    nodes: int
    share: float

    def at_once(self, nodes: int) -> int:
        """Number of nodes that end at the same time."""
        return round(self.share * nodes)

    def times(self, nodes: int) -> int:
        """How often a share ends."""
        return max(1, ENOUGH // self.at_once(nodes))


USUAL, UTMOST = Model("huge", 5_000, SHARE), Model("largest", 100_000, 0.01)
EMBEDDED, LARGEST, ELSEWHERE = (50, 500, 5_000), (100, 100_000), (50, 250)
"""How many nodes there are."""
FEWEST = 50
"""Nodes of which some are left when all rounds have ended theirs."""
MEMORY = {5_000: 180.0, 100_000: 800.0}
"""MiB that the controller may hold at its peak, by nodes."""
PODS_ELSEWHERE = 8
"""Of each node, on a foreign cluster."""
HUGE = 5_000
"""Nodes from which on a cluster is compared with a small one."""


class Field(msgspec.Struct, frozen=True):
    """What stands there: a cluster, its nodes in the order in which they end, pods of others that change."""

    kubeconfig: Path
    settings: Mapping[str, Any]
    client: KubeClient
    nodes: tuple[str, ...]
    churned: tuple[Key, ...]
    pods: int
    model: Model
    world: Service | None = None
    """That can be told to forget the past; None on a foreign cluster."""


class Growth(msgspec.Struct, frozen=True):
    """What one size has cost the controller. `started`: seconds until it held all nodes, `starting` their CPU; `rest`:
    the share of a processor while nothing ends; CPU seconds per terminated pod beyond that, `each` where few nodes end
    at once, `of_share` where a share of them does; memory in MiB. `idle` is measured in the last size only."""

    nodes: int
    pods: int
    started: float
    starting: float
    rest: float
    each: float
    of_share: float
    memory: float
    peak: float
    idle: Idle | None


async def run(ground: Ground, sizes: Sequence[int] = ()) -> Outcome:
    """Size after size; `sizes`: other ones than usual."""
    return await _run(ground, sizes or (EMBEDDED if ground.is_embedded else ELSEWHERE), "scale")


async def run_largest() -> Outcome:
    """The smallest and the largest, on the embedded cluster."""
    async with opened(None) as ground:
        return await _run(ground, LARGEST, "scale-largest", UTMOST)


async def _run(ground: Ground, sizes: Sequence[int], name: str, model: Model = USUAL) -> Outcome:
    grown = []
    for nodes in sizes:
        field = _world(ground, nodes, model) if ground.is_embedded else _site(ground, nodes)
        async with field as one, running(one.kubeconfig, one.settings, ground.folder) as program:
            grown.append(await _measured(one, program, is_last=nodes == sizes[-1]))
    first, last = grown[0], grown[-1]
    most = 1.2 if last.nodes >= HUGE else None
    compared = f"{last.nodes:,} nodes vs {first.nodes}"
    return Outcome(
        scenario=name,
        about=f"nodes end in clusters of {', '.join(f'{each.nodes:,}' for each in grown)} nodes that are alive",
        figures=(
            Figure(f"CPU per terminated pod, {compared}", last.each / first.each, " ×", most),
            *(Figure(f"CPU per terminated pod, {one.nodes:,} nodes", 1000 * one.each, " ms") for one in grown),
            Figure(f"CPU per terminated pod, a share at once, {compared}", last.of_share / first.of_share, " ×", most),
            *(
                Figure(f"CPU per terminated pod, {model.at_once(one.nodes)} nodes at once", 1000 * one.of_share, " ms")
                for one in grown
            ),
            Figure("memory at its peak", last.peak, " MiB", MEMORY.get(last.nodes)),
            *(Figure(f"memory with {one.nodes:,} nodes, {one.pods:,} pods", one.memory, " MiB") for one in grown),
            *(Figure(f"of a processor at rest, {one.nodes:,} nodes", 100 * one.rest, " %") for one in grown),
            *_idle_figures(last.idle, last.nodes),
            *(Figure(f"from its start until it holds {one.nodes:,} nodes", one.started, " s") for one in grown),
            *(Figure(f"CPU until then, {one.nodes:,} nodes", one.starting, " s") for one in grown),
        ),
        parameters={
            "at once": f"{TOGETHER} nodes, then {model.share:.0%}",
            "rounds": f"{ROUNDS}, then {model.times(first.nodes)} to {model.times(last.nodes)}",
            "changes a second and node": CHURN,
            "changes a second at most": FASTEST,
        },
        series=(
            Series("CPU per terminated pod, ms", tuple((one.nodes, 1000 * one.each) for one in grown)),
            Series("a share at once", tuple((one.nodes, 1000 * one.of_share) for one in grown)),
            Series("memory at its peak, MiB", tuple((one.nodes, one.peak) for one in grown)),
        ),
        notes=("The peak is that of a new list of all pods.",) if ground.is_embedded else (),
    )


async def _measured(field: Field, program: Program, *, is_last: bool) -> Growth:
    began, count = clock.monotonic(), len(field.nodes)
    await until_held(field.client, field.nodes, program.last_words, PATIENCE)
    started, starting = clock.monotonic() - began, program.cpu
    ending = iter(field.nodes)
    quiet = await idle(program, field.kubeconfig) if is_last else None
    async with anyio.create_task_group() as group:
        group.start_soon(_churn, field.client, field.churned, min(CHURN * count, FASTEST))
        await clock.sleep(2)
        cpu, began = program.cpu, clock.monotonic()
        await clock.sleep(REST)
        rest = (program.cpu - cpu) / (clock.monotonic() - began)
        each = await _ended(field, program, rest, [tuple(islice(ending, TOGETHER)) for _ in range(ROUNDS)])
        shares = [tuple(islice(ending, field.model.at_once(count))) for _ in range(field.model.times(count))]
        of_share = await _ended(field, program, rest, shares)
        group.cancel_scope.cancel()
    memory = program.memory
    if field.world is not None:
        await _listed_anew(program, field.world)
    return Growth(
        nodes=count,
        pods=field.pods,
        started=started,
        starting=starting,
        rest=rest,
        each=each,
        of_share=of_share,
        memory=memory,
        peak=program.peak,
        idle=quiet,
    )


def _idle_figures(quiet: Idle | None, nodes: int) -> tuple[Figure, ...]:
    """Nothing but heartbeats of nodes, and the lease."""
    if quiet is None:
        return ()
    name = f"idle with {nodes:,} nodes"
    return (
        Figure(f"{name}, of a processor beyond decoding", 100 * quiet.beyond, " %", BEYOND),
        Figure(f"{name}, of a processor", 100 * quiet.cpu, " %"),
        Figure(f"{name}, requests per minute", quiet.requests),
        Figure(f"{name}, requests per minute that are not for leases", quiet.others, "", OTHERS),
        Figure(f"{name}, wake-ups per second", quiet.wakeups),
    )


async def _ended(field: Field, program: Program, rest: float, rounds: Sequence[Sequence[str]]) -> float:
    """End the nodes of each round at once. CPU seconds per terminated pod, beyond what rest would have taken."""
    before, began = await program.reading(), clock.monotonic()
    for nodes in rounds:
        await delete(field.client, nodes)
        await until_gone(field.client, nodes)
    usage = (await program.reading()).since(before)
    assert usage.cpu is not None
    return (usage.cpu - rest * (clock.monotonic() - began)) / usage.requests[EVICTION]


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
async def _world(ground: Ground, count: int, model: Model) -> AsyncIterator[Field]:
    """The scenario of the library, of this size."""
    async with world(WorldSpec(model.scenario, count / model.nodes)) as (alive, service):
        kubeconfig = at(alive.url, ground.folder / f"{count}-kubeconfig")
        async with _client(ground.behind(kubeconfig)) as client:
            nodes = [node.name async for page in client.list(NODES) for node in page.items]
            others = await _others(client, nodes, model)
            yield Field(kubeconfig, {}, client, tuple(nodes), others, alive.pods, model, service)


@asynccontextmanager
async def _site(ground: Ground, count: int) -> AsyncIterator[Field]:
    """A site of this size. The controller sees its nodes, and all pods that the cluster has."""
    pods = PODS_ELSEWHERE * count
    apps = (App("budgeted", pods // 2, {"maxUnavailable": "10%"}), App("free", pods // 2))
    async with site(ground, f"scale-{count}") as one:
        nodes = await one.add_nodes(OLD, count)
        await one.deploy(*apps, pace=Pace())
        settings = {"nodeSelector": {"matchLabels": {LABEL: one.name}}, "leaderElection": {"namespace": one.name}}
        others = await _others(one.client, nodes, USUAL, one.name)
        yield Field(ground.kubeconfig, settings, one.client, nodes, others, pods, USUAL)


async def _others(client: KubeClient, nodes: Sequence[str], model: Model, namespace: str = "") -> tuple[Key, ...]:
    """Some pods of nodes that stay: the first of all nodes end."""
    count = len(nodes)
    ending = frozenset(nodes[: TOGETHER * ROUNDS + model.at_once(count) * model.times(count)])
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
