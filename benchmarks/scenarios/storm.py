"""Many nodes at once, full of pods that no budget covers: how near does each come to a bare loop?"""

from __future__ import annotations

from statistics import median

import msgspec

from benchmarks.contenders.bare import AT_ONCE, BARE
from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.peers import peers
from benchmarks.ground.ground import Ground, Pace
from benchmarks.ground.site import App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import ROUNDS, Load, Trial, in_parallel, middle, trial

PODS_OF_A_NODE, APPS = 50, 10


class Size(msgspec.Struct, frozen=True):
    """How many nodes, and nodes of the peers. Some peers take minutes for many nodes; rates are told of fewer just as
    well."""

    nodes: int
    of_peers: int


EMBEDDED, ELSEWHERE = Size(24, 2), Size(8, 4)
"""The controllers of a foreign control plane create some twenty pods a second."""


async def run(ground: Ground, rounds: int = ROUNDS) -> Outcome:
    """The bare loop and gracectl in turns, then the peers."""
    size = EMBEDDED if ground.is_embedded else ELSEWHERE
    load, smaller = _load(size.nodes), _load(size.of_peers)
    pods = load.pods
    # No limit to the rate: what is measured is what limits it then.
    settings = {"eviction": {"qps": 0, "maxInFlight": AT_ONCE}}
    bare, ours = [], []
    for number in range(rounds):
        bare.append(await trial(ground, load, BARE, f"storm-bare-{number}"))
        ours.append(await trial(ground, load, Gracectl(settings=settings), f"storm-gracectl-{number}"))
    others = await _peers(ground, smaller, rounds)
    return Outcome(
        scenario="storm",
        about=f"{size.nodes} nodes with {PODS_OF_A_NODE} pods each end at once, without budgets",
        figures=(
            Figure(
                "evictions, share of the bare loop's",
                median(our.rate / loop.rate for our, loop in zip(ours, bare, strict=True)),
                " ×",
                at_least=0.9,
            ),
            Figure("eviction requests per pod", max(our.usage.per_pod(EVICTION, pods) for our in ours), "", 1.05),
            Figure("GETs of pods per pod", max(our.usage.per_pod("get pods", pods) for our in ours), "", 0),
            Figure("CPU for 1,000 pods", 1000 * median(our.usage.cpu or 0 for our in ours) / pods, " s"),
        ),
        parameters={
            "nodes": size.nodes,
            "pods": pods,
            "nodes of the peers": size.of_peers,
            "rounds": rounds,
            "in flight": AT_ONCE,
            **load.pace.in_words,
        },
        trials=(middle(bare), middle(ours), *others),
    )


async def _peers(ground: Ground, load: Load, rounds: int) -> list[Trial]:
    """At once, where all of them limit their own rate; Karpenter takes all there is."""
    others = peers(ground.karpenter)
    if ground.karpenter is None:
        return await in_parallel(ground, load, others, "storm-peer", rounds=rounds)
    found: list[list[Trial]] = [[] for _ in others]
    for each in range(rounds):
        for number, peer in enumerate(others):
            found[number].append(await trial(ground, load, peer, f"storm-peer-{number}-{each}"))
    return list(map(middle, found))


def _load(nodes: int) -> Load:
    replicas = nodes * PODS_OF_A_NODE // APPS
    return Load(nodes, tuple(App(f"app-{number}", replicas) for number in range(APPS)), Pace(stop=1.0))
