"""The same drain over a good way to the server, over one on which five requests in a hundred fail, and over a slow one.

Of the requests that fail, every other one has been obeyed before. Sites are made, and watched, over the good way.
"""

from __future__ import annotations

from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.peers import peers
from benchmarks.ground.ground import Ground
from benchmarks.ground.proxy import faulty
from benchmarks.ground.site import App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import Load, beside, trial

NODES = 6
ERRORS, DELAY = 0.05, 0.25


async def run(ground: Ground) -> Outcome:
    """gracectl over all three ways, the peers over that with errors."""
    apps = (*(App(f"budgeted-{number}", 8, {"maxUnavailable": 2}) for number in range(6)), App("free", 60))
    load = Load(NODES, apps)
    good = await trial(ground, load, Gracectl("gracectl, a good way"), "faults-none")
    async with faulty(ground, errors=ERRORS) as way:
        failing = await trial(ground, load, Gracectl(f"gracectl, {ERRORS:.0%} errors"), "faults-errors", way)
        async with beside(ground, load, peers(), "faults-peer", way) as others, faulty(ground, delay=DELAY) as slow_way:
            slow = await trial(ground, load, Gracectl(f"gracectl, {DELAY:g} s slow"), "faults-slow", slow_way)
    ours, most = (good, failing, slow), 1.05 / (1 - ERRORS)
    return Outcome(
        scenario="faults",
        about=f"{NODES} nodes and {load.pods} pods; {ERRORS:.0%} of all requests fail, or each waits {DELAY:g} s",
        figures=(
            Figure("drain with errors vs without", failing.seconds / good.seconds, " ×"),
            Figure("drain over a slow way vs a fast one", slow.seconds / good.seconds, " ×"),
            # Of each hundred, five fail, and are asked for again.
            Figure("eviction requests per pod, with errors", failing.usage.per_pod(EVICTION, load.pods), "", most),
            Figure("pods given up", max(our.left for our in ours), "", 0),
            Figure("budgets broken", max(len(our.broken) for our in ours), "", 0),
        ),
        parameters={"nodes": NODES, "pods": load.pods, "errors": ERRORS, "delay": f"{DELAY:g} s", **load.pace.in_words},
        trials=(*ours, *others),
        notes=("The peers go over the way with errors.",),
    )
