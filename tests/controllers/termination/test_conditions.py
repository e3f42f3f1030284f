"""Conditions of a termination, and other writers: conflicts, changed budgets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from kubesim.controllers.client import MERGE
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import Fault, Latency, Refuse, Rule
from support.stage import (
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    instants,
    reasons,
    staged,
    the_settings,
)

from gracectl.model import names


async def test_the_condition_names_the_first_three_and_is_written_every_ten_seconds_at_most() -> None:
    objects = [
        a_workload("Deployment", "web", 8, behaviour={"ready-seconds": 4, "stop-seconds": 1}),
        a_budget_manifest("web", maxUnavailable=1),
        a_pod_manifest("plain", "n1", behaviour={"stop-seconds": 2}),
    ]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled():
        await stage.clock.sleep(20)
        on_n1 = sorted(p["metadata"]["name"] for p in stage.pods_on("n1"))
        assert len(on_n1) >= 4
        start = await stage.delete_node("n1")
        await stage.clock.sleep(1)
        condition = stage.condition("n1", names.DRAINED)
        assert condition is not None
        message = condition["message"]
        assert (condition["status"], condition["reason"]) == ("False", "Draining")
        assert message.startswith(f"{len(on_n1)} pods left: shop/web-")
        assert message.count("shop/web-") == 3
        assert message.endswith(f", and {len(on_n1) - 3} more")
        assert "budget shop/web" in message
        turned = condition["lastTransitionTime"]
        await stage.until(lambda: len(stage.pods_on("n1")) == 1)
        condition = stage.condition("n1", names.DRAINED)
        assert condition is not None
        assert condition["lastTransitionTime"] == turned
        end = await stage.until_gone("n1") - start
        writes = [round(instant - start, 3) for instant in stage.status_writes("n1")]
        draining = [instant for instant in writes if instant < end]
        assert draining[0] == 0.0
        assert all(later - earlier >= 10.0 for earlier, later in pairwise(draining))
        assert len(draining) == 1 + int(end // 10)
        assert len(writes) - len(draining) <= 4  # Drained, VolumesDetached, InstanceTerminating (twice)


async def test_nothing_is_written_while_nothing_changes() -> None:
    objects = [a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})]
    async with staged("n1", objects=objects) as stage, stage.settled():
        start = await stage.delete_node("n1")
        await stage.clock.sleep(600)
        assert [round(instant - start, 3) for instant in stage.status_writes("n1")] == [0.0]
        events = await stage.events()
        assert [(name, reason) for name, reason, _ in events] == [
            ("n1", "Cordoned"),
            ("n1", "Draining"),
            ("n1", "DoNotDisruptUntil"),
            ("job", "DoNotDisruptUntil"),
            ("n1", "DrainBlocked"),
        ]


async def test_a_heartbeat_between_two_of_our_writes_repeats_none_of_them() -> None:
    """The watch then shows a state of the node from between our writes: what we wrote last still counts."""
    objects = [a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})]
    async with staged("n1", objects=objects) as stage, stage.settled():
        handle = stage.server.handle

        async def with_heartbeat(request: Any) -> Any:
            is_ours = request.path == "/api/v1/nodes/n1/status" and isinstance(request.body, bytes)
            if is_ours:
                await stage.patch_node("n1", {"metadata": {"labels": {"beat": "1"}}})
            return await handle(request)

        stage.server.handle = with_heartbeat  # type: ignore[method-assign]  # the one way to be there just before
        start = await stage.delete_node("n1")
        await stage.clock.sleep(30)
        assert [round(instant - start, 3) for instant in stage.status_writes("n1")] == [0.0]


@pytest.mark.parametrize("fault", [Latency(1000.0, 1000.0), Refuse(500)], ids=["silent", "failing"])
async def test_a_condition_that_cannot_be_written_holds_nothing_up_for_long(fault: Fault) -> None:
    critical = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}
    objects = [a_pod_manifest("ordinary", "n1"), a_pod_manifest("dns", "n1", **critical)]
    async with staged("n1", objects=objects) as stage, stage.settled():
        stage.transport.before.add(Rule(fault=fault, path="nodes/n1/status"))
        start = await stage.delete_node("n1")
        # One condition before each of: the first wave, the volumes, the instance, its end, the finalizer.
        assert await stage.until_gone("n1") - start <= 26.0
        assert [each.operation.name for each in stage.evictions] == ["ordinary", "dns"]
        assert stage.evictions[1].instant - start <= 5.1


async def test_a_budget_that_is_edited_in_the_middle_is_obeyed_at_once() -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 5}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2")
        async with stage.settled():
            start = await stage.delete_node("n1")
            await stage.clock.sleep(7)
            path = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web"
            merge = "application/merge-patch+json"
            await stage.call("PATCH", path, {"spec": {"maxUnavailable": 3}}, merge)
            await stage.clock.sleep(0.01)
            assert instants(stage, "create", "pods/eviction", start) == [0.0, 5.0, 7.0, 7.0]
            await stage.call("PATCH", path, {"spec": {"selector": {"matchLabels": {"app": "other"}}}}, merge)
            await stage.clock.sleep(70)  # that it selects none of them has to settle first
            assert instants(stage, "create", "pods/eviction", start)[4:] == [67.01, 67.01]
            assert set(stage.agreed().values()) == {1}


async def test_every_pod_that_two_budgets_select_gets_an_event_though_one_eviction_is_sent() -> None:
    objects = [
        a_workload("Deployment", "web", 6),
        a_budget_manifest("web", maxUnavailable=1),
        {**a_budget_manifest("web", maxUnavailable=2), "metadata": {"name": "also", "namespace": "shop"}},
    ]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled():
        on_n1 = {p["metadata"]["name"] for p in stage.pods_on("n1") if p["metadata"]["namespace"] == "shop"}
        assert len(on_n1) >= 2
        await stage.delete_node("n1")
        await stage.clock.sleep(30)
        messages = {name: message for name, reason, message in await stage.events() if reason == "MultipleBudgets"}
        assert messages.keys() == on_n1
        assert all("(shop/also and shop/web)" in message for message in messages.values())
        assert len(stage.evictions) == 1


async def test_a_node_that_is_no_longer_managed_is_left_alone_in_the_middle_of_its_drain() -> None:
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("n1", labels={"pool": "mine"}, settings=settings) as stage:
        await stage.create(a_pod_manifest("kept", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.settled() as controller:
            await stage.delete_node("n1")
            await stage.clock.sleep(5)
            assert [progress.name for progress in controller.under_way()] == ["n1"]
            await stage.patch_node("n1", {"metadata": {"labels": {"pool": "yours"}}})
            await stage.call("PATCH", "/api/v1/namespaces/shop/pods/kept", {"metadata": {"annotations": None}}, MERGE)
            await stage.clock.sleep(60)
            assert controller.under_way() == ()
            assert controller.finished() == ()
            assert stage.evictions == []
            await stage.patch_node("n1", {"metadata": {"labels": {"pool": "mine"}}})
            await stage.until_gone("n1")
        assert len(stage.evictions) == 1
        assert "UnmanagedNodeHeld" in await reasons(stage, "n1")


async def test_what_a_termination_waits_for_is_still_known_after_a_look_that_changes_nothing() -> None:
    slow = CloudSettings(terminate_delay=30.0)
    async with staged("n1", cloud=slow) as stage, stage.settled() as controller:
        await stage.delete_node("n1")
        seen: set[tuple[str, str]] = set()
        for _ in range(25):  # the heartbeats of the node make looks between those that ask the provider
            await stage.clock.sleep(1)
            seen.update((progress.step, progress.waits_for) for progress in controller.under_way())
        provider_id = f"sim:///zone-a/{stage.instances['n1']}"
        assert {waits for step, waits in seen if step == "instance"} == {f"instance {provider_id} is ending"}
        assert {step for step, _ in seen} <= {"drain", "instance"}
