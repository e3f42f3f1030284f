"""A controller ends in the middle of a drain; how soon does the next one do the right thing, and only that?

Ended by SIGTERM it gives its lease back, killed it does not: then no other process may write before the lease
has run out.
"""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.restarted import Restarted
from benchmarks.ground.ground import Ground
from benchmarks.ground.site import App
from benchmarks.report import Figure, Outcome
from benchmarks.trial import Load, trial

NODES, LEASE = 8, 15
"""Nodes; and seconds that the lease of a controller lasts that has been killed."""
HANDOVER = 1.0
"""Seconds from the instant at which the lease is free until a standby has evicted a pod, at most."""


async def run(ground: Ground) -> Outcome:
    """Undisturbed; then ended and started again, and ended beside a standby, each in both ways."""
    apps = (*(App(f"budgeted-{number}", 12, {"maxUnavailable": 1}) for number in range(6)), App("free", 24))
    load = Load(NODES, apps)
    undisturbed = await trial(ground, load, Gracectl("gracectl, undisturbed"), "restart-none")
    again = [Restarted(SIGTERM), Restarted(SIGKILL)]
    beside = [Restarted(SIGTERM, has_standby=True), Restarted(SIGKILL, has_standby=True)]
    trials = [await trial(ground, load, one, f"restart-{number}") for number, one in enumerate((*again, *beside))]
    return Outcome(
        scenario="restart",
        about=f"the controller ends while {load.pods} pods leave {NODES} nodes",
        figures=(
            Figure("a cold start until the first eviction, the lease being free", again[0].since_start, " s"),
            *(Figure(f"{one.name}: until the next eviction", one.gap, " s") for one in again),
            *(Figure(f"{one.name}: until the next eviction", one.gap, " s", most) for one, most in _promised(beside)),
            *(Figure(f"{one.name}: since the lease was free", one.since_free, " s", HANDOVER) for one in beside),
            Figure(
                "eviction requests per pod, of both together",
                max(one.usage.per_pod(EVICTION, load.pods) for one in trials),
                "",
                1.05,
            ),
            Figure("pods given up", max(one.left for one in trials), "", 0),
            Figure("budgets broken", max(len(one.broken) for one in trials), "", 0),
        ),
        parameters={"nodes": NODES, "pods": load.pods, "rounds": 1, "lease": f"{LEASE} s", **load.pace.in_words},
        trials=(undisturbed, *trials),
    )


def _promised(beside: list[Restarted]) -> list[tuple[Restarted, float]]:
    """A standby takes over at once, or when the lease has run out."""
    return list(zip(beside, (HANDOVER, LEASE + HANDOVER), strict=True))
