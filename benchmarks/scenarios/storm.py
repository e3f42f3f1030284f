"""Many nodes at once, full of pods that no budget covers: how near does each come to a bare loop?"""

from __future__ import annotations

from statistics import median

from benchmarks.contenders.bare import AT_ONCE, BARE
from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.peers import peers
from benchmarks.ground.ground import Ground, Pace
from benchmarks.ground.site import App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import Load, middle, trial

PODS_OF_A_NODE, APPS, ROUNDS = 50, 10, 5
NODES, NODES_OF_PEERS = 24, 8
"""Some peers take minutes for so many nodes; rates are told of fewer just as well."""


async def run(ground: Ground) -> Outcome:
    """The bare loop and gracectl in turns; then the peers, one after another, as each takes all there is."""
    load, smaller = _load(NODES), _load(NODES_OF_PEERS)
    pods = load.pods
    # No limit to the rate: what is measured is what limits it then.
    settings = {"eviction": {"qps": 0, "maxInFlight": AT_ONCE}}
    bare, ours = [], []
    for number in range(ROUNDS):
        bare.append(await trial(ground, load, BARE, f"storm-bare-{number}"))
        ours.append(await trial(ground, load, Gracectl(settings=settings), f"storm-gracectl-{number}"))
    others = [await trial(ground, smaller, peer, f"storm-peer-{number}") for number, peer in enumerate(peers())]
    return Outcome(
        scenario="storm",
        about=f"{NODES} nodes with {PODS_OF_A_NODE} pods each end at once, without budgets",
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
            "nodes": NODES,
            "pods": pods,
            "nodes of the peers": NODES_OF_PEERS,
            "rounds": ROUNDS,
            "in flight": AT_ONCE,
            **load.pace.in_words,
        },
        trials=(middle(bare), middle(ours), *others),
    )


def _load(nodes: int) -> Load:
    replicas = nodes * PODS_OF_A_NODE // APPS
    return Load(nodes, tuple(App(f"app-{number}", replicas) for number in range(APPS)), Pace(stop=1.0))
