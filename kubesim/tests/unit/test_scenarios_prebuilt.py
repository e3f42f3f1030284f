"""A world that was put in settled is the world that would have grown, and its controllers find nothing to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from kubesim.clock import LoopClock
from kubesim.controllers.objects import is_ready, key_of, node_of
from kubesim.controllers.paths import NODES
from kubesim.scenarios.library import scenario_named
from kubesim.scenarios.parser import ScenarioError, read_text
from kubesim.scenarios.plan import scaled
from kubesim.scenarios.scenario import Scenario
from kubesim.scenarios.simulation import Simulation
from kubesim.server.api import JsonObject
from kubesim_support.clusters import quiet

pytestmark = pytest.mark.anyio

MIXED = """
name: mixed
description: Everything that can be put in.
nodes:
  - {name: "a-{n}", count: 3, zones: [x, y], pods: 40}
  - {name: b, labels: {disk: ssd}, taints: [{key: only, value: ssd, effect: NoSchedule}], pods: 900}
deployments:
  - {name: web, replicas: 7, budget: {maxUnavailable: 30%}}
  - {name: none, replicas: 0}
  - name: picky
    replicas: 3
    nodeSelector: {disk: ssd}
    tolerations: [{key: only, operator: Exists}]
statefulSets:
  - {name: ring, replicas: 3}
  - {name: db, replicas: 2, volume: 1Gi, budget: {maxUnavailable: 1}}
daemonSets:
  - {name: agent, namespace: kube-system}
pods: [{name: alone, count: 2, budget: {minAvailable: 1}}]
priorityClasses: [{name: high, value: 1000}]
staticPods: [{name: proxy, nodes: "a-*"}]
"""


@asynccontextmanager
async def running(scenario: Scenario) -> AsyncIterator[Simulation]:
    simulation = Simulation(LoopClock(), scenario)
    async with anyio.create_task_group() as group:
        state = await group.start(simulation.run)
        assert state.is_complete
        await quiet()
        yield simulation
        group.cancel_scope.cancel()


def settled(text: str = MIXED) -> Scenario:
    return msgspec.structs.replace(read_text(text, "test"), start="prebuilt")


def shape(value: Any) -> Any:
    """What is left of an object when all that is its own is taken away: the fields, and their kinds."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def told(object_: JsonObject) -> tuple[str, str, str]:
    """An object without its generated part of the name."""
    namespace, name = key_of(object_)
    prefix = object_["metadata"].get("generateName")
    return object_["kind"], namespace, prefix or name


async def everything(scenario: Scenario) -> tuple[Counter[str], dict[tuple[str, str, str], Any]]:
    """How many objects of each name there are, and what they look like."""
    async with running(scenario) as simulation:
        store = simulation.cluster.server.store
        found = [
            object_
            for resource in simulation.cluster.server.registry
            if resource.kind not in ("Event", "Lease", "VolumeAttachment", "PersistentVolume")
            and not resource.stored_as
            for object_ in store.table(resource.table)
        ]
    counted = Counter(map(str, map(told, found)))
    return counted, {told(object_): shape(object_) for object_ in found}


async def test_it_is_what_would_have_grown() -> None:
    grown_counts, grown = await everything(read_text(MIXED, "test"))
    counts, put_in = await everything(settled())
    assert counts == grown_counts
    assert put_in == grown


async def test_deleting_a_deployment_takes_its_pods_along() -> None:
    async with running(settled()) as simulation:
        await simulation.cluster.api.call("DELETE", "/apis/apps/v1/namespaces/default/deployments/web")
        await simulation.cluster.pace.sleep(40)
        assert not [pod for pod in simulation.cluster.pods() if key_of(pod)[1].startswith("web-")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodes: [{name: n, pods: 3}]\ndeployments: [{name: w, replicas: 4}]", "the 1 nodes that take them are full"),
        ("nodes: [{name: n}]\ndeployments: [{name: w, replicas: 3, requests: {cpu: 6}}]", "the 1 nodes that take them"),
        ("nodes: [{name: n}]\npods: [{name: w, nodeSelector: {a: b}}]", "no node takes them"),
    ],
)
async def test_pods_that_find_no_place(text: str, complaint: str) -> None:
    scenario = settled(f"name: x\ndescription: y\nreadyTimeout: 1s\n{text}")
    with pytest.raises(ScenarioError, match=f"there is no place for the pods of default/w(-1)?: {complaint}"):
        await Simulation(LoopClock(), scenario).run()


async def test_the_same_seed_makes_the_same_world() -> None:
    worlds = []
    for seed in (1, 1, 2):
        scenario = msgspec.structs.replace(scaled(scenario_named("large"), 0.01), seed=seed)
        async with running(scenario) as simulation:
            table = simulation.cluster.server.store.table("pods")
            worlds.append({(key_of(pod), pod["metadata"]["uid"], node_of(pod)) for pod in table})
            assert len(simulation.cluster.server.store.table("nodes")) == 5
            _, answer = await simulation.cluster.api.call("GET", NODES)
            assert all(map(is_ready, answer["items"]))
    assert worlds[0] == worlds[1]
    assert worlds[0] != worlds[2]
