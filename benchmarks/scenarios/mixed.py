"""A day in a real cluster: dozens of budgets, pods without any, promises, and a deadline for every node, at once.

The ideal and the peers know nothing of promises; so what is compared is how long those pods take to which nothing was
promised, and beside it how many promises were broken.
"""

from __future__ import annotations

from statistics import median

from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.ideal import Ideal
from benchmarks.contenders.peers import peers
from benchmarks.ground.ground import Ground
from benchmarks.ground.site import OLD, ROLE, App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import ROUNDS, Load, Trial, beside, middle, trial, vs_ideal

NODES = 12
STUBBORN = App("stubborn", 6, promise=3600)
"""More than there is: they are deleted for the deadline, and never evicted."""
BUDGETS = ({"maxUnavailable": 1}, {"maxUnavailable": 2}, {"maxUnavailable": "20%"})


async def run(ground: Ground, rounds: int = ROUNDS) -> Outcome:
    """The ideal and gracectl in turns, and beside them the peers, each on nodes of its own."""
    # Until it begins, pods and nodes must be there: a foreign cluster takes longer for them. A deadline beyond that.
    promise, deadline = (8, 18) if ground.is_embedded else (90, 120)
    load = Load(NODES, _apps(promise), deadline=deadline)
    group = {"selector": {"matchLabels": {ROLE: OLD}}, "terminationGracePeriod": f"{deadline}s"}
    ideals, ours = [], []
    async with beside(ground, load, peers(ground.karpenter, deadline), "mixed-peer", rounds=rounds) as others:
        for number in range(rounds):
            ideals.append(await trial(ground, load, Ideal(), f"mixed-ideal-{number}"))
            gracectl = Gracectl(settings={"nodeGroups": [group]})
            ours.append(await trial(ground, load, gracectl, f"mixed-gracectl-{number}"))
    pods, lateness = load.pods, ours[-1].usage.lateness
    evicted = pods - STUBBORN.replicas
    budgets = sum(app.bound is not None for app in load.apps)
    return Outcome(
        scenario="mixed",
        about=f"{pods} pods under {budgets} budgets, with promises and deadlines",
        figures=(
            Figure("drain vs the ideal", median(vs_ideal(ours, ideals)), " ×", 1.15),
            Figure(
                "eviction requests per pod",
                max(our.usage.per_pod(EVICTION, evicted) for our in ours),
                "",
                1.05,
            ),
            Figure("GETs of pods per pod", max(our.usage.per_pod("get pods", pods) for our in ours), "", 0),
            Figure("budgets broken", max(len(our.broken) for our in ours), "", 0),
            Figure("promises broken", max(our.promises_broken for our in ours), "", 0),
            *(each for one in (middle(ours), *others) for each in _after_promises(one)),
            *(Figure(f"deletes for deadlines late at most, {name}", late, " s") for name, late in lateness.items()),
        ),
        parameters={"nodes": NODES, "pods": pods, "rounds": rounds, "deadline": f"{deadline} s", **load.pace.in_words},
        trials=(middle(ideals), middle(ours), *others),
    )


def _after_promises(one: Trial) -> tuple[Figure, ...]:
    """How soon pods leave once they may, of those that keep promises."""
    after = one.after_promises
    if one.promises_broken or not after:
        return ()
    name = f"{one.contender}: evicted after a promise ends"
    return (Figure(f"{name}, median", median(after), " s"), Figure(f"{name}, max", after[-1], " s"))


def _apps(promise: float) -> tuple[App, ...]:
    """Thirty under budgets, five without, two with a promised time, and one with more than there is."""
    budgeted = (App(f"budgeted-{number}", 6 + number % 5, BUDGETS[number % len(BUDGETS)]) for number in range(30))
    free = (App(f"free-{number}", 12) for number in range(5))
    promised = (App(f"promised-{number}", 6, promise=promise) for number in range(2))
    return (*budgeted, *free, *promised, STUBBORN)
