"""Steps of a timeline happen at their instants, to the named objects, and are logged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.cloud import PREFIX
from kubesim.controllers.objects import labels_of
from kubesim.controllers.paths import NODES, PODS
from kubesim.scenarios.parser import read_text
from kubesim.scenarios.simulation import Simulation

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
    clock, lines = LoopClock(), list[tuple[float, float, str]]()
    began = 0.0

    def tell(at: float, what: str) -> None:
        lines.append((round(clock.monotonic() - began, 6), at, what))

    simulation = Simulation(clock, read_text(f"{HEAD}speed: {speed}\n{text}", "test"), tell=tell)
    async with anyio.create_task_group() as group:
        await group.start(simulation.run)
        began = clock.monotonic()
        yield simulation, lines
        group.cancel_scope.cancel()


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
    async with living(text) as (simulation, lines):
        before = {pod["metadata"]["uid"] for pod in simulation.cluster.pods()}
        await simulation.cluster.pace.sleep(60)
        assert [(at, what.split(" Pod ")[0]) for _, at, what in lines] == [
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


async def test_the_cloud_refuses_to_end_a_machine_while_it_is_protected() -> None:
    text = """
timeline:
  - {at: 1, protectInstances: {names: n-1}}
  - {at: 5, unprotectInstances: {}}
"""
    async with living(text) as (simulation, lines):
        cluster = simulation.cluster
        ids = {instance.node: instance.id for instance in cluster.cloud.instances}
        await cluster.pace.sleep(2)
        assert [await end(cluster, ids[name]) for name in ("n-1", "n-2")] == [409, 202]
        await cluster.pace.sleep(4)
        assert await end(cluster, ids["n-1"]) == 202
        assert [(at, what) for _, at, what in lines] == [
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
    async with living(text) as (simulation, lines):
        await simulation.cluster.pace.sleep(4)
        what = [what for _, _, what in lines]
        assert what[0].startswith("timeline[0] failed: the server has no kind Unicorn")
        assert what[1].startswith("timeline[1] failed: POST /api/v1/namespaces/default/pods: 422")
        assert what[2] == "the server's clock is wrong by 1 s"


async def test_a_fault_may_be_for_the_world_too() -> None:
    text = "faults: {down: {client: '.', refuse: {status: 503}}}"
    async with living(text) as (simulation, _):
        assert (await simulation.cluster.api.call("GET", PODS))[0] == 503
