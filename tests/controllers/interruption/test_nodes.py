"""Taints and conditions that say that a machine will go, from the node to its end."""

from __future__ import annotations

from kubesim.controllers.client import STRATEGIC
from support.disruption import deletions
from support.interruptions import hearing, written_on
from support.stage import a_pod_manifest, staged

from gracectl.interruption.nodes import ConditionSource, TaintSource
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.policy.interruption import Kind

SOURCES = (TaintSource(TaintSource.Options()), ConditionSource(ConditionSource.Options()))
SPOT = {"cloud.google.com/gke-spot": "true"}
TAINT = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
PROTECTED = {names.DO_NOT_DISRUPT: "true"}


async def test_a_taint_ends_the_node_with_its_deadline_and_a_restart_does_not_move_it() -> None:
    job = a_pod_manifest("job", "n1", annotations=PROTECTED, terminationGracePeriodSeconds=10)
    async with staged("n1", "n2", labels=SPOT, objects=[job]) as stage:
        with hearing(*SOURCES):
            async with stage.settled(mortal=True):
                await stage.clock.sleep(30 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                await stage.patch_node("n1", {"spec": {"taints": [TAINT]}})
                await stage.clock.sleep(5)
                assert deletions(stage) == [(began, "n1")]
            await stage.clock.sleep(5)
            async with stage.controller():
                await stage.until_gone("n1")
        [deleted] = stage.transport.of("delete", "pods")
        assert round(deleted.instant, 3) == began + 20


async def test_a_taint_that_goes_before_the_node_takes_its_notice_along() -> None:
    job = a_pod_manifest("job", "n1", annotations=PROTECTED)
    async with staged("n1", "n2", objects=[job]) as stage:
        with hearing(*SOURCES):
            async with stage.settled():
                condition = {
                    "type": "MaintenancePlanned",
                    "status": "True",
                    "reason": "MaintenanceWindow",
                    "message": "Hardware maintenance is scheduled for this Node",
                    "lastTransitionTime": format_time(stage.clock.now()),
                }
                patch = {"status": {"conditions": [condition]}}
                await stage.call("PATCH", "/api/v1/nodes/n1/status", patch, STRATEGIC)
                await stage.clock.sleep(30)
                annotation = written_on(stage, "n1")
                assert annotation is not None
                assert (annotation.kind, annotation.at, annotation.source) == (Kind.MAINTENANCE, None, "conditions")
                shown = stage.condition("n1", names.INTERRUPTED)
                assert shown is not None
                assert shown["reason"] == "Maintenance"
                assert (stage.node("n1") or {})["spec"]["unschedulable"] is True
                patch = {"status": {"conditions": [{**condition, "status": "False"}]}}
                await stage.call("PATCH", "/api/v1/nodes/n1/status", patch, STRATEGIC)
                await stage.clock.sleep(30)
                assert written_on(stage, "n1") is None
                assert stage.condition("n1", names.INTERRUPTED) is None
                assert stage.condition("n1", names.TERMINATION_PENDING) is None
                assert "unschedulable" not in (stage.node("n1") or {})["spec"]
                assert deletions(stage) == []


async def test_a_notice_of_another_source_stays_without_taint_and_condition() -> None:
    job = a_pod_manifest("job", "n1", annotations=PROTECTED)
    async with staged("n1", "n2", objects=[job]) as stage:
        await stage.patch_node("n1", {"metadata": {"annotations": {names.INTERRUPTION: "rebalance unknown aws"}}})
        with hearing(*SOURCES):
            async with stage.settled():
                await stage.clock.sleep(60)
                assert written_on(stage, "n1") is not None


async def test_a_condition_that_flaps_costs_a_few_writes_a_second() -> None:
    job = a_pod_manifest("job", "n1", annotations=PROTECTED)
    async with staged("n1", "n2", objects=[job]) as stage:
        with hearing(*SOURCES):
            async with stage.settled():
                began = stage.clock.monotonic()
                for number in range(600):
                    status = ("True", "False")[number % 2]
                    entry = {"type": "MaintenancePlanned", "status": status, "reason": "Flapping", "message": ""}
                    patch = {"status": {"conditions": [entry]}}
                    await stage.call("PATCH", "/api/v1/nodes/n1/status", patch, STRATEGIC)
                    await stage.clock.sleep(0.05)
                assert stage.clock.monotonic() - began < 31
                assert len(stage.transport.of("patch", "nodes")) < 20 + 6 * 30
