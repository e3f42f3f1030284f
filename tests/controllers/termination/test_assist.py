"""Drains of other owners, with assistance: their pods leave as fast as ours, and nothing else is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from kubesim.controllers.karpenter import Karpenter, karpenters
from kubesim.faults import Latency, Rule
from kubesim.server.api import JsonObject
from support.inprocess import Executed, Stutter
from support.instances import DEFINITION, DRAIN_RULES, DRAIN_RULES_DEFINITION, MACHINES, ClusterApi
from support.karpenter import DEFINITIONS
from support.stage import STOPS_AFTER_5, Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings
from support.stories import CROWD, deletions, evictions, few_workers, stamp, staying, told, until

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
        operations = [each.operation for each in stage.transport.executed if each.request.method != "GET"]
        about_others = [each for each in operations if each.resource == "nodes" and each.name not in nodes]
        written = {(each.verb, each.resource) for each in operations if each not in about_others}
        assert written <= WRITES


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
    node_object = stage.node(node)
    assert node_object is not None
    status = {"providerID": node_object["spec"]["providerID"], "nodeName": node}
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


async def test_evictions_end_with_the_event_although_all_workers_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    few_workers(monkeypatch)
    async with staged(*CROWD, settings=KARPENTER) as stage:
        await stage.add_nodes("k1", labels=POOL)
        await stage.patch_node("k1", {"metadata": {"finalizers": [names.FINALIZER]}})
        labels = {"app": "web"}
        await stage.create(*(a_pod_manifest(name, "k1", labels=labels, **STOPS_AFTER_5) for name in ("a", "b")))
        await stage.create(a_budget_manifest("web", minAvailable=1))
        async with stage.settled():
            await until(stage, 0.0)
            await begin(stage, "k1")
            await until(stage, 10.0)
            stage.transport.before.add(Rule(fault=Latency(30.0, 30.0), method="PATCH", path="/nodes/n"))
            for node in CROWD:
                await stage.delete_node(node)
            await stage.patch_node("k1", {"spec": {"taints": []}})
            await stage.create(a_pod_manifest("c", "n0", labels=labels))  # the budget allows the eviction of the other
            await until(stage, 11.0)
            assert len(evictions(stage)) == 1


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


# -- next to a Karpenter that works ------------------------------------------------------------------------------------


@asynccontextmanager
async def with_karpenter(
    *nodes: str, settings: Settings = KARPENTER, **claim: Any
) -> AsyncIterator[tuple[Stage, Karpenter]]:
    """Nodes of a Karpenter that drains them, too; the pods of `web` under a budget of two, and a node for them."""
    async with staged(settings=settings, seed=3) as stage, anyio.create_task_group() as group:
        karpenter = Karpenter(stage.cluster.api, stage.cluster.pace)
        group.start_soon(karpenter.run)
        await stage.add_nodes(*nodes, claim=karpenters(**claim))
        await stage.create(
            a_workload("Deployment", "web", 12, behaviour={"ready-seconds": 0.3, "stop-seconds": 0.2}),
            a_budget_manifest("web", maxUnavailable=2),
        )
        await stage.add_nodes("other", pods=500)
        await stage.clock.sleep(5)
        yield stage, karpenter
        group.cancel_scope.cancel()


async def drained_together(stage: Stage, *nodes: str) -> tuple[float, int]:
    """Delete the nodes; returns seconds until their last pod is gone, and the fewest Ready pods of `web` meanwhile."""
    began, serving = stage.clock.monotonic(), 12
    for node in nodes:
        await stage.delete_node(node)
    while left_on(stage, *nodes):
        serving = min(serving, sum(is_serving(pod) for node in stage.nodes() for pod in pods_of(stage, node)))
        await stage.clock.sleep(0.02)
    seconds = stage.clock.monotonic() - began
    await stage.until_gone(*nodes)
    return seconds, serving


def pods_of(stage: Stage, node: JsonObject) -> list[JsonObject]:
    return stage.pods_on(node["metadata"]["name"])


def is_serving(pod: JsonObject) -> bool:
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


async def test_both_evict_the_same_pods_faster_than_karpenter_alone_and_no_budget_is_exceeded() -> None:
    async with with_karpenter("n1", "n2", settings=the_settings()) as (stage, _), watching(stage):
        alone, _ = await drained_together(stage, "n1", "n2")
        assert not stage.evictions
    async with with_karpenter("n1", "n2") as (stage, _):
        stage.transport.stutter = Stutter(0.5, 0.5)  # 404, 409 and 429 are ordinary answers then
        async with watching(stage):
            together, serving = await drained_together(stage, "n1", "n2")
        assert {each.status for each in stage.evictions} & {404, 409, 429}
        assert serving >= 10
        assert together < alone / 1.5
        assert not [each for each in await stage.events() if each[1] == "EvictionFailed"]


async def test_pods_leave_although_karpenter_is_killed_and_their_nodes_go_when_it_is_back() -> None:
    async with with_karpenter("n1", "n2") as (stage, karpenter), watching(stage):
        await stage.delete_node("n1")
        await stage.delete_node("n2")
        await stage.until(lambda: bool(stage.evictions))
        karpenter.kill()
        agreed = len(stage.evictions)
        await stage.until_gone("n1", "n2")
        assert len(stage.evictions) > agreed
        assert set(stage.agreed().values()) == {1}


async def test_a_pod_is_deleted_in_time_although_karpenter_is_late() -> None:
    async with with_karpenter("n1", termination_grace_period="60s") as (stage, _):
        await stage.create(staying("a", grace=30))
        async with watching(stage):
            await until(stage, 0.0)
            await stage.delete_node("n1")
            await stage.until_gone("n1")
        assert [(name, at) for name, at, _ in deletions(stage) if name == "a"] == [("a", 30.0)]


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


# -- Cluster API -------------------------------------------------------------------------------------------------------

CLUSTER_API = the_settings(assist={"clusterAPI": True})
NO_LABEL: JsonObject = {"metadata": {"labels": {names.CLUSTER_API_DRAIN: None}}}
A_RULE: JsonObject = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "MachineDrainRule",
    "metadata": {"name": "r1", "namespace": "fleet"},
    "spec": {"drain": {"behavior": "Skip"}},
}


@asynccontextmanager
async def with_machine(*rules: JsonObject) -> AsyncIterator[Stage]:
    """A node with a deleted Machine, and a pod on it that stops after five seconds."""
    async with staged("n1", settings=CLUSTER_API) as stage:
        for definition in (DEFINITION, DRAIN_RULES_DEFINITION):
            await stage.call("POST", DEFINITIONS, definition)
        await stage.clock.sleep(1)
        node = stage.node("n1")
        assert node is not None
        await ClusterApi(stage).add_alone("m1", providerID=node["spec"]["providerID"])
        for rule in rules:
            await stage.call("POST", DRAIN_RULES, rule)
        await stage.call("DELETE", f"{MACHINES}/m1")
        await stage.create(a_pod_manifest("web", "n1", **STOPS_AFTER_5))
        yield stage
        assert not {"nodes/status", "machines"} & {each.operation.resource for each in written(stage)}


def written(stage: Stage) -> list[Executed]:
    return [each for each in stage.transport.executed if each.request.method != "GET"]


async def test_the_drain_of_a_machine_is_assisted_from_when_cluster_api_shows_it() -> None:
    async with with_machine() as stage, watching(stage):
        await until(stage, 0.0)
        assert not stage.evictions
        await ClusterApi(stage).drains("m1", "n1")
        await until(stage, 10.0)
        assert evictions(stage) == [("web", 0.0)]
        assert await told(stage, "web", "Evicted") == ["evicted by gracectl: node n1 is drained by Cluster API"]


async def test_with_a_machine_drain_rule_cluster_api_drains_alone_until_it_is_gone() -> None:
    async with with_machine(A_RULE) as stage, watching(stage):
        await until(stage, 0.0)
        await ClusterApi(stage).drains("m1", "n1")
        await until(stage, 30.0)
        assert not stage.evictions
        await stage.call("DELETE", f"{DRAIN_RULES}/r1")
        await until(stage, 50.0)
        assert evictions(stage) == [("web", 40.0)]


async def test_the_assistance_of_a_machine_ends_with_its_drain() -> None:
    async with with_machine() as stage, watching(stage):
        await stage.create(a_pod_manifest("late", "n1", labels={names.CLUSTER_API_DRAIN: "skip"}))
        await until(stage, 0.0)
        await ClusterApi(stage).drains("m1", "n1")
        await until(stage, 10.0)
        await ClusterApi(stage).drains("m1", "n1", "WaitingForVolumeDetach")
        await stage.call("PATCH", "/api/v1/namespaces/shop/pods/late", NO_LABEL, "application/merge-patch+json")
        await until(stage, 100.0)
        assert evictions(stage) == [("web", 0.0)]
