"""Worlds for storms: nodes, claims and pods by seed, some of them with deadlines, and deletions of them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.server.api import JsonObject

from gracectl.model import names
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, the_settings

PERIODS = {"0s": 0.0, "3s": 3.0, "20s": 20.0, "1m": 60.0}
"""Termination grace periods, and their seconds."""
POOL = "pool"
SETTINGS = the_settings(
    nodeGroups=[{"selector": {"matchLabels": {POOL: period}}, "terminationGracePeriod": period} for period in PERIODS]
)

VOLUME: JsonObject = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


class Land(msgspec.Struct, frozen=True):
    """Nodes, those of them that will be deleted, those with a claim, and the TGP in seconds of those that have one."""

    nodes: list[str]
    deleted: list[str]
    claimed: set[str]
    periods: dict[str, float]


def survey(chance: random.Random, *, knows_claims: bool) -> tuple[Land, dict[str, dict[str, Any]]]:
    """Where the storm will pass, and what each node is made of."""
    nodes = [f"n{n}" for n in range(chance.randint(3, 5))]
    land = Land(nodes, chance.sample(nodes, chance.randint(1, len(nodes) - 1)), set(), {})
    specs: dict[str, dict[str, Any]] = {name: {} for name in nodes}
    for name in nodes:
        kind, period = chance.choice(["plain", "plain", "claim", "claim", "group"]), chance.choice([*PERIODS])
        if kind == "group" or (kind == "claim" and chance.random() < 0.8):
            land.periods[name] = PERIODS[period]
        if kind == "claim" and knows_claims:
            land.claimed.add(name)
            specs[name] = {"claim": ClaimSpec(termination_grace_period=period if name in land.periods else "")}
        elif name in land.periods:
            specs[name] = {"labels": {POOL: period}}
    return land, specs


async def build(stage: Stage, chance: random.Random, land: Land) -> None:
    """A world that can always be drained, and is never trivial."""
    for number in range(chance.randint(1, 3)):
        name, replicas = f"app{number}", chance.randint(2, 6)
        allowed = chance.randint(1, max(1, replicas // 2))
        behaviour = {
            "ready-seconds": round(chance.uniform(0, 2), 2),
            "stop-seconds": round(chance.uniform(0, 4), 2),
            "jitter": 0.5,
        }
        kind = chance.choice(["Deployment", "Deployment", "StatefulSet"])
        more = {"serviceName": name, "volumeClaimTemplates": [VOLUME]} if kind == "StatefulSet" else {}
        await stage.cluster.create(a_workload(kind, name, replicas, behaviour=behaviour, **more))
        await stage.cluster.create(a_budget_manifest(name, maxUnavailable=allowed))
    await stage.cluster.create(a_budget_manifest("shut", minAvailable=1000))
    for number in range(chance.randint(0, 8)):
        node = chance.choice(land.nodes)
        await stage.cluster.create(a_plain_pod(f"plain-{number}", node, chance, has_deadline=node in land.periods))
    if chance.random() < 0.5:
        daemon = a_workload("DaemonSet", "agent", 1, behaviour={"stop-seconds": 1})
        del daemon["spec"]["replicas"]
        await stage.cluster.create(daemon)
    await stage.cluster.until_ready()


def a_plain_pod(name: str, node: str, chance: random.Random, *, has_deadline: bool) -> JsonObject:
    """A pod of its own, protected for a while; where a deadline deletes it in any case, perhaps for ever."""
    grace, protection, app = chance.randint(1, 20), {}, name
    if chance.random() < 0.2:
        protection = {names.DO_NOT_DISRUPT: f"{chance.randint(5, 90)}s"}
    if has_deadline and chance.random() < 0.5:
        grace = chance.choice([0, 1, 5, 30, 200])
        protection = chance.choice([{}, {names.DO_NOT_DISRUPT: "true"}])
        app = chance.choice(["shut", name])
    return a_pod_manifest(
        name,
        node,
        labels={"app": app},
        behaviour={"stop-seconds": chance.randint(0, 25)},
        terminationGracePeriodSeconds=grace,
        annotations=protection,
    )


async def delete(stage: Stage, chance: random.Random, land: Land, probability: float = 0.8) -> None:
    """Delete what is not deleted yet, nodes or their claims."""
    for name in land.deleted:
        node, claim = stage.node(name), stage.claim(f"{name}-claim")
        if node is None or "deletionTimestamp" in node["metadata"] or chance.random() >= probability:
            continue
        if claim is None or chance.random() < 0.5:
            await stage.delete_node(name)
        else:
            await stage.delete_claim(f"{name}-claim")
        await stage.clock.sleep(chance.choice([0.0, 0.0, 0.3, 2.0]))
