"""Kill -9 at any instant, also a few milliseconds around those that count: every node that has a deadline ends by it,
and no pod is deleted before its time.

The same seed makes the same run (set PYTHONHASHSEED=0 as well: the order of sets is Python's own chance).
"""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Rule
from kubesim.server.api import JsonObject
from simulation.invariants import Invariants
from simulation.terms import Terms
from support.stage import SILENT, Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings

from gracectl.app.controller import Controller
from gracectl.model import names
from gracectl.model.times import format_time

pytestmark = pytest.mark.anyio

KILLS_PER_WORLD = 10

PERIODS = {"0s": 0, "1s": 1, "10s": 10, "45s": 45, "2m": 120, "15m": 900}
GRACES = (None, 0, 1, 5, 30, 60, 300, 1200, 3600)
MODEST_GRACES = (None, 0, 1, 5, 20)
BEGIN_WITHIN = 40.0
"""Virtual seconds in which people delete what is to be deleted."""
LATE = 0.2
"""The longest (seconds) that a controller which is in charge may take for anything."""
PATIENCE = 1200.0
"""Virtual seconds in which everything must be over when no controller is killed any more; longer than any period."""

POOL = "pool"
SETTINGS = the_settings(
    nodeGroups=[{"selector": {"matchLabels": {POOL: period}}, "terminationGracePeriod": period} for period in PERIODS]
)


