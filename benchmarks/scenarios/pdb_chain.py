"""k pods under one `maxUnavailable: 1` budget, spread over nodes that are ended at once: who waits least?"""

from __future__ import annotations

from statistics import median

import msgspec

from benchmarks.contenders.alone import Alone
from benchmarks.contenders.assisted import AssistedKarpenter
from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.ideal import Ideal
from benchmarks.contenders.peers import peers
from benchmarks.ground.ground import Ground
from benchmarks.ground.site import App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import ROUNDS, Load, Trial, beside, middle, trial, vs_ideal

PODS, NODES = 12, 4

ALLOWED = frozenset(("create pods/eviction", "delete pods", "create events", "patch events"))
"""All that gracectl may write while it assists."""


async def run(ground: Ground, rounds: int = ROUNDS) -> Outcome:
    """The ideal and gracectl in turns, and the peers at the same time: they sleep nearly all of theirs.

    `gracectl drain` is compared from its first request on: before that Python starts, which costs as much for a drain
    of an hour. The table has all of it.
    """
    load = Load(NODES, (App("chain", PODS, {"maxUnavailable": 1}),))
    ideals, ours, alone, drain = [], [], [], Alone()
    async with beside(ground, load, peers(ground.karpenter), "chain-peer", rounds=rounds) as others:
        for number in range(rounds):
            ideals.append(await trial(ground, load, Ideal(), f"chain-ideal-{number}"))
            ours.append(await trial(ground, load, Gracectl(), f"chain-gracectl-{number}"))
            alone.append(await trial(ground, load, drain, f"chain-alone-{number}"))
    assisted, found = await _assisted(ground, load, rounds)
    starts = zip(alone, drain.starts, strict=True)
    begun = [msgspec.structs.replace(one, seconds=one.seconds - start) for one, start in starts]
    both = (*ours, *alone)
    return Outcome(
        scenario="pdb-chain",
        about=f"{PODS} pods under one maxUnavailable 1 budget leave {NODES} nodes that end at once",
        figures=(
            Figure("drain vs the ideal", median(vs_ideal(ours, ideals)), " ×", 1.15),
            Figure("gracectl drain, nothing installed, vs the ideal", median(vs_ideal(begun, ideals)), " ×", 1.1),
            Figure("its start until its first request", median(drain.starts), " s"),
            Figure("eviction requests per pod", max(our.usage.per_pod(EVICTION, PODS) for our in both), "", 1.05),
            Figure("GETs of pods per pod", max(our.usage.per_pod("get pods", PODS) for our in both), "", 0),
            Figure("most pods missing at once", max(our.most_missing["chain"] for our in both), "", 1),
            *found,
        ),
        parameters={"pods": PODS, "nodes": NODES, "rounds": rounds, **load.pace.in_words},
        trials=(middle(ideals), middle(ours), middle(alone), *others, *assisted),
    )


async def _assisted(ground: Ground, load: Load, rounds: int) -> tuple[tuple[Trial, ...], tuple[Figure, ...]]:
    """The ideal and Karpenter with assistance in turns, after the other Karpenter has ended: each acts on all nodes."""
    if ground.karpenter is None:
        return (), ()
    ideals, assisted, contender = [], [], AssistedKarpenter(ground.karpenter)
    writes: set[str] = set()
    for number in range(rounds):
        ideals.append(await trial(ground, load, Ideal(), f"chain-ideal-assisted-{number}"))
        assisted.append(await trial(ground, load, contender, f"chain-assisted-{number}"))
        writes |= contender.writes.keys()
    return (middle(assisted),), (
        Figure("Karpenter with assistance, drain vs the ideal", median(vs_ideal(assisted, ideals)), " ×", 1.3),
        Figure(
            "Karpenter with assistance, most pods missing", max(one.most_missing["chain"] for one in assisted), "", 1
        ),
        Figure("kinds of requests with which gracectl then writes anything else", len(writes - ALLOWED), "", 0),
    )
