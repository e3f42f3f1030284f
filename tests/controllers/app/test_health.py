"""Whether a controller says rightly that it lives and is ready: while it begins, works, hangs, and is told to stop."""

from __future__ import annotations

import anyio
import pytest
from support.disruption import TERMINABLE
from support.stage import a_budget_manifest, a_pod_manifest, a_workload, staged

from gracectl.app.controller import Controller
from gracectl.controllers.disruption.controller import DisruptionController
from gracectl.controllers.finalizer.controller import FinalizerController
from gracectl.telemetry.health import Check, report

CACHES = ("nodes", "pods", "budgets", "attachments", "claims", "node-budgets", "node-drains")


def failed(*checks: Check) -> list[str]:
    return [check.name for check in checks if not check.is_ok]


async def test_it_is_ready_when_every_cache_is_live_and_until_it_is_told_to_stop() -> None:
    async with staged("n1") as stage:
        controller = Controller(stage.settings, stage.transport.line(), stage.clock, stage.provider)
        stop = anyio.Event()
        assert failed(*controller.process.readiness()) == [f"cache of {name}" for name in CACHES]
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run, stop)
            await stage.settle(controller)
            is_ready, text = report(controller.process.readiness())
            assert is_ready
            assert text.startswith("ok running: running\nok cache of nodes: 1 objects\n")
            stage.transport.is_listening = False
            await stage.clock.sleep(3600)
            assert not failed(*controller.process.readiness())
            stop.set()
            assert failed(*controller.process.readiness()) == ["running"]
        assert failed(*controller.process.readiness()) == ["running"]


async def test_it_lives_through_work_and_through_a_server_that_is_not_there() -> None:
    async with staged("n1") as stage, stage.controller() as controller:
        assert not failed(*controller.process.health())
        await stage.settle(controller)
        await stage.create(
            a_budget_manifest("web", maxUnavailable=1), a_workload("Deployment", "web", 3), a_pod_manifest("free", "n1")
        )
        await stage.delete_node("n1")
        for _ in range(20):
            assert not failed(*controller.process.health())
            await stage.clock.sleep(1)
        stage.transport.is_listening = False
        for _ in range(10):  # for longer than a worker that hangs is borne
            await stage.clock.sleep(120)
            assert not failed(*controller.process.health())
        assert [check.name for check in controller.process.health()] == ["loop", "components", "queues", "timers"]


async def test_a_worker_that_hangs_is_told_when_no_honest_look_could_take_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(self: FinalizerController, key: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(FinalizerController, "reconcile_node", hang)
    async with staged("n1") as stage, stage.controller() as controller:
        await controller.wait_live()
        await stage.clock.sleep(899)
        assert not failed(*controller.process.health())
        await stage.clock.sleep(10)
        assert failed(*controller.process.health()) == ["queues"]
        assert "finalizers: same key in work for 90" in report(controller.process.health())[1]
        assert not failed(*controller.process.readiness())


async def test_stalled_workers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: DisruptionController) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(DisruptionController, "run", hang)
    async with staged("n1") as stage, stage.controller() as controller:
        await controller.wait_live()
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(910)
        assert failed(*controller.process.health()) == ["queues"]
        assert "keys wait, no worker progress for 9" in report(controller.process.health())[1]


async def test_a_standby_does_nothing_that_could_hang() -> None:
    async with staged("n1") as stage:
        controller = Controller(stage.settings, stage.transport.line(), stage.clock, stage.provider)
        await stage.clock.sleep(5000)
        assert not failed(*controller.process.health())
