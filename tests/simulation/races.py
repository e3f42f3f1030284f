"""Plans of races: all that is late is late by a known, small time, so that what a controller leaves undone shows soon.

Other plans have longer waits, which hide a wake-up that is lost: something else changes, or a probe finds out.
"""

from __future__ import annotations

import random
from typing import Any

from kubesim.faults import Latency, LateWatch
from kubesim.server.api import JsonObject
from support.disruption import a_node_budget_manifest
from support.stage import a_budget_manifest, a_workload

from simulation.faults import rule
from simulation.plan import RACE, REFUGE, Act, NodePlan, Plan
from simulation.worlds import TEAM

SHARE = 0.06
"""How many seeds are races."""
SECONDS = 240.0
"""For so long answers and watches are late."""
PODS_LATE, ANSWERS_LATE = 0.3, 0.2
"""Seconds: a budget has counted an evicted pod before the answer comes, and its watch has shown that; the watch of
pods shows the pod last."""


def is_race(seed: int) -> bool:
    """Whether this seed is one."""
    return random.Random(f"simulation/is a race/{seed}").random() < SHARE


def a_race(seed: int) -> Plan:
    """The plan of a seed that is one: nodes leave one after the other, as their budget and the pace permit."""
    chance = random.Random(f"simulation/race/{seed}")
    nodes = (NodePlan(name=REFUGE), *(NodePlan(name=f"n{n}", labels=dict(TEAM)) for n in range(1, 5)))
    labeled = [Act(at=round(chance.uniform(0, 5), 3), what="label terminable", subject=node.name) for node in nodes[1:]]
    return Plan(
        seed=seed,
        settings={"voluntary": {"maximumAtOnce": 1, "waitForReplacement": False}},
        cluster={"cloud": {"terminate_delay": round(chance.uniform(0, 2), 2)}},
        nodes=nodes,
        objects=(
            *_workload(chance, "app0"),
            *_workload(chance, "app1"),
            a_node_budget_manifest("team-a", TEAM, maxUnavailable=1),
        ),
        history=tuple(sorted(labeled, key=lambda act: act.at)),
        faults=(Act(at=0.0, what=RACE, subject="all", seconds=SECONDS, value=_late()),),
    )


def _workload(chance: random.Random, name: str) -> tuple[JsonObject, ...]:
    """Its budget allows several evictions, and no pod that becomes Ready changes that for a while."""
    behaviour: dict[str, Any] = {
        "ready-seconds": round(chance.uniform(4, 8), 2),
        "stop-seconds": round(chance.uniform(0.5, 2), 2),
    }
    replicas = chance.randint(8, 12)
    return a_workload("Deployment", name, replicas, behaviour=behaviour), a_budget_manifest(name, maxUnavailable="50%")


def _late() -> list[dict[str, Any]]:
    return [
        rule("before", LateWatch(PODS_LATE, PODS_LATE), path="/pods"),
        rule("behind", Latency(ANSWERS_LATE, ANSWERS_LATE), path="/eviction"),
        rule("before", Latency(0.0, ANSWERS_LATE), method="PATCH", path="nodedisruptionbudgets"),
    ]
