"""Drains through storms: a seeded world, seeded faults between controller and server, seeded kills; invariants hold.

    GRACECTL_STORMS=300 pytest tests/termination/test_termination_storms.py      more seeds than the suite has time for
    GRACECTL_STORMS=1 GRACECTL_FIRST_STORM=217 pytest ...                        the one that failed

The same seed makes the same run (set PYTHONHASHSEED=0 as well: the order of sets is Python's own chance).
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support.inprocess import Stutter
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged

from gracectl.app import Controller
from gracectl.model import names
from gracectl.sim.faults import DropWatch, FreezeWatch, Latency, Refuse, Reset, Rule
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.cloud import CloudSettings
from gracectl.sim.world.paths import NODES, PODS

pytestmark = pytest.mark.anyio

FIRST = int(os.environ.get("GRACECTL_FIRST_STORM", "0"))
COUNT = int(os.environ.get("GRACECTL_STORMS", "16"))
PATIENCE = 1800.0
"""Virtual seconds in which every drain must be over when the storm has passed."""


VOLUME: JsonObject = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


class Referee:
    """Watches the cluster from the server's side and remembers every broken rule."""

    def __init__(self, stage: Stage) -> None:
        self.broken: list[str] = []
        self._stage = stage
        self._ready: defaultdict[str, set[str]] = defaultdict(set)
        self.needed: dict[str, int] = {}
        stage.cluster.views.of(PODS).subscribe(self._pod_changed)
        stage.cluster.views.of(NODES).subscribe(self._node_changed)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        pod = new or old
        assert pod is not None
        app = pod["metadata"].get("labels", {}).get("app", "")
        ready, uid = self._ready[app], pod["metadata"]["uid"]
        before = len(ready)
        if new is not None and is_ready(new):
            ready.add(uid)
        else:
            ready.discard(uid)
        if len(ready) < min(before, self.needed.get(app, 0)):
            self.broken.append(f"{len(ready)} pods of {app} are ready, {self.needed[app]} are needed")
        if new is not None and "deletionTimestamp" in new["metadata"] and (old is None or is_ready(old)):
            annotations = new["metadata"].get("annotations", {})
            if annotations.get(names.DO_NOT_DISRUPT) == "true":
                self.broken.append(f"{new['metadata']['name']} is protected and was made to leave")

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None and old is not None:
            name = old["metadata"]["name"]
            if self._stage.instance_state(name) != "terminated":
                self.broken.append(f"node {name} was let go while its instance is {self._stage.instance_state(name)}")
            attachments = self._stage.server.store.table("volumeattachments.storage.k8s.io")
            if any(each["spec"]["nodeName"] == name for each in attachments):
                self.broken.append(f"node {name} was let go with a volume attached")


def is_ready(pod: JsonObject) -> bool:
    conditions = pod["status"].get("conditions") or []
    is_going = "deletionTimestamp" in pod["metadata"]
    return not is_going and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def build(stage: Stage, referee: Referee, chance: random.Random, nodes: list[str]) -> None:
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
    for number in range(chance.randint(0, 8)):
        grace = chance.randint(1, 20)
        protection = {names.DO_NOT_DISRUPT: f"{chance.randint(5, 90)}s"} if chance.random() < 0.2 else {}
        behaviour = {"stop-seconds": chance.randint(0, 25)}
        manifest = a_pod_manifest(
            f"plain-{number}",
            chance.choice(nodes),
            behaviour=behaviour,
            terminationGracePeriodSeconds=grace,
            annotations=protection,
        )
        await stage.cluster.create(manifest)
    if chance.random() < 0.5:
        daemon = a_workload("DaemonSet", "agent", 1, behaviour={"stop-seconds": 1})
        del daemon["spec"]["replicas"]
        await stage.cluster.create(daemon)
    await stage.cluster.until_ready()


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
    ]
    for kind in chance.sample(kinds, chance.randint(1, 5)):
        kind(chance.uniform(0.05, 0.4))


