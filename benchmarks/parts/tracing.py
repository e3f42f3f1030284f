"""What traces cost: CPU of the controller's process per terminated pod, with a collector and without.

The controller is the shipped command, and speaks over HTTP to a cluster and to a collector in processes of their own.
Nodes full of pods are deleted at once; most of the pods have no budget, some stand under tight ones.
What is counted is the CPU time of the whole process, the exporter's thread with it, from just before the deletions
until the nodes are gone and the last spans have left. Runs with and without traces alternate on the same cluster, whose
pods move from one set of nodes to the next, so that a machine that slows down meanwhile slows both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import anyio
import anyio.abc
import msgspec

from benchmarks.ground.cluster import ClusterSpec
from benchmarks.ground.collector import collecting
from benchmarks.ground.stage import Stage, stage
from benchmarks.report import Figure, Outcome
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.sim.cluster import NodeSpec, write_kubeconfig

DEPLOYMENTS = 10
POOL = "all"
QUIET_SECONDS = 2.0
"""After this long nothing is left to do, and the exporter has sent what waits: it does so each second."""


class Scale(msgspec.Struct, frozen=True):
    """`nodes` are deleted, with `pods` on each. `budgeted` of ten Deployments may lose one pod in five at a time; the
    pods of the others leave at `qps`, at which machines keep up: how often a node is looked at does not depend on how
    fast they are. `pairs` of runs: one without traces, one with."""

    nodes: int = 20
    pods: int = 30
    budgeted: int = 2
    qps: float = 20.0
    pairs: int = 5

    @property
    def all_pods(self) -> int:
        """That move in each run."""
        return self.nodes * self.pods

    def names(self, round: int) -> tuple[str, ...]:
        """The nodes that are deleted in this round, and take the pods of the one before."""
        return tuple(f"round-{round}-{number}" for number in range(self.nodes))

    @property
    def nodes_of_all_rounds(self) -> tuple[NodeSpec, ...]:
        """Of each run those that are deleted, and at last those where the pods end."""
        rounds = range(2 * self.pairs + 1)
        return tuple(NodeSpec(name=name, labels={"pool": POOL}) for round in rounds for name in self.names(round))


class Run(msgspec.Struct, frozen=True):
    """CPU seconds of the controller for all pods; how long it took; how many spans the collector has got."""

    cpu: float
    seconds: float
    spans: int


async def run(scale: Scale | None = None) -> Outcome:
    """Measure all pairs; the ratio is the median of theirs."""
    scale = scale or Scale()
    async with stage(ClusterSpec(nodes=scale.nodes_of_all_rounds)) as one:
        await _prepare(one, scale)
        pairs = [await _pair(one, scale, number) for number in range(scale.pairs)]
    without, traced = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratios = sorted(after.cpu / before.cpu for before, after in pairs)
    milliseconds = 1000 / scale.all_pods
    return Outcome(
        scenario="tracing",
        about=f"{scale.nodes} nodes with {scale.pods} pods each are terminated at once, with traces and without",
        figures=(
            Figure("CPU with traces vs without", median(ratios), " ×", 1.10),
            Figure("the same, lowest of the pairs", ratios[0], " ×"),
            Figure("the same, highest of the pairs", ratios[-1], " ×"),
            Figure("CPU per pod without traces", median(each.cpu for each in without) * milliseconds, " ms"),
            Figure("CPU per pod with traces", median(each.cpu for each in traced) * milliseconds, " ms"),
            Figure("seconds without traces", median(each.seconds for each in without), " s"),
            Figure("seconds with traces", median(each.seconds for each in traced), " s"),
            Figure("spans, fewest of the runs", min(each.spans for each in traced), "", at_least=_least_spans(scale)),
        ),
        parameters=msgspec.to_builtins(scale),
    )


async def _pair(one: Stage, scale: Scale, number: int) -> tuple[Run, Run]:
    """Without traces, and with them; every other time the other way round."""
    first = number % 2 == 1
    before = await _run(one, scale, 2 * number, traced=first)
    after = await _run(one, scale, 2 * number + 1, traced=not first)
    return (after, before) if first else (before, after)


def _least_spans(scale: Scale) -> int:
    """Of each pod one; of each node its root, its drain and a wave."""
    return scale.all_pods + 3 * scale.nodes


async def _run(one: Stage, scale: Scale, round: int, *, traced: bool) -> Run:
    """All pods move from the nodes of this round to those of the next one."""
    async with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} if traced else {}
        old, new = scale.names(round), scale.names(round + 1)
        async with _controller(one.url, scale, variables) as process:
            await _at_work(one, new[0])
            for node in new:
                await one.set_schedulable(node, True)
            await one.clock.sleep(QUIET_SECONDS)
            cpu, began = _cpu_of(process), one.clock.monotonic()
            for node in old:
                await one.client.delete(NODES, ("", node))
            await _gone(one, old)
            seconds = one.clock.monotonic() - began
            await one.clock.sleep(QUIET_SECONDS)
            cpu = _cpu_of(process) - cpu
    return Run(cpu, seconds, collector.count)


async def _prepare(one: Stage, scale: Scale) -> None:
    """Ten Deployments on the nodes of the first round, spread evenly."""
    first = scale.names(0)
    for node in scale.nodes_of_all_rounds:
        if node.name not in first:
            await one.set_schedulable(node.name, False)
    for number in range(DEPLOYMENTS):
        bound = {"maxUnavailable": "20%"} if number < scale.budgeted else None
        await one.deploy(f"app-{number}", scale.all_pods // DEPLOYMENTS, bound=bound, pool=POOL)


@asynccontextmanager
async def _controller(url: str, scale: Scale, variables: Mapping[str, str]) -> AsyncIterator[anyio.abc.Process]:
    """`gracectl controller` while the block runs."""
    with tempfile.TemporaryDirectory(prefix="gracectl-") as folder:
        kubeconfig, config = Path(folder, "kubeconfig"), Path(folder, "settings.json")
        write_kubeconfig(kubeconfig, url)
        settings = {
            "provider": {"name": "simulated", "options": {"endpoint": url}},
            "eviction": {"qps": scale.qps, "burst": 1},
        }
        await anyio.Path(config).write_bytes(msgspec.json.encode(settings))
        command = [sys.executable, "-m", "gracectl", "controller", "--kubeconfig", str(kubeconfig)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        async with await anyio.open_process(
            [*command, "--config", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environment, **variables},
        ) as process:
            try:
                yield process
            finally:
                process.terminate()


def _cpu_of(process: anyio.abc.Process) -> float:
    """CPU seconds of all threads of a process so far; see clock_getcpuclockid(3) for what this number is."""
    return time.clock_gettime(~process.pid << 3 | 2)


async def _at_work(one: Stage, node: str) -> None:
    """Wait until the controller looks after nodes: the finalizer that is taken off one comes back."""
    await one.client.patch(NODES, ("", node), MergePatch({"metadata": {"finalizers": None}}))
    with anyio.fail_after(60):
        while names.FINALIZER not in (await one.client.get(NODES, ("", node))).finalizers:
            await one.clock.sleep(0.1)


async def _gone(one: Stage, nodes: tuple[str, ...]) -> None:
    with anyio.fail_after(300):
        for node in nodes:
            while await _is_there(one, node):
                await one.clock.sleep(0.25)


async def _is_there(one: Stage, node: str) -> bool:
    try:
        await one.client.get(NODES, ("", node))
    except NotFound:
        return False
    return True