class World:
    """A seeded world: `deleted` nodes that people will delete, `periods` of those that have a TGP."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.deleted = [f"n{n}" for n in range(chance.randint(2, 5))]
        self.periods: dict[str, float] = {}
        self.claimed: set[str] = set()
        self._late = 0

    async def build(self, stage: Stage) -> Invariants:
        """Nodes and what runs on them."""
        await stage.add_nodes("refuge")
        specs = {name: self._a_node(name) for name in self.deleted}
        for name, spec in specs.items():
            await stage.add_nodes(name, **spec)
        # A budget that never allows an eviction, and one that makes evictions impossible for some.
        for budget in ("shut", "double"):
            await stage.cluster.create(a_budget_manifest(budget, minAvailable=1000))
        await stage.cluster.create(
            a_budget_manifest("alias", minAvailable=0, selector={"matchLabels": {"app": "double"}})
        )
        for name, kind in (("web", "Deployment"), ("db", "StatefulSet")):
            pace = {"ready-seconds": 0.5, "stop-seconds": self.chance.uniform(0, 6)}
            await stage.cluster.create(a_workload(kind, name, 4, behaviour=pace))
            await stage.cluster.create(a_budget_manifest(name, maxUnavailable=1))
        for name in self.deleted:
            for _ in range(self.chance.randint(1, 5)):
                await stage.cluster.create(self.a_pod(name))
        await stage.cluster.create(a_pod_manifest("stays", self.deleted[0], labels={"app": "shut"}))
        await stage.cluster.until_ready()
        return Invariants(stage, Terms(asked=frozenset(self.deleted), fair=True, deadline_slack=LATE))

    def _a_node(self, name: str) -> dict[str, Any]:
        """What kind of node it is: with a claim or plain, with a TGP of its own, of its group, or none.

        The first one has a long way to go, so that kills find something to disturb.
        """
        is_first = name == self.deleted[0]
        period, other = self.chance.choice([*PERIODS][3 * is_first :]), self.chance.choice([*PERIODS])
        kinds = ["claim", "claim", "claim of group", "group", "group", *["claim without", "plain"] * (not is_first)]
        match self.chance.choice(kinds):
            case "claim":
                self.periods[name] = PERIODS[period]
                self.claimed.add(name)
                group = {POOL: other} if self.chance.random() < 0.3 else {}
                return {"claim": ClaimSpec(termination_grace_period=period), "labels": group}
            case "claim of group":
                self.periods[name] = PERIODS[period]
                self.claimed.add(name)
                return {"claim": ClaimSpec(), "labels": {POOL: period}}
            case "claim without":
                self.claimed.add(name)
                return {"claim": ClaimSpec()}
            case "group":
                self.periods[name] = PERIODS[period]
                return {"labels": {POOL: period}}
        return {}

    def a_pod(self, node: str) -> JsonObject:
        """Any pod; on a node without a deadline one that can leave."""
        chance, has_deadline = self.chance, node in self.periods
        self._late += 1
        name = f"{node}-{self._late}"
        grace = chance.choice(GRACES if has_deadline else MODEST_GRACES)
        more: JsonObject = {} if grace is None else {"terminationGracePeriodSeconds": grace}
        behaviour: JsonObject = {"stop-seconds": chance.choice([0, round(chance.uniform(0, 30), 2)])}
        if chance.random() < 0.4:
            behaviour = {"ignores-sigterm": "true"}
        if chance.random() < 0.2:
            more["annotations"] = {names.DO_NOT_DISRUPT: f"{chance.randint(1, 200)}s"}
        elif has_deadline and chance.random() < 0.3:
            more["annotations"] = {chance.choice([names.DO_NOT_DISRUPT, names.DO_NOT_EVICT]): "true"}
        app = chance.choice(["shut", "double", name, name]) if has_deadline else name
        if chance.random() < 0.15:
            more["priorityClassName"] = "system-node-critical"
        return a_pod_manifest(name, node, labels={"app": app}, behaviour=behaviour, **more)


class People:
    """What others do meanwhile: they delete nodes and claims, tighten deadlines, end pods, and bind new ones."""

    def __init__(self, stage: Stage, world: World) -> None:
        self._stage = stage
        self._world = world
        self._chance = world.chance
        self.is_done = False

    async def run(self) -> None:
        """Return when all deleted nodes are gone, and no change is to come."""
        async with anyio.create_task_group() as group:
            for number, name in enumerate(self._world.deleted):
                group.start_soon(self._end, name, self._chance.uniform(0, BEGIN_WITHIN if number else 1.0))
                for _ in range(self._chance.randint(0, 2)):
                    group.start_soon(self._meddle, name, self._chance.uniform(0, 2 * BEGIN_WITHIN))
        self.is_done = True

    async def _end(self, name: str, after: float) -> None:
        await self._stage.clock.sleep(after)
        if name in self._world.claimed and self._chance.random() < 0.5:
            await self._stage.delete_claim(f"{name}-claim")
        else:
            await self._stage.delete_node(name)

    async def _meddle(self, name: str, after: float) -> None:
        await self._stage.clock.sleep(after)
        if self._stage.node(name) is None:
            return
        match self._chance.choice(["bind", "bind", "end", "tighten"]):
            case "bind":
                await self._stage.cluster.create(self._world.a_pod(name))
            case "end":
                pods = [
                    pod["metadata"]["name"] for pod in self._stage.pods_on(name) if pod["metadata"]["name"][0] == "n"
                ]
                if pods:
                    await self._stage.call("DELETE", f"/api/v1/namespaces/shop/pods/{self._chance.choice(pods)}")
            case _ if name in self._world.periods:
                await self._tighten(name)

    async def _tighten(self, name: str) -> None:
        """An administrator is in a hurry."""
        claim = self._stage.claim(f"{name}-claim")
        thing = claim if claim and self._chance.random() < 0.5 else self._stage.node(name)
        assert thing is not None
        at = self._stage.clock.now() + self._chance.choice([-5.0, 1.0, 7.0, 60.0])
        text = format_time(at)
        shown = thing["metadata"].get("annotations", {}).get(names.TERMINATION_TIMESTAMP, text)
        patch = {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: min(text, shown)}}}
        if thing is claim:
            await self._stage.patch_claim(f"{name}-claim", patch)
        else:
            await self._stage.patch_node(name, patch)


def next_kill(stage: Stage, invariants: Invariants, world: World, kills_left: int) -> float:
    """Seconds until the next kill: at any time, or where it hurts, give or take a few milliseconds."""
    chance, now = world.chance, stage.clock.monotonic()
    dues = {name: due.at for name in world.deleted if stage.node(name) and (due := invariants.due(name))}
    ahead = {at - grace for name, at in dues.items() for grace in (0, *invariants.graces_on(name)) if at - grace > now}
    if ahead and chance.random() < 0.6:
        nearly = chance.choice([-0.02, -0.004, -0.0005, 0.0, 0.0005, 0.003, 0.006, 0.012, 0.025, 0.1])
        return max(chance.choice(sorted(ahead)[:3]) + nearly - now, 0.0)
    span = max(max(dues.values(), default=0.0) - now, 0.0) / kills_left
    return chance.choice([chance.uniform(0, 0.2), chance.uniform(0, 4), chance.uniform(0, span)])


async def kill_again_and_again(stage: Stage, invariants: Invariants, world: World) -> None:
    """Controllers that live for a while, and none for a while."""
    for done in range(KILLS_PER_WORLD):
        async with stage.mortal():
            with invariants.life():
                await stage.clock.sleep(next_kill(stage, invariants, world, KILLS_PER_WORLD - done))
        await stage.clock.sleep(world.chance.choice([0.0, 0.0, 0.002, 0.3, 3.0, world.chance.uniform(0, 30)]))


async def lives(seed: int) -> Invariants:
    """One whole world with its kills; raises AssertionError for every rule that was broken."""
    chance = random.Random(f"kills/{seed}")
    world = World(chance)
    cloud = CloudSettings(
        terminate_delay=chance.choice([0.0, 3.0]), failure_probability=chance.choice([0.0, 0.3]), answer_delay=0.01
    )
    async with staged(seed=seed, cloud=cloud, settings=SETTINGS, kubelet=SILENT, node_grace_seconds=1e6) as stage:
        invariants = await world.build(stage)
        async with invariants.watching():
            # Answers take their time, so that a kill finds requests that were carried out and never answered.
            stage.transport.before.add(Rule(fault=Latency(0.0, 0.005), path="pods|nodes"))
            stage.transport.behind.add(Rule(fault=Latency(0.005, 0.01)))
            async with stage.mortal() as controller:
                await stage.settle(controller)
            async with anyio.create_task_group() as group:
                group.start_soon(People(stage, world).run)
                await kill_again_and_again(stage, invariants, world)
            invariants.faults_end()
            async with stage.controller() as controller:
                with invariants.life():
                    await finish(stage, world, controller)
                violations = invariants.check_end(calm=True)
        assert not violations, "\n".join(violations)
        assert {stage.instance_state(name) for name in world.deleted} == {"terminated"}
    return invariants


async def finish(stage: Stage, world: World, controller: Controller) -> None:
    """Everything that was begun comes to its end."""
    with anyio.move_on_after(PATIENCE) as patience:
        await stage.until_gone(*world.deleted)
        await stage.until_claims_gone(*(f"{name}-claim" for name in world.claimed))
    assert not patience.cancelled_caught, f"not over: {controller.under_way()} {controller.claims_under_way()}"
    await stage.clock.sleep(1)


@pytest.mark.seeds(6)
async def test_whenever_a_controller_is_killed_every_node_ends_by_its_deadline_and_no_pod_goes_early(seed: int) -> None:
    await lives(seed)
