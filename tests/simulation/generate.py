"""Plans from seeds. The same seed makes the same plan, on every machine."""

from __future__ import annotations

import random
from typing import Any

from simulation import campaigns, faults, history, races, worlds
from simulation.plan import CLOCKS, COPIED, LYING, Act, Plan

SHARES = {"calm": 0.1, "kills": 0.15, "alone": 0.4, "contested": 0.35}
"""How many seeds: without faults; with kills only; one process with all faults; several that contend for a Lease."""


def a_plan(seed: int) -> Plan:
    """The plan of this seed."""
    if races.is_race(seed):
        return races.a_race(seed)
    chance = random.Random(f"simulation/{seed}")
    kind = chance.choices([*SHARES], [*SHARES.values()])[0]
    knows_claims = chance.random() < 0.8
    elects = kind == "contested"
    nodes = worlds.some_nodes(chance, knows_claims=knows_claims)
    objects = worlds.some_objects(chance, nodes, knows_node_budgets=knows_claims)
    objects = worlds.some_asking(random.Random(f"replacing/{seed}"), objects)
    return Plan(
        seed=seed,
        settings=_with_windows(seed, worlds.some_settings(chance)),
        cluster=worlds.a_cluster(chance),
        processes=chance.choice([2, 2, 3]) if elects else 1,
        elects=elects,
        knows_claims=knows_claims,
        nodes=nodes,
        objects=objects,
        history=(
            *history.a_history(chance, nodes, objects),
            *history.some_notices(seed, nodes),
            *campaigns.some_campaigns(seed, nodes, knows_claims=knows_claims),
        ),
        faults=(*_faults(chance, kind), *_contradictions(seed, kind)),
    )


def _with_windows(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    windows = campaigns.some_windows(seed)
    return {**settings, "voluntary": {**settings.get("voluntary", {}), **windows}} if windows else settings


def _contradictions(seed: int, kind: str) -> tuple[Act, ...]:
    """Clocks an hour apart, and kubelets that copy or lie, for one seed in eight of each; by chances of
    their own."""
    chance = random.Random(f"contradictions/{seed}")
    if kind not in ("alone", "contested"):
        return ()
    kinds = [each for each in (CLOCKS,) if chance.random() < 1 / 8]
    drawn = [faults.a_fault(chance, each, elects=kind == "contested") for each in kinds]
    chance = random.Random(f"kubelets/{seed}")
    kinds = [each for each in (COPIED, LYING) if chance.random() < 1 / 8]
    return (*drawn, *(faults.a_fault(chance, each, elects=kind == "contested") for each in kinds))


def _faults(chance: random.Random, kind: str) -> tuple[Act, ...]:
    if kind == "calm":
        return ()
    if kind == "kills":
        kills = faults.some_faults(chance, ("kill", "kill near"), elects=False)
        return (Act(at=0.0, what="latency", subject="all", seconds=90.0, value=faults.SMALL), *kills)
    return faults.some_faults(chance, elects=kind == "contested")
