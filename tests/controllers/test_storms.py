"""Drains through storms: a seeded world, seeded faults between controller and server, seeded kills; invariants hold.

Some nodes have claims, some a deadline; some clusters know no claims at all.

The same seed makes the same run (set PYTHONHASHSEED=0 as well: the order of sets is Python's own chance).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import DropWatch, FreezeWatch, Latency, LateWatch, Partition, Refuse, Reset, Rule
from simulation.invariants import Invariants
from simulation.terms import Terms
from support.inprocess import Stutter
from support.stage import Stage, staged, the_settings
from support.weather import SETTINGS, Land, build, delete, survey

from gracectl.app.controller import Controller
from gracectl.cli.crds import shipped_definitions

pytestmark = pytest.mark.anyio

PATIENCE = 1800.0
"""Virtual seconds in which every drain must be over when the storm has passed."""


LATE = 2.5
"""Seconds after a deadline in which an instance is asked to end at the latest, whatever the server does: one for
writing it down, one for the drain's last word, and the cloud's own slowness."""


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


async def vanish(stage: Stage, invariants: Invariants, chance: random.Random, node: str) -> None:
    """The server is away when the deadline of a node comes: it refuses, or nothing is heard of it at all."""
    while (due := invariants.due(node)) is None:
        await stage.clock.sleep(0.1)
    await stage.clock.sleep(due.at - stage.clock.monotonic() - chance.choice([0.1, chance.uniform(0, 8)]))
    if chance.random() < 0.5:
        stage.transport.is_listening = False
        await stage.clock.sleep(chance.uniform(0.1, 12))
        stage.transport.is_listening = True
    else:
        silence = Rule(fault=Partition())
        stage.transport.before.add(silence)
        await stage.clock.sleep(chance.uniform(0.1, 30))
        stage.transport.before.remove(silence)


async def govern(stage: Stage, chance: random.Random) -> None:
    """The settings change again and again, in whatever may change while a controller runs and moves no deadline."""
    stage.reread = lambda: stage.settings
    while True:
        await stage.clock.sleep(chance.uniform(2, 15))
        ranges = [{"priority": 0, "shutdownGracePeriodSeconds": 0}, {"priority": 1000, "shutdownGracePeriodSeconds": 0}]
        changed = the_settings(
            eviction={
                "qps": chance.choice([0, 1, 5, 100]),
                "burst": chance.choice([1, 100]),
                "maxInFlight": chance.choice([1, 3, 50]),
                "backoffMaximumSeconds": chance.choice([0.5, 10]),
                "probeSeconds": chance.choice([5, 60]),
            },
            drain={"minimumSeconds": chance.choice([0, 2, 7])},
            protection={"from": chance.choice(["creation", "start"])},
            health={"enabled": chance.random() < 0.5},
            instance={"retryMaximumSeconds": chance.choice([5, 300])},
            **chance.choice([{}, {"shutdownGracePeriodByPodPriority": ranges}]),
        )
        stage.settings = msgspec.structs.replace(changed, node_groups=SETTINGS.node_groups)


async def storm(stage: Stage, invariants: Invariants, chance: random.Random, land: Land) -> None:
    """The drains, under faults and kills; returns when the storm is over."""
    async with anyio.create_task_group() as group:
        rain(stage, chance)
        group.start_soon(disturb, stage, chance)
        group.start_soon(govern, stage, random.Random(f"settings/{chance.random()}"))
        for name in sorted(land.periods):
            if chance.random() < 0.3:
                group.start_soon(vanish, stage, invariants, chance, name)
        for _ in range(chance.randint(0, 3)):
            async with stage.mortal():
                with invariants.life():
                    await delete(stage, chance, land)
                    await stage.clock.sleep(chance.uniform(0, 15))
        async with stage.mortal():
            with invariants.life():
                await delete(stage, chance, land)
                await stage.clock.sleep(chance.uniform(5, 90))
        group.cancel_scope.cancel()
    stage.transport.is_listening = True
    stage.transport.stutter = Stutter()
    stage.transport.before.clear()
    stage.transport.behind.clear()


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
        for name, spec in specs.items():
            await stage.add_nodes(name, **spec)
        await build(stage, chance, land)
        invariants = Invariants(stage, Terms(seed=seed, asked=frozenset(land.deleted), deadline_slack=LATE))
        async with invariants.watching():
            async with stage.mortal() as controller:
                await stage.settle(controller)
            await storm(stage, invariants, chance, land)
            invariants.faults_end()
            async with stage.controller() as controller:
                with invariants.life():
                    await finish(stage, controller, chance, land)
                violations = invariants.check_end(calm=True)
        assert not violations, "\n".join(violations)
    return stage


async def finish(stage: Stage, controller: Controller, chance: random.Random, land: Land) -> None:
    """The storm is over, and all that was begun comes to its end."""
    await controller.wait_live()
    await delete(stage, chance, land, probability=1.0)
    with anyio.move_on_after(PATIENCE) as patience:
        await stage.until_gone(*land.deleted)
        await stage.until_claims_gone(*(f"{name}-claim" for name in land.deleted))
    assert not patience.cancelled_caught, f"not over: {stuck(stage, controller, land.deleted)}"
    await stage.clock.sleep(1)
    assert controller.under_way() == ()
    assert controller.claims_under_way() == ()
    assert controller.statistics().evictor.waiting == 0


def stuck(stage: Stage, controller: Controller, deleted: list[str]) -> list[object]:
    """What there is to say about drains that do not end."""
    left = {name: [pod["metadata"]["name"] for pod in stage.pods_on(name)] for name in deleted if stage.node(name)}
    return [left, *controller.under_way(), *controller.claims_under_way(), controller.statistics()]


@pytest.mark.timeout(60)
@pytest.mark.seeds(6)
async def test_every_drain_ends_and_no_rule_is_broken(seed: int) -> None:
    await weather(seed)
