"""Plans from seeds. The same seed makes the same plan, on every machine."""

from __future__ import annotations

import random

from msgspec.structs import replace

from simulation import faults, history, worlds
from simulation.plan import Plan

SHARES = {"calm": 0.1, "kills": 0.15, "alone": 0.4, "contested": 0.35}
"""How many seeds: without faults; with kills only; one process with all faults; several that contend for a Lease."""


def a_plan(seed: int) -> Plan:
    """The plan of this seed."""
    chance = random.Random(f"simulation/{seed}")
    kind = chance.choices([*SHARES], [*SHARES.values()])[0]
    knows_claims = chance.random() < 0.8
    elects = kind == "contested"
    nodes = worlds.some_nodes(chance, knows_claims=knows_claims)
    objects = worlds.some_objects(chance, nodes, knows_node_budgets=knows_claims)
    plan = Plan(
        seed=seed,
        settings=worlds.some_settings(chance),
        cluster=worlds.a_cluster(chance),
        processes=chance.choice([2, 2, 3]) if elects else 1,
        elects=elects,
        knows_claims=knows_claims,
        nodes=nodes,
        objects=objects,
        history=history.a_history(chance, nodes, objects),
        faults=faults.some_faults(chance, elects=elects),
    )
    if kind in ("calm", "kills"):
        plan = replace(plan, faults=tuple(act for act in plan.faults if kind == "kills" and act.what == "kill"))
    return plan
