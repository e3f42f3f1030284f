"""Traces that outlive their controllers: killed, stopped or replaced, the trace stays one, and every parent exists."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import Latency, Rule
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged
from support.traces import Collector, orphans, roots, twins

from gracectl.config import Settings
from gracectl.model import names

pytestmark = pytest.mark.anyio

CRITICAL = "system-node-critical"


async def a_world(stage: Stage) -> None:
    """A node with three waves: budgeted, plain, protected and slow pods, a DaemonSet's, critical ones."""
    await stage.create(
        a_workload("Deployment", "web", 4, behaviour={"ready-seconds": 0.4, "stop-seconds": 0.3}),
        a_budget_manifest("web", maxUnavailable=1),
        a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "3s"}, behaviour={"stop-seconds": 1}),
        a_pod_manifest("slow", "n1", behaviour={"stop-seconds": 4}),
        a_pod_manifest("dns", "n1", priorityClassName=CRITICAL, behaviour={"stop-seconds": 2}),
    )
    stage.transport.behind.add(Rule(fault=Latency(0.01, 0.01)))


async def until_told(stage: Stage, *nodes: str) -> None:
    await stage.until_gone(*nodes)
    await stage.clock.sleep(1)


def check(collector: Collector) -> None:
    """One whole trace: a root, every parent, and no id twice but of spans that a successor has marked."""
    spans = collector.spans
    (root,) = roots(spans)
    assert root.name == "terminate node"
    assert {span.trace for span in spans} == {root.trace}
    assert not orphans(spans)
    again = {span.id for span in spans if span.attributes.get("gracectl.resumed")}
    assert twins(spans).keys() <= again
    assert all(span.start <= span.end for span in spans)
    assert all(root.start <= span.start and span.end <= root.end for span in spans)


@pytest.mark.parametrize("lost", [0.0, 1.0, 100.0], ids=["nothing lost", "the last second lost", "all lost"])
@pytest.mark.parametrize("after", [0.0, 0.005, 0.1, 0.45, 0.9, 1.5, 3.1, 4.0, 4.3, 5.0, 6.5, 8.0, 9.5])
async def test_a_kill_at_any_point_leaves_one_trace(after: float, lost: float) -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=5.0)) as stage:
        await a_world(stage)
        collector = Collector(stage)
        async with stage.mortal() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(after)
            assert stage.node("n1") is not None
        collector.lose(lost)
        await stage.clock.sleep(0.2)
        async with stage.controller():
            await until_told(stage, "n1")
        check(collector)


async def test_killed_again_and_again() -> None:
    async with staged("n1", "n2") as stage:
        await a_world(stage)
        collector = Collector(stage)
        async with stage.mortal() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
        lives = 0
        while stage.node("n1"):
            lives += 1
            async with stage.mortal():
                await stage.clock.sleep(2.3)
        assert lives >= 3
        check(collector)


@pytest.mark.seeds(10)
async def test_kills_at_random(seed: int) -> None:
    rng = random.Random(f"traces/{seed}")
    async with staged("n1", "n2", seed=seed, cloud=CloudSettings(terminate_delay=rng.uniform(0, 8))) as stage:
        await a_world(stage)
        collector = Collector(stage)
        async with stage.mortal() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(rng.uniform(0, 3))
        collector.lose(rng.choice([0.0, 0.5, 1.0]))
        for _ in range(rng.randint(0, 4)):
            async with stage.mortal():
                await stage.clock.sleep(rng.expovariate(0.5))
                if stage.node("n1") is None:
                    return  # killed in the second in which the root was due: no object is left to continue from
            collector.lose(rng.choice([0.0, 0.5, 1.0]))
        async with stage.controller():
            await until_told(stage, "n1")
        check(collector)


async def test_a_successor_counts_its_minutes_from_the_takeover() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "400s"}))
        collector = Collector(stage)
        async with stage.mortal() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(150)
        await stage.clock.sleep(75)
        async with stage.controller():
            await until_told(stage, "n1")
        waits = [(wait.start, wait.end) for wait in collector.of("waiting")]
        assert waits == [(0, 60), (60, 120), (225, 285), (285, 345)]
        check(collector)


async def test_a_successor_takes_the_drain_from_the_condition_and_marks_its_spans() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=20.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1", behaviour={"stop-seconds": 10}))
        collector = Collector(stage)
        async with stage.mortal() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(5)
        async with stage.controller():
            await until_told(stage, "n1")
        first, again = collector.of("cordon")
        assert ("gracectl.resumed" in first.attributes, again.attributes.get("gracectl.resumed")) == (False, True)
        drain, root = collector.the("drain"), collector.the("terminate node")
        assert (drain.start, drain.end) == (0, 10)
        assert drain.attributes["gracectl.resumed"] is root.attributes["gracectl.resumed"] is True
        assert collector.pod("a").start == 0  # its deletionTimestamp says so
        assert collector.pod("a").attributes["gracectl.pod.left"] == "already terminating"


async def test_a_successor_measures_a_held_pod_from_the_takeover() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "40s"}))
        collector = Collector(stage)
        async with stage.mortal() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(10)
        await stage.clock.sleep(10)
        async with stage.controller():
            await until_told(stage, "n1")
        pod = collector.pod("job")
        assert (pod.start, pod.end) == (20, 40)
        assert pod.attributes["gracectl.protected.seconds"] == 20
        check(collector)


@pytest.mark.parametrize("after", [4.5, 8.0], ids=["while it drains", "while its instance terminates"])
async def test_an_orderly_handover_is_continued_in_the_same_way(after: float) -> None:
    async with staged("n1", "n2", settings=Settings(), cloud=CloudSettings(terminate_delay=5.0)) as stage:
        await a_world(stage)
        collector = Collector(stage)
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(after)
        async with stage.controller():
            await until_told(stage, "n1")
        assert len(collector.outlets) == 2
        assert all(outlet.emitted for outlet in collector.outlets)
        assert any("gracectl.resumed" in span.attributes for span in collector.spans)
        check(collector)


async def test_another_node_of_the_same_name_has_another_trace() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        collector = Collector(stage)
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await until_told(stage, "n1")
            await stage.add_nodes("n1")
            await stage.settle(controller)
            await stage.delete_node("n1")
            await until_told(stage, "n1")
        first, second = collector.of("terminate node")
        assert first.trace != second.trace
        assert not orphans(collector.spans)
        assert all(one.end <= other.start for one, other in pairwise((first, second)))
