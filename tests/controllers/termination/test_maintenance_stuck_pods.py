"""Pods that do not stop: named, and on a node in maintenance not taken for gone while the kubelet is alive."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage import NOT_READY, Stage, a_pod_manifest, reasons, staged
from support.stories import asked, is_at_rest, keep

from gracectl.inspect.status import NodeStatus, node_statuses
from gracectl.model import names

ZOMBIE: dict[str, Any] = {"terminationGracePeriodSeconds": 20, "behaviour": {"never-stops": "true"}}
"""Evicted at 0 s, its grace ends at 20 s: stuck from 80 s on."""
STATE = "shop/zombie may still run: terminating, more than a minute past its grace, and the kubelet is alive"
CRITICAL = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}


def drained(stage: Stage) -> tuple[str, str, str]:
    condition = stage.condition("n1", names.DRAINED)
    assert condition is not None
    return condition["status"], condition["reason"], condition["message"]


def is_stuck(stage: Stage) -> bool:
    condition = stage.condition("n1", names.DRAINED)
    return condition is not None and condition["reason"] == "StuckPods"


def status(controller: Any, stage: Stage) -> NodeStatus:
    (node_status,) = node_statuses(controller._cluster, controller._dependencies.termination, {"n1"}, stage.clock.now())
    return node_status


async def force_delete(stage: Stage) -> None:
    await stage.call("DELETE", "/api/v1/namespaces/shop/pods/zombie", {"gracePeriodSeconds": 0})


async def test_a_node_in_maintenance_is_not_drained_while_a_stuck_pod_may_run() -> None:
    objects = [
        a_pod_manifest("zombie", "n1", **ZOMBIE),
        a_pod_manifest("dns", "n1", behaviour={"stop-seconds": 4}, **CRITICAL),
    ]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled() as controller:
        start = await keep(stage, "n1")
        at = await stage.until(lambda: [name for name, _ in asked(stage, start)] == ["zombie", "dns"])
        assert at - start == pytest.approx(80.0, abs=0.001), "later waves do not wait for it"
        at = await stage.until(lambda: is_stuck(stage))
        assert at - start == pytest.approx(84.0, abs=0.001)
        await stage.clock.sleep(1000)
        assert drained(stage) == ("False", "StuckPods", f"not drained: {STATE}")
        (progress,) = controller.under_way()
        assert (progress.step, progress.waits_for, progress.pods_left) == ("drain", f"not drained: {STATE}", 0)
        node_status = status(controller, stage)
        assert (node_status.is_done, node_status.stuck, node_status.waits_for) == (
            False,
            STATE,
            f"not drained: {STATE}",
        )
        assert [(each.kind, each.objects) for each in node_status.warnings] == [("StuckPods", ("shop/zombie",))]
        assert (await reasons(stage, "n1")).count("PodsStuck") == 1
        assert "Drained" not in await reasons(stage, "n1")
        start = stage.clock.monotonic()
        await force_delete(stage)
        assert await stage.until(lambda: is_at_rest(stage, "n1")) - start == pytest.approx(0.0, abs=0.001)
        await stage.clock.sleep(1)
        assert (await reasons(stage, "n1"))[-1] == "Drained"
        assert status(controller, stage).is_done


async def test_a_pod_is_gone_with_its_kubelet_and_back_with_it() -> None:
    """A reboot: the machine is off, and the kubelet that comes back finds the pod again."""
    async with staged("n1", "n2", objects=[a_pod_manifest("zombie", "n1", **ZOMBIE)]) as stage, stage.settled():
        await keep(stage, "n1")
        await stage.until(lambda: is_stuck(stage))
        await stage.clock.sleep(10)
        ready = stage.node("n1")["status"]["conditions"]  # type: ignore[index]
        await stage.patch_node("n1", NOT_READY, "/status")
        await stage.clock.sleep(0.1)
        assert is_at_rest(stage, "n1")
        await stage.clock.sleep(10)
        await stage.patch_node("n1", {"status": {"conditions": [e for e in ready if e["type"] == "Ready"]}}, "/status")
        await stage.clock.sleep(10)
        assert drained(stage)[:2] == ("False", "StuckPods")


async def test_a_termination_does_not_wait_for_a_stuck_pod_and_names_it() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("zombie", "n1", **ZOMBIE)]) as stage:
        stage.provider.seconds = 5.0
        async with stage.settled() as controller:
            start = await stage.delete_node("n1")
            at = await stage.until(lambda: (stage.condition("n1", names.DRAINED) or {}).get("status") == "True")
            assert at - start == pytest.approx(80.0, abs=0.001)
            assert drained(stage)[2] == f"drained; not waited for: {STATE}"
            assert [each.kind for each in status(controller, stage).warnings][:1] == ["StuckPods"]
            await stage.until_gone("n1")
        messages = {reason: message for name, reason, message in await stage.events() if name == "n1"}
        assert messages["PodsStuck"] == f"{STATE}; the drain continues without waiting for it"
