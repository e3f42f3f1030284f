"""Two or three controllers and one Lease, through random faults: never two writers, and every drain is finished.

Twenty faults a seed. Most befall one process and not the others: its line is cut, slow or
lossy, it is killed, told to stop, stands still for longer than its lease lasts, or sleeps with its machine.
"""

from __future__ import annotations

import random

import anyio
import msgspec
import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import DropWatch, FreezeWatch, Latency, LateWatch, Partition, Refuse, Reset, Rule
from simulation.invariants import Invariants
from simulation.terms import Terms
from support.contest import Candidate, Contest
from support.stage import finalizers_of, staged
from support.weather import SETTINGS, Land, build, delete, survey

from gracectl.kube.settings import LeaderElectionSettings
from gracectl.model import names

pytestmark = pytest.mark.anyio

FAULTS = 20
PATIENCE = 900.0
"""Virtual seconds in which every drain must be over when the faults are."""


def beset(contest: Contest, chance: random.Random, one: Candidate) -> None:
    """The line of one process is bad for a while."""
    before, behind = one.wire.before, one.wire.behind
    share = chance.uniform(0.1, 0.6)
    kind, rules = chance.choice(
        [
            ("is cut off", [(before, Rule(fault=Partition()))]),
            ("is cut off", [(before, Rule(fault=Partition()))]),
            ("hears nothing", [(behind, Rule(fault=Latency(90.0, 90.0)))]),
            ("is slow with its work", [(before, Rule(fault=Latency(0.5, 4.0), path="/(nodes|pods)"))]),
            ("is slow", [(before, Rule(fault=Latency(0.0, 4.0))), (behind, Rule(fault=Latency(0.0, 4.0)))]),
            ("loses requests", [(before, Rule(fault=Reset(), probability=share))]),
            ("loses answers", [(behind, Rule(fault=Reset(), probability=share))]),
            ("is refused", [(before, Rule(fault=Refuse(chance.choice([500, 503])), probability=share))]),
            ("is told to wait", [(before, Rule(fault=Refuse(429, retry_after=2), probability=share))]),
            ("conflicts", [(before, Rule(fault=Refuse(409), method="PUT|PATCH", probability=share))]),
            ("cannot renew", [(before, Rule(fault=Refuse(500), path="leases"))]),
            ("loses watches", [(before, Rule(fault=DropWatch(0.3)))]),
            ("watches in vain", [(before, Rule(fault=FreezeWatch(0.3)))]),
            # Not of the lease: a stream stays late when the rule has gone, and the handover at the end is timed.
            ("is shown things late", [(before, Rule(fault=LateWatch(0.0, 3.0), path="nodes|pods"))]),
        ]
    )
    contest.faults.append(f"{one.name} {kind}")
    for faults, rule in rules:
        faults.add(rule)

    async def relieve(seconds: float) -> None:
        await contest.stage.clock.sleep(seconds)
        for faults, rule in rules:
            faults.remove(rule)

    contest.house.start_soon(relieve, chance.choice([1.0, 4.0, 8.0, 11.0, 14.0, 17.0, 20.0, 25.0, 40.0]))


async def busy(contest: Contest, chance: random.Random, land: Land) -> None:
    """The finalizer is removed from nodes that stay, again and again, and the leader puts it back."""
    staying = [name for name in land.nodes if name not in land.deleted]
    while True:
        await contest.stage.clock.sleep(chance.uniform(0.1, 2.0))
        await contest.stage.patch_node(chance.choice(staying), {"metadata": {"finalizers": None}})


async def befall(contest: Contest, chance: random.Random) -> None:
    """One fault."""
    leader = contest.leader
    one = leader if leader is not None and chance.random() < 0.75 else chance.choice(contest.living)

    async def replace() -> None:
        await contest.stage.clock.sleep(chance.choice([0.0, 1.0, 20.0]))
        contest.born()

    async def thaw(seconds: float) -> None:
        await contest.stage.clock.sleep(seconds)
        one.process.thaw()

    match chance.choice(["kill", "term", "leave", "freeze", "outage", "sleep", "line", "line", "line", "server"]):
        case "kill" | "term" | "leave" as end:
            if end == "leave":
                one.wire.before.add(Rule(fault=Latency(0.5, 4.0), path="/(nodes|pods)"))
                await contest.stage.clock.sleep(chance.uniform(0.0, 3.0))
            contest.faults.append(f"{one.name}: {end}")
            one.kill() if end == "kill" else one.term()
            contest.living.remove(one)
            await replace() if not contest.living else contest.house.start_soon(replace)
        case "freeze":
            seconds = chance.choice([0.5, 5.0, 9.0, 12.0, 14.9, 15.5, 16.0, 17.0, 18.0, 60.0])
            contest.faults.append(f"{one.name} stands still for {seconds:g} s")
            one.freeze()
            contest.house.start_soon(thaw, seconds)
        case "outage":
            # Longer than the lease, and shorter than the timeout of a request.
            seconds = chance.uniform(14.0, 28.0)
            contest.faults.append(f"{one.name} is cut off for {seconds:.1f} s")
            silence = Rule(fault=Partition())
            one.wire.before.add(silence)
            await contest.stage.clock.sleep(seconds)
            one.wire.before.remove(silence)
        case "sleep":
            seconds = chance.choice([5.0, 60.0])
            contest.faults.append(f"the machine of {one.name} sleeps for {seconds:g} s")
            one.freeze()
            await contest.stage.clock.sleep(min(seconds, 20.0))
            one.clock.missed += seconds
            one.process.thaw()
        case "line":
            beset(contest, chance, one)
        case _:
            table = chance.choice(["nodes", "pods", "leases.coordination.k8s.io", "poddisruptionbudgets.policy"])
            contest.faults.append(f"the server forgets {table}")
            contest.stage.server.store.table(table).forget(contest.stage.server.store.revision)


