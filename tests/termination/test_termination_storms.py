"""Drains through storms: a seeded world, seeded faults between controller and server, seeded kills; invariants hold.

Some nodes have claims, some a deadline; some clusters know no claims at all.

    GRACECTL_STORMS=300 pytest tests/termination/test_termination_storms.py      more seeds than the suite has time for
    GRACECTL_STORMS=1 GRACECTL_FIRST_STORM=217 pytest ...                        the one that failed

The same seed makes the same run (set PYTHONHASHSEED=0 as well: the order of sets is Python's own chance).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from support.inprocess import Stutter
from support.referee import Referee
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings

from gracectl.app import Controller
from gracectl.model import names
from gracectl.sim.extensions.shipped import shipped_definitions
from gracectl.sim.faults import DropWatch, FreezeWatch, Latency, LateWatch, Partition, Refuse, Reset, Rule
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.cloud import CloudSettings
from gracectl.sim.world.nodeclaims import ClaimSpec

pytestmark = pytest.mark.anyio

FIRST = int(os.environ.get("GRACECTL_FIRST_STORM", "0"))
COUNT = int(os.environ.get("GRACECTL_STORMS", "16"))
PATIENCE = 1800.0
"""Virtual seconds in which every drain must be over when the storm has passed."""


LATE = 2.5
"""Seconds after a deadline in which an instance is asked to end at the latest, whatever the server does: one for
writing it down, one for the drain's last word, and the cloud's own slowness."""

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
    doomed: list[str]
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


async def build(stage: Stage, referee: Referee, chance: random.Random, land: Land) -> None:
    """A world that can always be drained, and is never easy."""
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
        referee.needed[name] = replicas - allowed
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
    """A pod of its own, protected for a while; where a deadline ends it in any case, perhaps for ever."""
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


def rain(stage: Stage, chance: random.Random) -> None:
    """Some of the faults there are, all at once, with probabilities that let the work go on at times."""
    before, behind = stage.transport.before, stage.transport.behind
    if chance.random() < 0.6:
        stage.transport.stutter = Stutter(chance.uniform(0.02, 0.5), chance.choice([0.05, 0.5, 5.0]))
    kinds: list[Callable[[float], None]] = [
        lambda p: before.add(Rule(fault=Refuse(500), probability=p)),
        lambda p: before.add(Rule(fault=Refuse(503), probability=p)),
        lambda p: before.add(Rule(fault=Refuse(429, retry_after=chance.randint(1, 4)), probability=p / 2)),
        lambda p: before.add(Rule(fault=Reset(), probability=p)),
        lambda p: behind.add(Rule(fault=Reset(carried_out=True), probability=p)),
        lambda p: behind.add(Rule(fault=Refuse(500), probability=p)),
        lambda p: behind.add(Rule(fault=Refuse(504), path="eviction", probability=p)),
        lambda p: behind.add(Rule(fault=Latency(0.0, 2.0), probability=1.0)),
        lambda p: behind.add(Rule(fault=Latency(25.0, 40.0), probability=p / 4)),
        lambda p: before.add(Rule(fault=Latency(0.0, 1.0), probability=1.0)),
        lambda p: before.add(Rule(fault=DropWatch(chance.uniform(0.1, 20)), probability=min(1.0, 3 * p))),
        lambda p: before.add(Rule(fault=FreezeWatch(chance.uniform(0.1, 20)), probability=p)),
        lambda p: before.add(Rule(fault=LateWatch(0.0, chance.choice([0.2, 3.0])), probability=min(1.0, 3 * p))),
        lambda p: before.add(Rule(fault=Refuse(409), method="PATCH", probability=p)),
        lambda p: before.add(Rule(fault=Refuse(500), method="DELETE", path="pods", probability=min(1.0, 2 * p))),
        lambda p: behind.add(Rule(fault=Reset(carried_out=True), method="DELETE", path="pods", probability=2 * p)),
    ]
    for kind in chance.sample(kinds, chance.randint(1, 5)):
        kind(chance.uniform(0.05, 0.4))


async def disturb(stage: Stage, chance: random.Random) -> None:
    """What happens to the server itself: it forgets history, it goes away for a while."""
    while True:
        await stage.clock.sleep(chance.uniform(1, 20))
        match chance.choice(["forget", "forget", "away", "busybody"]):
            case "forget":
                table = chance.choice(["nodes", "pods", "poddisruptionbudgets.policy", "nodeclaims.karpenter.sh"])
                stage.server.store.table(table).forget(stage.server.store.revision)
            case "away":
                stage.transport.is_listening = False
                await stage.clock.sleep(chance.uniform(0.1, 8))
                stage.transport.is_listening = True
            case _:
                for node in stage.nodes():
                    label = {"metadata": {"labels": {"busybody": str(chance.randint(0, 99))}}}
                    await stage.patch_node(node["metadata"]["name"], label)


async def vanish(stage: Stage, referee: Referee, chance: random.Random, node: str) -> None:
    """The server is away when the deadline of a node comes: it refuses, or nothing is heard of it at all."""
    while (due := referee.deadlines.of(node)) is None:
        await stage.clock.sleep(0.1)
    await stage.clock.sleep(due.at - referee.now - chance.choice([0.1, chance.uniform(0, 8)]))
    if chance.random() < 0.5:
        stage.transport.is_listening = False
        await stage.clock.sleep(chance.uniform(0.1, 12))
        stage.transport.is_listening = True
    else:
        silence = Rule(fault=Partition())
        stage.transport.before.add(silence)
        await stage.clock.sleep(chance.uniform(0.1, 30))
        stage.transport.before.remove(silence)


async def storm(stage: Stage, referee: Referee, chance: random.Random, land: Land) -> None:
    """The drains, under faults and kills; returns when the storm is over."""
    async with anyio.create_task_group() as group:
        rain(stage, chance)
        group.start_soon(disturb, stage, chance)
        for name in sorted(land.periods):
            if chance.random() < 0.3:
                group.start_soon(vanish, stage, referee, chance, name)
        for _ in range(chance.randint(0, 3)):
            async with stage.mortal():
                with referee.life():
                    await delete(stage, chance, land)
                    await stage.clock.sleep(chance.uniform(0, 15))
        async with stage.mortal():
            with referee.life():
                await delete(stage, chance, land)
                await stage.clock.sleep(chance.uniform(5, 90))
        group.cancel_scope.cancel()
    stage.transport.is_listening = True
    stage.transport.stutter = Stutter()
    stage.transport.before.clear()
    stage.transport.behind.clear()


async def delete(stage: Stage, chance: random.Random, land: Land, probability: float = 0.8) -> None:
    """People delete what nobody has deleted yet, nodes or their claims."""
    for name in land.doomed:
        node, claim = stage.node(name), stage.claim(f"{name}-claim")
        if node is None or "deletionTimestamp" in node["metadata"] or chance.random() >= probability:
            continue
        if claim is None or chance.random() < 0.5:
            await stage.delete_node(name)
        else:
            await stage.delete_claim(f"{name}-claim")
        await stage.clock.sleep(chance.choice([0.0, 0.0, 0.3, 2.0]))


async def weather(seed: int) -> Stage:
    """One whole run; raises AssertionError for every rule that was broken."""
    chance = random.Random(f"storm/{seed}")
    definitions = shipped_definitions() if chance.random() < 0.8 else ()
    land, specs = survey(chance, knows_claims=bool(definitions))
    cloud = CloudSettings(
        terminate_delay=chance.uniform(0, 5),
        answer_delay=chance.choice([0.0, 0.2]),
        failure_probability=chance.choice([0.0, 0.3]),
    )
    delays: dict[str, Any] = {"attach_seconds": chance.uniform(0, 0.5), "detach_seconds": chance.uniform(0, 3)}
    async with staged(seed=seed, cloud=cloud, settings=SETTINGS, definitions=definitions, **delays) as stage:
        referee = Referee(stage, land.periods)
        for name, spec in specs.items():
            await stage.add_nodes(name, **spec)
        await build(stage, referee, chance, land)
        async with stage.mortal() as controller:
            await stage.settle(controller)
        await storm(stage, referee, chance, land)
        async with stage.controller() as controller:
            with referee.life():
                await finish(stage, controller, chance, land)
        broken = referee.verdict(LATE)
        assert not broken, "\n".join(broken)
        assert [uid for uid, times in stage.agreed().items() if times > 1] == []
        assert {stage.instance_state(name) for name in land.nodes if name not in land.doomed} == {"running"}
    return stage


async def finish(stage: Stage, controller: Controller, chance: random.Random, land: Land) -> None:
    """The storm is over, and all that was begun comes to its end."""
    await controller.wait_live()
    await delete(stage, chance, land, probability=1.0)
    with anyio.move_on_after(PATIENCE) as patience:
        await stage.until_gone(*land.doomed)
        await stage.until_claims_gone(*(f"{name}-claim" for name in land.doomed))
    assert not patience.cancelled_caught, f"not over: {stuck(stage, controller, land.doomed)}"
    await stage.clock.sleep(1)
    assert controller.under_way() == ()
    assert controller.claims_under_way() == ()
    assert controller.statistics().evictor.waiting == 0


def stuck(stage: Stage, controller: Controller, doomed: list[str]) -> list[object]:
    """What there is to say about drains that do not end."""
    left = {name: [pod["metadata"]["name"] for pod in stage.pods_on(name)] for name in doomed if stage.node(name)}
    return [left, *controller.under_way(), *controller.claims_under_way(), controller.statistics()]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
async def test_every_drain_ends_and_no_rule_is_broken(seed: int) -> None:
    await weather(seed)
