"""Steps of a timeline happen at their instants, to the named objects, and are logged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.client import InProcess
from kubesim.controllers.cloud import PREFIX
from kubesim.controllers.objects import is_ready, labels_of
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.scenarios.parser import read_text
from kubesim.scenarios.simulation import Simulation
from kubesim_support.clusters import get

pytestmark = pytest.mark.anyio

HEAD = """
name: a
description: b
nodes: [{name: "n-{n}", count: 4}]
deployments: [{name: web, replicas: 4}]
"""


async def end(cluster: EmbeddedCluster, id_: str) -> int:
    """The status with which the cloud answers to a request to end a machine."""
    return (await cluster.api.call("DELETE", f"{PREFIX}{id_}"))[0]


@asynccontextmanager
async def living(text: str, speed: float = 1.0) -> AsyncIterator[tuple[Simulation, list[tuple[float, float, str]]]]:
    """A scenario that has settled, and what is told of its timeline: (real instant, simulated instant, what)."""
    clock, told = LoopClock(), list[tuple[float, float, str]]()
    began = 0.0

    def tell(at: float, what: str) -> None:
        told.append((round(clock.monotonic() - began, 6), at, what))

    simulation = Simulation(clock, read_text(f"{HEAD}speed: {speed}\n{text}", "test"), tell=tell)
    async with anyio.create_task_group() as group:
        await group.start(simulation.run)
        began = clock.monotonic()
        yield simulation, told
        group.cancel_scope.cancel()


async def test_steps_happen_at_their_instants_in_order() -> None:
    text = """
timeline:
  - {at: 20s, removeFaults: [slow]}
  - {at: 5s, addFaults: {slow: {latency: {least: 1, most: 1}}}}
  - {at: 5s, every: 10s, times: 2, clockOffset: 3}
"""
    async with living(text, speed=2) as (simulation, told):
        await simulation.cluster.pace.sleep(30)
        assert told == [
            (2.5, 5, "fault slow begins"),
            (2.5, 5, "the server's clock is wrong by 3 s"),
            (7.5, 15, "the server's clock is wrong by 3 s"),
            (10, 20, "fault slow ends"),
        ]
        assert simulation.cluster.server.stamps.seconds - simulation.cluster.pace.clock.now() == 3


async def test_objects_are_created_patched_and_deleted() -> None:
    text = """
timeline:
  - at: 1
    create: [{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: new}}]
    addNodes: [{name: spare, labels: {is: new}}]
  - {at: 2, patch: {kind: Node, name: "n-[12]", patch: {metadata: {labels: {seen: "yes"}}}}}
  - {at: 3, delete: {kind: Pod, namespace: default, selector: app=web, count: 1}}
  - {at: 4, patch: {kind: Deployment, name: web, patch: {spec: {replicas: 6}}}}
"""
    async with living(text) as (simulation, told):
        before = {pod["metadata"]["uid"] for pod in simulation.cluster.pods()}
        await simulation.cluster.pace.sleep(60)
        assert [(at, what.split(" Pod ")[0]) for _, at, what in told] == [
            (1, "created ConfigMap new/c"),
            (1, "added nodes spare"),
            (2, "patched Node n-1, Node n-2"),
            (3, "deleted"),
            (4, "patched Deployment default/web"),
        ]
        _, nodes = await simulation.cluster.api.call("GET", NODES)
        assert [labels_of(node).get("seen") for node in nodes["items"]] == ["yes", "yes", None, None, None]
        after = {pod["metadata"]["uid"] for pod in simulation.cluster.pods()}
        assert (len(after), len(before - after)) == (6, 1)


async def test_nodes_are_cut_off_and_healed_and_machines_end() -> None:
    text = """
timeline:
  - {at: 1, partitionNodes: {names: n-1}}
  - {at: 1, endInstances: {names: n-2}}
  - {at: 100, healNodes: {}}
"""
    async with living(text) as (simulation, _):
        cluster = simulation.cluster
        await cluster.pace.sleep(90)
        ready = {}
        for name in ("n-1", "n-2", "n-3"):
            node = await get(cluster, path_of(NODES, name=name))
            assert node is not None
            ready[name] = is_ready(node)
        assert ready == {"n-1": False, "n-2": False, "n-3": True}
        assert [instance.node for instance in cluster.cloud.instances if instance.state == "terminated"] == ["n-2"]
        await cluster.pace.sleep(60)
        node = await get(cluster, path_of(NODES, name="n-1"))
        assert node is not None
        assert is_ready(node)


async def test_the_cloud_refuses_to_end_a_machine_while_it_is_protected() -> None:
    text = """
timeline:
  - {at: 1, protectInstances: {names: n-1}}
  - {at: 5, unprotectInstances: {}}
"""
    async with living(text) as (simulation, told):
        cluster = simulation.cluster
        ids = {instance.node: instance.id for instance in cluster.cloud.instances}
        await cluster.pace.sleep(2)
        assert [await end(cluster, ids[name]) for name in ("n-1", "n-2")] == [409, 202]
        await cluster.pace.sleep(4)
        assert await end(cluster, ids["n-1"]) == 202
        assert [(at, what) for _, at, what in told] == [
            (1, "protected the instances of n-1"),
            (5, "took the protection off the instances of n-1, n-2, n-3, n-4"),
        ]


async def test_a_step_that_fails_is_told_of_and_the_next_one_comes() -> None:
    text = """
timeline:
  - {at: 1, delete: {kind: Unicorn}}
  - {at: 2, create: [{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {}}]}
  - {at: 3, clockOffset: 1}
"""
    async with living(text) as (simulation, told):
        await simulation.cluster.pace.sleep(4)
        what = [what for _, _, what in told]
        assert what[0].startswith("timeline[0] failed: the server has no kind Unicorn")
        assert what[1].startswith("timeline[1] failed: POST /api/v1/namespaces/default/pods: 422")
        assert what[2] == "the server's clock is wrong by 1 s"


async def test_faults_begin_when_the_world_has_settled_and_spare_it() -> None:
    text = "faults: {down: {refuse: {status: 503}}}"
    async with living(text) as (simulation, _):
        cluster = simulation.cluster
        outsider = InProcess(cluster.server.handle, {"user-agent": "kubectl/v1.32"})
        assert (await outsider.call("GET", PODS))[0] == 503
        assert (await cluster.api.call("GET", PODS))[0] == 200
        assert all(map(is_ready, cluster.pods()))


async def test_a_fault_may_be_for_the_world_too() -> None:
    text = "faults: {down: {client: '.', refuse: {status: 503}}}"
    async with living(text) as (simulation, _):
        assert (await simulation.cluster.api.call("GET", PODS))[0] == 503
