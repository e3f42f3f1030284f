"""Kill -9 at every write to a kept node, and at any instant beside people who change their minds: nothing is lost,
nothing happens twice, and what was given back is as it was.

The same seed makes the same run (set PYTHONHASHSEED=0 as well: the order of sets is Python's own chance).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import DropWatch, Latency, LateWatch, Refuse, Reset, Rule
from kubesim.server.api import JsonObject
from support.clients import Deed, follow
from support.inprocess import ASKING, Stutter
from support.stage import SILENT, Stage, a_budget_manifest, a_pod_manifest, a_workload, staged
from support.stories import (
    WAYS_BACK,
    Way,
    a_daemon_set,
    gracectl_keep,
    is_at_rest,
    is_cordoned,
    keep,
    names_on,
    remains,
    seen,
)
from support.thorough import thorough

from gracectl.model import names

# -- at every write ----------------------------------------------------------------------------------------------------


WRITES = 10
"""The least there are: cordon; two evictions, what is waited for; the last eviction, what is waited for; two conditions
at rest; uncordon, conditions, record. An uncordon may need two: the node controller takes its taint off meanwhile."""
BEFORE_UNCORDON = 8
"""So many are the same whatever way back the node will take; at each of them one is tried."""
KILLS = [
    (number, way)
    for number in range(1, WRITES + 2)
    for way in (WAYS_BACK if number > BEFORE_UNCORDON else WAYS_BACK[number % 3 :][:1])
]


@contextmanager
def struck_at(stage: Stage, number: int, *, carried_out: bool) -> Iterator[anyio.Event]:
    """The event is set when a controller sends this write (of a node, or an eviction), counted from 1: just before the
    server looks at it, or when it has carried it out; the answer is lost in either case."""
    handle, struck, writes = stage.server.handle, anyio.Event(), 0

    async def counting(request: Any) -> Any:
        nonlocal writes
        is_write = request.method in ("PATCH", "POST") and request.path.endswith(("nodes/n1", "status", "eviction"))
        if ASKING.get() is None or not is_write or struck.is_set():
            return await handle(request)
        writes += 1
        if writes < number:
            return await handle(request)
        if carried_out:
            await handle(request)
        struck.set()
        await anyio.sleep_forever()

    stage.server.handle = counting  # type: ignore[method-assign]  # the one way to be there just then
    yield struck
    stage.server.handle = handle  # type: ignore[method-assign]  # as before


async def a_maintenance(stage: Stage, give_back: Way) -> None:
    """What people do to `n1`: it is drained in eight seconds, rests, and is given back after twelve."""
    await gracectl_keep(stage, "n1")
    await stage.clock.sleep(12)
    await give_back(stage, "n1")


@pytest.mark.parametrize(
    ("number", "give_back", "carried_out"),
    [
        *((*kill, bool(n % 2)) for n, kill in enumerate(KILLS)),
        *thorough(*((*kill, not n % 2) for n, kill in enumerate(KILLS))),
    ],
)
async def test_a_kill_at_any_write_is_survived(number: int, give_back: Way, carried_out: bool) -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(
            a_pod_manifest("slow", "n1", behaviour={"stop-seconds": 4}),
            a_pod_manifest("plain", "n1"),
            a_pod_manifest("dns", "n1", behaviour={"stop-seconds": 4}, priorityClassName="system-cluster-critical"),
            a_daemon_set("agent"),
        )
        async with stage.settled(mortal=True) as controller:
            before, daemons = remains(stage, "n1"), [name for name in names_on(stage, "n1") if name.startswith("agent")]
        async with anyio.create_task_group() as group:
            with struck_at(stage, number, carried_out=carried_out) as struck:
                async with stage.mortal() as controller:
                    await controller.wait_live()
                    group.start_soon(a_maintenance, stage, give_back)
                    with anyio.move_on_after(30):
                        await struck.wait()
                assert struck.is_set() or number > WRITES
            await stage.clock.sleep(0.5)
            async with stage.controller() as controller:
                await controller.wait_live()
                if stage.clock.monotonic() < 11:
                    await stage.until(lambda: is_at_rest(stage, "n1"))
                    assert is_cordoned(stage, "n1")
                await stage.clock.sleep(30)
                assert remains(stage, "n1") == before
                assert controller.under_way() == ()
        assert names_on(stage, "n1") == daemons
        assert set(stage.agreed().values()) == {1}
        assert stage.transport.of("delete", "pods") == stage.transport.of("delete", "nodes") == []
        assert stage.instance_state("n1") == "running"


async def test_a_restart_while_the_node_rests_writes_nothing_and_emits_no_event() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1"), a_daemon_set("agent")]) as stage:
        async with stage.settled(mortal=True) as controller:
            await keep(stage, "n1")
            await stage.clock.sleep(30)
        before, told = stage.node("n1"), await stage.events()
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(120)
            assert [each.step for each in controller.under_way()] == ["drained"]
            assert stage.node("n1") == before
            assert await stage.events() == told


async def test_two_controllers_by_mistake_keep_and_give_back_as_one_would() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(
            a_workload("Deployment", "web", 5, behaviour={"ready-seconds": 0.4, "stop-seconds": 0.3}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        stage.transport.behind.add(Rule(fault=Latency(0.01, 0.05)))
        async with stage.controller() as one, stage.controller() as other:
            await stage.settle(one)
            await stage.settle(other)
            before = remains(stage, "n1")
            for give_back in WAYS_BACK:
                await gracectl_keep(stage, "n1")
                await stage.until(lambda: is_at_rest(stage, "n1"))
                await stage.clock.sleep(5)
                await give_back(stage, "n1")
                await stage.clock.sleep(5)
                assert remains(stage, "n1") == before
            assert one.under_way() == other.under_way() == ()


# -- whatever people do ------------------------------------------------------------------------------------------------

LAG = 12.0
"""Seconds for which a controller may not know yet that a node was given back: a late watch, a slow server."""


class World:
    """Nodes that people keep, give back and delete, and a witness of who was asked to leave without a reason."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self.stage = stage
        self.chance = chance
        self.nodes = [f"n{n}" for n in range(3)]
        self.broken: list[str] = []
        self._free_since: dict[str, float] = {}
        self._pods = 0

    async def build(self) -> None:
        stage = self.stage
        await stage.add_nodes("refuge", *self.nodes)
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 0.5, "stop-seconds": 1}),
            a_budget_manifest("web", maxUnavailable=1),
            a_daemon_set("agent"),
        )
        for name in self.nodes:
            self._free_since[name] = 0.0
        follow(stage, "nodes", self._node_changed)
        follow(stage, "pods", self._pod_changed)

    def _node_changed(self, deed: Deed) -> None:
        name = deed.object["metadata"]["name"]
        if deed.new is None or name == "refuge":
            return
        is_wanted = "deletionTimestamp" in deed.new["metadata"] or _is_asked_for(deed.new)
        if is_wanted:
            self._free_since.pop(name, None)
        else:
            self._free_since.setdefault(name, self.stage.clock.monotonic())

    def _pod_changed(self, deed: Deed) -> None:
        if deed.is_by("delete", "pods"):
            self.broken.append(f"{deed.object['metadata']['name']} was deleted")
        if not deed.is_by("create", "pods/eviction"):
            return
        pod, now = deed.object, self.stage.clock.monotonic()
        node = pod["spec"]["nodeName"]
        if node == "refuge" or now - self._free_since.get(node, now) > LAG:
            self.broken.append(f"{pod['metadata']['name']} was evicted from {node} at {now:.3f} for nothing")
        held = self.stage.node(node) or {"metadata": {}}
        if pod["metadata"]["name"].startswith("agent") and "deletionTimestamp" not in held["metadata"]:
            self.broken.append(f"{pod['metadata']['name']} was evicted from {node}, which stays")

    async def meddle(self) -> None:
        """What another client does next to one of the nodes."""
        stage, name = self.stage, self.chance.choice(self.nodes)
        if stage.node(name) is None or "deletionTimestamp" in (stage.node(name) or {})["metadata"]:
            return
        match self.chance.choice(["keep", "keep", "keep", "back", "back", "pod", "delete"]):
            case "keep":
                await gracectl_keep(stage, name)
            case "back":
                await self.chance.choice(WAYS_BACK)(stage, name)
            case "pod":
                self._pods += 1
                pace = {"stop-seconds": self.chance.choice([0, 1, 8])}
                await stage.cluster.create(a_pod_manifest(f"p{self._pods}", name, behaviour=pace))
            case "delete" if len(self.nodes) > 1:
                self.nodes.remove(name)
                await stage.delete_node(name)


