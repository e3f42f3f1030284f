"""Random machines that shut down, under random faults, beside a controller: what must hold whatever happens."""

from __future__ import annotations

import random
from typing import Any

import anyio
import orjson
import pytest
from kubesim.controllers.paths import PRIORITY_CLASSES
from kubesim.faults import DropWatch, Latency, Refuse, Reset, Rule
from support.inprocess import Stutter, uid_of
from support.shutdowns import Played, an_agent
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings

from gracectl.agent.cordon import is_marked
from gracectl.model import names
from gracectl.model.decode import decode_node
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark, missing_marks
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.waves import DrainOrder

pytestmark = [pytest.mark.timeout(240)]

CLASSES = (500, 1_000, 5_000, 10_000)


def settings_by(chance: random.Random) -> dict[str, Any]:
    """An order of a few ranges, in either form."""
    if chance.random() < 0.25:
        critical = chance.randint(0, 20)
        total = critical + chance.randint(5, 60)
        return {"shutdownGracePeriod": f"{total}s", "shutdownGracePeriodCriticalPods": f"{critical}s"}
    priorities = sorted(chance.sample([0, *CLASSES], chance.randint(1, 4)))
    periods = [{"priority": each, "shutdownGracePeriodSeconds": chance.choice([0, 5, 20, 60])} for each in priorities]
    if not sum(each["shutdownGracePeriodSeconds"] for each in periods):
        periods[0]["shutdownGracePeriodSeconds"] = 10
    return {"shutdownGracePeriodByPodPriority": periods}


async def populate(stage: Stage, chance: random.Random) -> None:
    for value in CLASSES:
        await stage.call("POST", PRIORITY_CLASSES, {"metadata": {"name": f"class{value}"}, "value": value})

    def behaviour() -> dict[str, Any]:
        if chance.random() < 0.3:
            return {"ignores-sigterm": "true"}
        return {"stop-seconds": chance.choice([0, 1, 3, 10, 30])}

    for number in range(chance.randint(3, 12)):
        class_ = chance.choice([None, *CLASSES])
        own = {} if class_ is None else {"priorityClassName": f"class{class_}"}
        grace = chance.choice([1, 5, 30, 100, 600])
        manifest = a_pod_manifest(f"p{number}", "n1", behaviour=behaviour(), terminationGracePeriodSeconds=grace, **own)
        await stage.create(manifest)
    await stage.create(
        a_budget_manifest("web", maxUnavailable=1),
        a_workload("Deployment", "web", 3, behaviour={"stop-seconds": 2, "ready-seconds": 4}),
        a_workload("DaemonSet", "net", 0, pod={"tolerations": [{"operator": "Exists"}]}, behaviour={"stop-seconds": 1}),
    )


def cloud_up(stage: Stage, chance: random.Random) -> None:
    """Weather between us and the server."""
    kinds: list[Any] = [
        Rule(fault=Refuse(status=503), probability=0.2),
        Rule(fault=Reset(), probability=0.15),
        Rule(fault=Latency(0.3, 1.5), probability=0.3),
        Rule(fault=DropWatch(after=chance.uniform(1, 10)), probability=0.5),
    ]
    for rule in chance.sample(kinds, chance.randint(0, 3)):
        stage.transport.before.add(rule)
    if chance.random() < 0.5:
        stage.transport.behind.add(Rule(fault=Reset(), probability=0.15))
    stage.transport.stutter = Stutter(chance.choice([0.0, 0.5]), chance.choice([0.5, 2.0]))


def clear_up(stage: Stage) -> None:
    stage.transport.before.clear()
    stage.transport.behind.clear()
    stage.transport.stutter = Stutter()


class Referee:
    """Knows what pods were when they were deleted, and holds the agent to what it has promised."""

    def __init__(self, stage: Stage, order: DrainOrder) -> None:
        self._stage = stage
        self._order = order
        self._graces: dict[str, list[int]] = {}
        self._asks: dict[str, int] = {}

    def look(self) -> None:
        """Remember the pods that are there."""
        for pod in self._stage.pods_on("n1"):
            self._asks[pod["metadata"]["uid"]] = pod["spec"]["terminationGracePeriodSeconds"]

    def judge_deletions(self, start: float, longest: float) -> None:
        """Every DELETE names a uid, and grants at least a second, no more than the pod asks for or its range has; who
        is asked again is granted less."""
        for each in self._stage.transport.of("delete", "pods"):
            if each.instant < start:
                continue
            grace = orjson.loads(each.request.body or b"{}")["gracePeriodSeconds"]
            uid = uid_of(each.request)
            assert uid
            assert 1 <= grace <= max(longest, 1), each
            assert grace <= self._asks.get(uid, grace)
            if each.status == 200:
                self._graces.setdefault(uid, []).append(grace)
        for graces in self._graces.values():
            assert graces == sorted(set(graces), reverse=True), graces


def node_of(stage: Stage) -> Node | None:
    node = stage.node("n1")
    return None if node is None else decode_node(orjson.dumps(node))


async def rest(stage: Stage, played: Played) -> None:
    """The weather is fine again, and there is time for everything."""
    clear_up(stage)
    await stage.clock.sleep(200)
    assert played.logind.is_held


def judge_rest(stage: Stage, somebody_wants_it: bool) -> None:
    """Nothing of a shutdown is left on a node whose machine is up."""
    node = node_of(stage)
    if node is None:
        return
    if node.deletion_timestamp is None:
        assert not is_marked(node)
        if not is_in_maintenance(node) and not somebody_wants_it:
            assert set(missing_marks(node)) == set(Mark)
    assert stage.condition("n1", names.SHUTTING_DOWN) is None


@pytest.mark.seeds(6)
async def test_whatever_happens_the_machine_goes_in_time_and_comes_back_as_it_was(seed: int) -> None:
    chance = random.Random(seed)
    orders = settings_by(chance)
    settings = the_settings(**orders, drain={"minimumSeconds": 1})
    order = settings.order()
    assert order is not None
    async with staged("n1", "n2", settings=settings, seed=seed) as stage:
        referee = Referee(stage, order)
        await populate(stage, chance)
        with_controller = chance.random() < 0.5
        async with anyio.create_task_group() as group, an_agent(stage, settings, seed=seed) as played:
            if with_controller:

                async def control() -> None:
                    async with stage.controller() as controller:
                        await controller.wait_live()
                        await anyio.sleep_forever()

                group.start_soon(control)
            await played.live()
            await stage.clock.sleep(3)
            somebody_wants_it = False
            for _ in range(chance.randint(1, 3)):
                referee.look()
                cloud_up(stage, chance)
                start = played.logind.shut_down()
                await stage.clock.sleep(chance.uniform(0, order.total))
                match chance.choice(["call off", "wait", "wait", "delete", "keep", "away"]):
                    case "delete" if with_controller:
                        await stage.delete_node("n1")
                        somebody_wants_it = True
                    case "keep" if node_of(stage) is not None:
                        kept = {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}}
                        await stage.patch_node("n1", kept)
                        somebody_wants_it = True
                    case "away":
                        stage.transport.is_listening = False
                    case "call off":
                        played.logind.call_off()
                    case _:
                        pass
                if played.logind.is_going_down:
                    await stage.clock.sleep(order.total + 1)
                    assert played.logind.released_at is not None
                    assert played.logind.released_at - start <= order.total + 0.01
                    played.logind.call_off()
                referee.judge_deletions(start, max(wave.period for wave in order.waves))
                stage.transport.is_listening = True
                await rest(stage, played)
                judge_rest(stage, somebody_wants_it)
                if node_of(stage) is None:
                    break
            group.cancel_scope.cancel()