async def contested(seed: int) -> Contest:
    """One whole run; raises AssertionError for every rule that was broken."""
    chance = random.Random(f"contest/{seed}")
    land, specs = survey(chance, knows_claims=False)
    cloud = CloudSettings(terminate_delay=chance.uniform(0, 5), answer_delay=chance.choice([0.0, 0.2]))
    settings = msgspec.structs.replace(SETTINGS, leader_election=LeaderElectionSettings())
    async with staged(seed=seed, cloud=cloud, settings=settings, definitions=()) as stage:
        for name, spec in specs.items():
            await stage.add_nodes(name, **spec)
        await build(stage, chance, land)
        terms = Terms(seed=seed, asked=frozenset(land.deleted), elects=True)
        async with (invariants := Invariants(stage, terms)).watching(), anyio.create_task_group() as house:
            contest = Contest(stage, house, seed)
            for _ in range(chance.choice([2, 2, 2, 3])):
                contest.born()
                await stage.clock.sleep(chance.choice([0.0, 0.5]))
            await stage.until(lambda: all(names.FINALIZER in finalizers_of(node) for node in stage.nodes()))
            async with anyio.create_task_group() as others:
                others.start_soon(busy, contest, chance, land)
                await trouble(contest, chance, land)
                others.cancel_scope.cancel()
            invariants.faults_end()
            await finish(contest, chance, land)
            violations = [*contest.broken, *invariants.check_end(calm=True)]
            for each in contest.living:
                each.term()
        assert not violations, "\n".join(violations)
    return contest


async def trouble(contest: Contest, chance: random.Random, land: Land) -> None:
    """All the faults, in the middle of drains."""
    while len(contest.faults) < FAULTS:
        await delete(contest.stage, chance, land, probability=0.4)
        await befall(contest, chance)
        await contest.stage.clock.sleep(chance.choice([0.0, 0.5, 3.0, 10.0]))


async def finish(contest: Contest, chance: random.Random, land: Land) -> None:
    """The faults are over, and all that was begun comes to its end, though the leader is told to stop in the middle."""
    stage = contest.stage
    for each in contest.living:
        each.process.thaw()
    await stage.clock.sleep(135)  # what besets the lines passes, and watches that show nothing are given up
    while len(contest.living) < 2:
        contest.born()
    await until_somebody_leads(contest)
    await delete(stage, chance, land, probability=1.0)
    leader = contest.leader
    assert leader is not None
    leader.term()
    contest.living.remove(leader)
    told = stage.clock.monotonic()
    await until_somebody_leads(contest)
    assert stage.clock.monotonic() - told < 1.0, f"handed over after {stage.clock.monotonic() - told:.3f} s"
    with anyio.move_on_after(PATIENCE) as patience:
        await stage.until_gone(*land.deleted)
    assert not patience.cancelled_caught, f"not over: {[each for each in land.deleted if stage.node(each)]}"
    await stage.clock.sleep(1)
    for each in contest.living:
        assert each.controller.under_way() == ()
        assert not each.is_leading or each.controller.statistics().evictor.waiting == 0


async def until_somebody_leads(contest: Contest) -> None:
    """Wait until one of the living does, for a minute at most."""
    with anyio.fail_after(60):
        while not any(each.is_leading for each in contest.living):
            await contest.stage.clock.sleep(0.01)


@pytest.mark.timeout(120)
@pytest.mark.seeds(6)
async def test_never_do_two_write_and_every_drain_is_finished(seed: int) -> None:
    contest = await contested(seed)
    assert len(contest.faults) >= FAULTS
    assert contest.writes > 0