def _is_asked_for(node: JsonObject) -> bool:
    annotations = node["metadata"].get("annotations") or {}
    is_uncordoned = "unschedulable" in annotations.get(names.CORDONED, "") and "unschedulable" not in node["spec"]
    return names.KEEP_DRAINED in annotations and not is_uncordoned


def storm(stage: Stage, chance: random.Random) -> None:
    """Whatever a network and a busy server do between us and it."""
    stage.transport.stutter = Stutter(chance.uniform(0.0, 0.3), chance.choice([0.05, 0.5]))
    stage.transport.before.add(Rule(fault=Latency(0.0, 0.05)))
    stage.transport.behind.add(Rule(fault=Latency(0.0, 0.05)))
    for fault in (Refuse(500), Reset(), Reset(carried_out=True), DropWatch(3.0), LateWatch(0.0, 0.5)):
        if chance.random() < 0.6:
            stage.transport.before.add(Rule(fault=fault, probability=chance.uniform(0.01, 0.1)))


async def lives(seed: int) -> None:
    chance = random.Random(f"keeps/{seed}")
    cloud = CloudSettings(terminate_delay=1.0)
    async with staged(seed=seed, cloud=cloud, kubelet=SILENT, node_grace_seconds=1e6) as stage:
        world = World(stage, chance)
        await world.build()
        async with stage.settled(mortal=True) as controller:
            before = {name: remains(stage, name) for name in world.nodes}
        storm(stage, chance)
        for _ in range(8):
            async with stage.mortal():
                for _ in range(chance.randint(1, 4)):
                    await stage.clock.sleep(chance.choice([0.0, 0.01, 0.3, chance.uniform(0, 6)]))
                    await world.meddle()
                await stage.clock.sleep(chance.choice([0.0, 0.02, 0.4, chance.uniform(0, 12)]))
            if chance.random() < 0.5:
                await world.meddle()
            await stage.clock.sleep(chance.choice([0.0, 0.5]))
        stage.transport.before.clear()
        stage.transport.behind.clear()
        stage.transport.stutter = Stutter()
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(180)
            kept = [name for name in world.nodes if _is_asked_for(stage.node(name) or {})]
            assert [each.name for each in controller.under_way()] == sorted(kept, key=_order(controller.under_way()))
            for name in world.nodes:
                if name in kept:
                    assert is_at_rest(stage, name)
                    assert is_cordoned(stage, name)
                    assert all(pod.startswith("agent") for pod in names_on(stage, name))
                else:
                    assert remains(stage, name) == before[name]
            assert sorted(each["metadata"]["name"] for each in stage.nodes()) == sorted([*world.nodes, "refuge"])
        assert world.broken == []
        assert set(stage.agreed().values()) <= {1}
        assert seen(stage, "refuge").unschedulable is False


def _order(under_way: Any) -> Any:
    places = [each.name for each in under_way]
    return places.index


@pytest.mark.seeds(4)
async def test_whatever_people_do_and_whenever_a_controller_is_killed_the_nodes_are_as_they_were_asked_for(
    seed: int,
) -> None:
    await lives(seed)
