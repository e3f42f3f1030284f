"""Restarts, a stop, and two controllers by mistake during a drain. Kills at every write: simulation/sieve."""

from __future__ import annotations

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import Latency, Rule
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged

from gracectl.model import names


async def a_world(stage: Stage) -> None:
    """Two nodes to drain and one to go to; a budgeted workload, plain pods, a slow one."""
    await stage.create(
        a_workload("Deployment", "web", 5, behaviour={"ready-seconds": 0.4, "stop-seconds": 0.3}),
        a_budget_manifest("web", maxUnavailable=1),
        a_pod_manifest("slow", "n1", behaviour={"stop-seconds": 4}),
        *(a_pod_manifest(f"plain-{n}", f"n{n % 2 + 1}", behaviour={"stop-seconds": 1}) for n in range(6)),
    )


async def test_two_controllers_by_mistake_break_nothing() -> None:
    async with staged("n1", "n2", "n3", cloud=CloudSettings(terminate_delay=1.0)) as stage:
        await a_world(stage)
        stage.transport.behind.add(Rule(fault=Latency(0.01, 0.05)))
        async with stage.controller() as one, stage.controller() as other:
            await stage.settle(one)
            await stage.settle(other)
            start = await stage.delete_node("n1")
            await stage.delete_node("n2")
            assert await stage.until_gone("n1", "n2") - start < 20
            await stage.clock.sleep(1)
            assert one.under_way() == other.under_way() == ()
        assert [stage.instance_state(name) for name in ("n1", "n2", "n3")] == ["terminated", "terminated", "running"]
        assert await only_one_was_missing(stage)


async def test_a_restart_takes_back_no_condition() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")], cloud=CloudSettings(terminate_delay=30.0)) as stage:
        async with stage.settled(mortal=True):
            await stage.delete_node("n1")
            await stage.clock.sleep(5)
        before = stage.condition("n1", "Drained")
        assert before is not None
        assert before["status"] == "True"
        async with stage.controller():
            for _ in range(30):
                await stage.clock.sleep(0.1)
                assert stage.condition("n1", "Drained") == before
            await stage.until_gone("n1")


async def test_steps_that_changed_hands_have_their_whole_duration() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=30.0)) as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "100s"}))
        async with stage.settled(mortal=True) as controller:
            await stage.delete_node("n1")
            await stage.clock.sleep(40)
        await stage.clock.sleep(20)
        async with stage.mortal() as controller:
            await stage.clock.sleep(50)
        async with stage.controller() as controller:
            await stage.until_gone("n1")
            await stage.clock.sleep(1)
            (done,) = controller.finished()
        # At 110 s the third finds it drained, and waits two seconds more for pods of the last moment.
        assert round(done.seconds["drain"]) == 102
        assert 20 <= done.seconds["instance"] <= 60


async def test_a_stop_finishes_what_is_under_way() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")]) as stage:
        async with stage.settled() as controller:
            stage.transport.behind.add(Rule(fault=Latency(3.0, 3.0), path="eviction"))
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
        # Told to stop after 1 s; the eviction is answered after 3 s.
        assert stage.clock.monotonic() - start == pytest.approx(3.0, abs=0.01)
        assert controller.statistics().evictor.results == {"Evicted": 1}


async def only_one_was_missing(stage: Stage) -> bool:
    """From the server's own history: `web` never had fewer than four ready pods because of us."""
    pods = stage.server.store.table("pods")
    ready: set[str] = set()
    for change in pods.changes(0):
        if change.object["metadata"].get("labels", {}).get("app") != "web":
            continue
        uid, was = change.object["metadata"]["uid"], len(ready)
        is_ready = change.type != "DELETED" and "deletionTimestamp" not in change.object["metadata"]
        conditions = change.object["status"].get("conditions") or []
        is_ready = is_ready and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        ready = ready | {uid} if is_ready else ready - {uid}
        if len(ready) < was and len(ready) < 4:
            return False
    return True