async def disturb(stage: Stage, chance: random.Random) -> None:
    """What happens to the server itself: it forgets history, it goes away for a while."""
    while True:
        await stage.clock.sleep(chance.uniform(1, 20))
        match chance.choice(["forget", "forget", "away", "busybody"]):
            case "forget":
                table = chance.choice(["nodes", "pods", "poddisruptionbudgets.policy"])
                stage.server.store.table(table).forget(stage.server.store.revision)
            case "away":
                stage.transport.is_listening = False
                await stage.clock.sleep(chance.uniform(0.1, 8))
                stage.transport.is_listening = True
            case _:
                for node in stage.nodes():
                    label = {"metadata": {"labels": {"busybody": str(chance.randint(0, 99))}}}
                    await stage.patch_node(node["metadata"]["name"], label)


async def storm(stage: Stage, chance: random.Random, doomed: list[str]) -> None:
    """The drains, under faults and kills; returns when the storm is over."""
    async with anyio.create_task_group() as group:
        rain(stage, chance)
        group.start_soon(disturb, stage, chance)
        for _ in range(chance.randint(0, 3)):
            async with stage.mortal():
                await delete(stage, chance, doomed)
                await stage.clock.sleep(chance.uniform(0, 15))
        async with stage.mortal():
            await delete(stage, chance, doomed)
            await stage.clock.sleep(chance.uniform(5, 90))
        group.cancel_scope.cancel()
    stage.transport.is_listening = True
    stage.transport.stutter = Stutter()
    stage.transport.before.clear()
    stage.transport.behind.clear()


async def delete(stage: Stage, chance: random.Random, doomed: list[str]) -> None:
    for name in doomed:
        node = stage.node(name)
        if node is not None and "deletionTimestamp" not in node["metadata"] and chance.random() < 0.8:
            await stage.delete_node(name)
            await stage.clock.sleep(chance.choice([0.0, 0.0, 0.3, 2.0]))


async def weather(seed: int) -> Stage:
    """One whole run; raises AssertionError for every rule that was broken."""
    chance = random.Random(f"storm/{seed}")
    nodes = [f"n{n}" for n in range(chance.randint(3, 5))]
    doomed = chance.sample(nodes, chance.randint(1, len(nodes) - 1))
    cloud = CloudSettings(
        terminate_delay=chance.uniform(0, 5),
        answer_delay=chance.choice([0.0, 0.2]),
        failure_probability=chance.choice([0.0, 0.3]),
    )
    delays: dict[str, Any] = {"attach_seconds": chance.uniform(0, 0.5), "detach_seconds": chance.uniform(0, 3)}
    async with staged(*nodes, seed=seed, cloud=cloud, **delays) as stage:
        referee = Referee(stage)
        await build(stage, referee, chance, nodes)
        async with stage.mortal() as controller:
            await stage.settle(controller)
        await storm(stage, chance, doomed)
        async with stage.controller() as controller:
            await controller.wait_live()
            for name in doomed:
                node = stage.node(name)
                if node is not None and "deletionTimestamp" not in node["metadata"]:
                    await stage.delete_node(name)
            with anyio.move_on_after(PATIENCE) as patience:
                await stage.until_gone(*doomed)
            assert not patience.cancelled_caught, f"not over: {stuck(stage, controller, doomed)}"
            await stage.clock.sleep(1)
            assert controller.under_way() == ()
            assert controller.statistics().evictor.waiting == 0
        assert referee.broken == []
        assert [uid for uid, times in stage.agreed().items() if times > 1] == []
        assert {stage.instance_state(name) for name in nodes if name not in doomed} == {"running"}
    return stage


def stuck(stage: Stage, controller: Controller, doomed: list[str]) -> list[object]:
    """What there is to say about drains that do not end."""
    left = {name: [pod["metadata"]["name"] for pod in stage.pods_on(name)] for name in doomed if stage.node(name)}
    return [left, *controller.under_way(), controller.statistics()]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
async def test_every_drain_ends_and_no_rule_is_broken(seed: int) -> None:
    await weather(seed)
