"""The same drain over a good way to the server, over one on which five requests in a hundred fail, and over a slow one.

Of the requests that fail, every other one has been obeyed before. Sites are made, and watched, over the good way.
"""

from __future__ import annotations

from statistics import median

from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.peers import peers
from benchmarks.ground.ground import Ground
from benchmarks.ground.proxy import faulty
from benchmarks.ground.site import App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import ROUNDS, Load, in_parallel, middle, trial, vs_ideal

NODES = 6
ERRORS, DELAY = 0.05, 0.25


async def run(ground: Ground, rounds: int = ROUNDS) -> Outcome:
    """gracectl over all three ways, the peers over that with errors."""
    apps = (*(App(f"budgeted-{number}", 8, {"maxUnavailable": 2}) for number in range(6)), App("free", 60))
    load = Load(NODES, apps)
    goods, failures, slows = [], [], []
    async with faulty(ground, errors=ERRORS) as way, faulty(ground, delay=DELAY) as slow_way:
        for number in range(rounds):
            goods.append(await trial(ground, load, Gracectl("gracectl, a good way"), f"faults-none-{number}"))
            one = Gracectl(f"gracectl, {ERRORS:.0%} errors")
            failures.append(await trial(ground, load, one, f"faults-errors-{number}", way))
            one = Gracectl(f"gracectl, {DELAY:g} s slow")
            slows.append(await trial(ground, load, one, f"faults-slow-{number}", slow_way))
        others = await in_parallel(ground, load, peers(), "faults-peer", way, rounds)
    every, most = (*goods, *failures, *slows), 1.05 / (1 - ERRORS)
    return Outcome(
        scenario="faults",
        about=f"{NODES} nodes and {load.pods} pods; {ERRORS:.0%} of all requests fail, or each waits {DELAY:g} s",
        figures=(
            Figure("drain with errors vs without", median(vs_ideal(failures, goods)), " ×"),
            Figure("drain over a slow way vs a fast one", median(vs_ideal(slows, goods)), " ×"),
            # Of each hundred, five fail, and are asked for again.
            Figure(
                "eviction requests per pod, with errors",
                median(one.usage.per_pod(EVICTION, load.pods) for one in failures),
                "",
                most,
            ),
            Figure("pods given up", max(our.left for our in every), "", 0),
            Figure("budgets broken", max(len(our.broken) for our in every), "", 0),
        ),
        parameters={
            "nodes": NODES,
            "pods": load.pods,
            "rounds": rounds,
            "errors": ERRORS,
            "delay": f"{DELAY:g} s",
            **load.pace.in_words,
        },
        trials=(middle(goods), middle(failures), middle(slows), *others),
        notes=("The peers go over the way with errors.",),
    )
