"""What traces cost: CPU of the controller's process per terminated pod, with a collector and without.

The controller is the shipped command, and speaks over HTTP to a cluster and to a collector in processes of their own.
Nodes full of pods are deleted at once; most of the pods have no budget, some stand under tight ones. What is counted is
the CPU time of the whole process, the exporter's thread with it, from just before the deletions until the last spans
have left. Runs with and without traces alternate, so that a machine that slows down meanwhile slows both.
"""

from __future__ import annotations

from statistics import median

import msgspec

from benchmarks.contenders.gracectl import Gracectl
from benchmarks.ground.collector import collecting
from benchmarks.ground.ground import Ground
from benchmarks.ground.site import App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import Load, trial

PODS_OF_A_NODE, PAIRS = 30, 5
EMBEDDED, ELSEWHERE = 20, 6
"""Nodes. The controllers of a foreign control plane create some twenty pods a second."""
QPS = 20.0
"""At which machines keep up: how often a node is looked at does not depend on how fast they are."""
QUIET = 2.0
"""Seconds after which the exporter has sent what waits: it does so each second."""


class Run(msgspec.Struct, frozen=True):
    """CPU seconds of the controller for all pods; how long it took; how many spans the collector has got."""

    cpu: float
    seconds: float
    spans: int


async def run(ground: Ground) -> Outcome:
    """Measure all pairs; the ratio is the median of theirs."""
    nodes = EMBEDDED if ground.is_embedded else ELSEWHERE
    load = _load(nodes)
    pairs = [await _pair(ground, load, number) for number in range(PAIRS)]
    without, traced = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratios = sorted(after.cpu / before.cpu for before, after in pairs)
    milliseconds = 1000 / load.pods
    return Outcome(
        scenario="tracing",
        about=f"{nodes} nodes with {PODS_OF_A_NODE} pods each are terminated at once, with traces and without",
        figures=(
            Figure("CPU with traces vs without", median(ratios), " ×", 1.10),
            Figure("the same, lowest of the pairs", ratios[0], " ×"),
            Figure("the same, highest of the pairs", ratios[-1], " ×"),
            Figure("CPU per pod without traces", median(each.cpu for each in without) * milliseconds, " ms"),
            Figure("CPU per pod with traces", median(each.cpu for each in traced) * milliseconds, " ms"),
            Figure("seconds without traces", median(each.seconds for each in without), " s"),
            Figure("seconds with traces", median(each.seconds for each in traced), " s"),
            # Of each pod one; of each node its root, its drain and a wave.
            Figure("spans, fewest of the runs", min(each.spans for each in traced), "", at_least=load.pods + 3 * nodes),
        ),
        parameters={"nodes": nodes, "pods": load.pods, "pairs": PAIRS, "evictions a second": QPS},
    )


def _load(nodes: int) -> Load:
    """A tenth of the pods each: two apps under tight budgets, eight without."""
    tenth = nodes * PODS_OF_A_NODE // 10
    budgeted = (App(f"budgeted-{number}", tenth, {"maxUnavailable": "20%"}) for number in range(2))
    return Load(nodes, (*budgeted, *(App(f"free-{number}", tenth) for number in range(8))))


async def _pair(ground: Ground, load: Load, number: int) -> tuple[Run, Run]:
    """Without traces, and with them; every other time the other way round."""
    first = number % 2 == 1
    before = await _run(ground, load, f"tracing-{2 * number}", traced=first)
    after = await _run(ground, load, f"tracing-{2 * number + 1}", traced=not first)
    return (after, before) if first else (before, after)


async def _run(ground: Ground, load: Load, name: str, *, traced: bool) -> Run:
    settings = {"eviction": {"qps": QPS, "burst": 1}}
    async with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} if traced else {}
        contender = Gracectl(settings=settings, variables=variables, quiet=QUIET)
        one = await trial(ground, load, contender, name)
        assert one.usage.cpu is not None
        return Run(one.usage.cpu, one.seconds, await collector.count())
