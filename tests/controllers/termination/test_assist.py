"""Drains of other owners, with assistance: the pods leave as fast as from our own nodes, and nothing else is written."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from kubesim.faults import Latency, Rule
from support.inprocess import Stutter
from support.stage import STOPS_AFTER_5, Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings
from support.stories import START, deletions, evictions, stamp, staying, told, until

from gracectl.app.controller import Controller
from gracectl.config import Settings
from gracectl.model import names

KARPENTER = the_settings(assist={"karpenter": True})
AUTOSCALER = the_settings(assist={"clusterAutoscaler": True})
POOL = {names.NODE_POOL: "default"}
TAINT = {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"}

WRITES = {("create", "pods/eviction"), ("delete", "pods"), ("create", "events"), ("patch", "events")}
"""All that may be written for the drain of another owner."""


@asynccontextmanager
async def beside(*nodes: str, settings: Settings = KARPENTER, **options: Any) -> AsyncIterator[Stage]:
    """Nodes of Karpenter, on which the test plays Karpenter."""
    async with staged(*nodes, settings=settings, labels=POOL, **options) as stage:
        for node in nodes:
            await stage.patch_node(node, {"metadata": {"finalizers": [names.FINALIZER]}})
        yield stage
        written = {(each.operation.verb, each.operation.resource) for each in stage.transport.executed}
        assert {each for each in written if each[0] not in ("get", "list", "watch")} <= WRITES


@asynccontextmanager
async def watching(stage: Stage) -> AsyncIterator[Controller]:
    """A controller that sees everything."""
    async with stage.controller() as controller:
        await controller.wait_live()
        yield controller


async def begin(stage: Stage, *nodes: str) -> None:
    """Karpenter deletes these nodes, and taints them."""
    for node in nodes:
        await stage.delete_node(node)
        await stage.patch_node(node, {"spec": {"taints": [TAINT]}})


async def give_deadline(stage: Stage, node: str, text: str) -> None:
    """A claim of Karpenter with this annotation, as it makes it when it deletes the claim."""
    found = stage.node(node)
    assert found is not None
    status = {"providerID": found["spec"]["providerID"], "nodeName": node}
    await stage.create_claim("c1", status, labels=POOL, annotations={names.TERMINATION_TIMESTAMP: text})


def left_on(stage: Stage, *nodes: str) -> int:
    return sum(len(stage.pods_on(node)) for node in nodes)


# -- Karpenter: evictions ----------------------------------------------------------------------------------------------

READY_SECONDS, STOP_SECONDS = 0.3, 0.5


async def drain_chain(stage: Stage, replicas: int) -> float:
    """Drain a Deployment under a budget of one from n1 and n2; returns seconds from the first eviction to the last."""
    behaviour = {"ready-seconds": READY_SECONDS, "stop-seconds": STOP_SECONDS}
    await stage.create(
        a_workload("Deployment", "web", replicas, behaviour=behaviour), a_budget_manifest("web", maxUnavailable=1)
    )
    await stage.add_nodes("n3", pods=500)
    async with watching(stage):
        await begin(stage, "n1", "n2")
        await stage.until(lambda: left_on(stage, "n1", "n2") == 0)
    agreed = [each.instant for each in stage.evictions if each.status == 201]
    assert set(stage.agreed().values()) == {1}
    assert len(agreed) == replicas
    return agreed[-1] - agreed[0]


async def test_a_chain_of_budgets_is_as_fast_as_on_our_own_nodes() -> None:
    async with beside("n1", "n2") as stage:
        assert await drain_chain(stage, 12) == pytest.approx(11 * READY_SECONDS, rel=0.001)
        gaps = [later.instant - earlier.instant for earlier, later in pairwise(stage.evictions)]
        assert gaps == pytest.approx([READY_SECONDS] * 11, abs=0.001)


async def test_pods_leave_when_the_first_group_is_gone() -> None:
    critical = a_pod_manifest("dns", "n1", priorityClassName=names.SYSTEM_CLUSTER_CRITICAL, **STOPS_AFTER_5)
    async with beside("n1") as stage:
        await stage.create(a_pod_manifest("web", "n1", **STOPS_AFTER_5), critical)
        async with watching(stage):
            await until(stage, 0.0)
            await begin(stage, "n1")
            await stage.until(lambda: left_on(stage, "n1") == 0)
        assert evictions(stage) == [("web", 0.0), ("dns", 5.0)]


async def test_the_events_say_who_drains_and_why() -> None:
    async with beside("n1") as stage:
        await stage.create(a_pod_manifest("web", "n1", **STOPS_AFTER_5))
        async with watching(stage):
            await begin(stage, "n1")
            await stage.until(lambda: left_on(stage, "n1") == 0)
            await stage.clock.sleep(5)
        assert await told(stage, "web", "Evicted") == ["evicted by gracectl: node n1 is drained by Karpenter"]
        assert stage.node("n1") is not None  # its end is Karpenter's


@pytest.mark.parametrize("settings", [the_settings(), the_settings(assist={"clusterAutoscaler": True})])
async def test_nothing_is_sent_unless_it_is_switched_on(settings: Settings) -> None:
    async with beside("n1", settings=settings) as stage:
        await stage.create(a_pod_manifest("web", "n1"))
        async with watching(stage):
            await begin(stage, "n1")
            await stage.clock.sleep(100)
        assert not stage.evictions


async def test_a_dry_run_sends_nothing_and_logs_what_it_would_send(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with beside("n1") as stage:
        await stage.create(a_pod_manifest("web", "n1"))
        stage.is_dry_run = True
        async with watching(stage):
            await begin(stage, "n1")
            await stage.clock.sleep(10)
        assert not stage.evictions
        assert "would evict pod shop/web" in caplog.text


async def test_evictions_end_in_the_instant_in_which_karpenter_takes_its_taint_off() -> None:
    async with beside("n1", "n2") as stage:
        await stage.create(
            a_workload("Deployment", "web", 4, behaviour={"ready-seconds": 10}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n3", pods=500)
        async with watching(stage):
            await begin(stage, "n1", "n2")
            await stage.clock.sleep(5)
            for node in ("n1", "n2"):
                await stage.patch_node(node, {"spec": {"taints": []}})
            await stage.clock.sleep(60)
            assert len(evictions(stage)) == 1
            await begin_again(stage, "n1", "n2")
            await stage.until(lambda: left_on(stage, "n1", "n2") == 0)


async def begin_again(stage: Stage, *nodes: str) -> None:
    for node in nodes:
        await stage.patch_node(node, {"spec": {"taints": [TAINT]}})


async def test_it_is_switched_on_and_off_while_it_runs() -> None:
    settings = the_settings()
    async with beside("n1", settings=settings) as stage:
        stage.reread = lambda: settings
        await stage.create(
            a_workload("Deployment", "web", 3, behaviour={"ready-seconds": 30}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2", pods=500)
        async with watching(stage):
            await begin(stage, "n1")
            await stage.clock.sleep(60)
            assert not stage.evictions
            settings = KARPENTER
            await stage.clock.sleep(60)
            agreed = len(evictions(stage))
            assert agreed >= 1
            settings = the_settings()
            await stage.clock.sleep(60)
            assert len(evictions(stage)) <= agreed + 1
            agreed = len(evictions(stage))
            await stage.clock.sleep(100)
            assert len(evictions(stage)) == agreed < 3


async def test_another_process_continues_after_a_kill() -> None:
    async with beside("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 3, behaviour={"ready-seconds": 5}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2", pods=500)
        async with stage.mortal() as controller:
            await controller.wait_live()
            await begin(stage, "n1")
            await stage.clock.sleep(1)
        async with watching(stage):
            await stage.until(lambda: left_on(stage, "n1") == 0)
        assert set(stage.agreed().values()) == {1}


# -- Karpenter: the deadline -------------------------------------------------------------------------------------------


async def test_a_pod_is_deleted_once_at_the_deadline_minus_its_grace() -> None:
    async with beside("n1") as stage:
        await stage.create(staying("a", grace=30), staying("b", grace=10), staying("c", grace=100))
        await give_deadline(stage, "n1", stamp(stage, 60))
        async with watching(stage):
            await until(stage, 0.0)
            await begin(stage, "n1")
            await until(stage, 100)
            assert deletions(stage) == [("c", 0.0, 60), ("a", 30.0, 30), ("b", 50.0, 10)]
        (message,) = await told(stage, "a", "DeletedForDeadline")
        assert message == (
            f"deleted by gracectl with its whole grace (30 s): node n1 is drained by Karpenter, and must be gone by "
            f"{stamp(stage, 60)}, regardless of budgets and protection"
        )


async def test_the_deadline_may_come_later_and_move() -> None:
    async with beside("n1") as stage:
        await stage.create(staying("a", grace=30))
        async with watching(stage):
            await until(stage, 0.0)
            await begin(stage, "n1")
            await until(stage, 10)
            await give_deadline(stage, "n1", stamp(stage, 60))
            await until(stage, 20)
            await stage.patch_claim(
                "c1", {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: stamp(stage, 90)}}}
            )
            await until(stage, 100)
        assert deletions(stage) == [("a", 60.0, 30)]


async def test_an_evicted_pod_that_ends_in_time_is_not_deleted_again() -> None:
    """On our own nodes it would be, at the deadline."""
    async with beside("n1") as stage:
        slow = {"behaviour": {"ignores-sigterm": "true"}, "terminationGracePeriodSeconds": 50}
        await stage.create(a_pod_manifest("a", "n1", **slow))
        await give_deadline(stage, "n1", stamp(stage, 55))
        async with watching(stage):
            await until(stage, 0.0)
            await begin(stage, "n1")
            await until(stage, 100)
        assert evictions(stage) == [("a", 0.0)]
        assert deletions(stage) == []


# -- Karpenter and gracectl for the same pod ---------------------------------------------------------------------------


async def test_both_evict_the_same_pods_and_no_budget_is_exceeded() -> None:
    """404, 409 and 429 are ordinary answers then."""
    async with beside("n1", "n2", seed=3) as stage:
        stage.transport.stutter = Stutter(0.5, 0.5)
        stage.transport.before.add(Rule(fault=Latency(0.0, 0.3), path="eviction"))
        await stage.create(
            a_workload("Deployment", "web", 12, behaviour={"ready-seconds": 0.3, "stop-seconds": 0.2}),
            a_budget_manifest("web", maxUnavailable=2),
        )
        await stage.add_nodes("n3", pods=500)
        healthy = [12]

        async def count() -> None:
            while True:
                ready = [p for n in ("n1", "n2", "n3") for p in stage.pods_on(n) if is_serving(p)]
                healthy.append(len(ready))
                await stage.clock.sleep(0.05)

        async with watching(stage), anyio.create_task_group() as group:
            group.start_soon(count)
            group.start_soon(rival, stage, "n1", "n2")
            await begin(stage, "n1", "n2")
            await stage.until(lambda: left_on(stage, "n1", "n2") == 0)
            group.cancel_scope.cancel()
        statuses = {each.status for each in stage.evictions}
        assert statuses & {404, 409, 429}
        assert min(healthy) >= 10
        for pod in {object_ for object_, _, _ in await stage.events()}:
            assert not await told(stage, pod, "EvictionFailed")


def is_serving(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


async def rival(stage: Stage, *nodes: str) -> None:
    """Evict any pod of these nodes, again and again."""
    rng = random.Random(7)
    while True:
        pods = [pod["metadata"]["name"] for node in nodes for pod in stage.pods_on(node)]
        if pods:
            path = f"/api/v1/namespaces/shop/pods/{rng.choice(pods)}/eviction"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "shop"}}
            await stage.cluster.api.call("POST", path, body)
        await stage.clock.sleep(rng.uniform(0.01, 0.2))


# -- Cluster Autoscaler ------------------------------------------------------------------------------------------------


def autoscalers_taint(stage: Stage) -> dict[str, str]:
    value = str(int(stage.clock.now()))
    return {"key": names.TO_BE_DELETED_TAINT_KEY, "value": value, "effect": "NoSchedule"}


async def test_cluster_autoscaler_is_assisted_from_its_delay_until_it_gives_up_or_takes_its_taint_off() -> None:
    async with staged("n1", "n2", settings=AUTOSCALER) as stage:
        await stage.create(
            a_workload("Deployment", "web", 4, behaviour={"ready-seconds": 50}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        async with watching(stage):
            await stage.add_nodes("n3", pods=500)
            await until(stage, 0.0)
            taint = autoscalers_taint(stage)
            await stage.patch_node("n1", {"spec": {"taints": [taint]}})
            await until(stage, 300)
            assert [instant for _, instant in evictions(stage)] == pytest.approx([6.0, 56.0], abs=0.1)
            assert not stage.status_writes("n1")
            assert not deletions(stage)


async def test_maintenance_is_ours_although_cluster_autoscaler_drains() -> None:
    async with staged("n1", settings=AUTOSCALER) as stage:
        await stage.create(a_pod_manifest("web", "n1", **STOPS_AFTER_5))
        async with stage.settled():
            await stage.patch_node("n1", {"spec": {"taints": [autoscalers_taint(stage)]}})
            await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: "now"}}})
            await stage.until(lambda: left_on(stage, "n1") == 0)
            await stage.clock.sleep(5)
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            assert condition["status"] == "True"
        assert await told(stage, "web", "Evicted") == ["evicted by gracectl: node n1 is drained for maintenance"]


def test_the_story_begins_at_a_whole_second() -> None:
    assert START == int(START)
