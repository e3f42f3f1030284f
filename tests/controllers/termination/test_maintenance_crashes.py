"""Restarts during maintenance, and two controllers by mistake. Kills at every write: simulation/sieve."""

from __future__ import annotations

from kubesim.faults import Latency, Rule
from support.stage import a_budget_manifest, a_pod_manifest, a_workload, staged
from support.stories import (
    WAYS_BACK,
    a_daemon_set,
    gracectl_keep,
    is_at_rest,
    keep,
    remains,
)


async def test_a_restart_while_the_node_rests_writes_nothing_and_emits_no_event() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1"), a_daemon_set("agent")]) as stage:
        async with stage.settled(mortal=True) as controller:
            await keep(stage, "n1")
            await stage.clock.sleep(30)
        before, told = stage.node("n1"), await stage.events()
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(120)
            assert [each.step for each in controller.under_way()] == ["drained"]
            assert stage.node("n1") == before
            assert await stage.events() == told


async def test_two_controllers_by_mistake_keep_and_give_back_as_one_would() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(
            a_workload("Deployment", "web", 5, behaviour={"ready-seconds": 0.4, "stop-seconds": 0.3}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        stage.transport.behind.add(Rule(fault=Latency(0.01, 0.05)))
        async with stage.controller() as one, stage.controller() as other:
            await stage.settle(one)
            await stage.settle(other)
            before = remains(stage, "n1")
            for give_back in WAYS_BACK:
                await gracectl_keep(stage, "n1")
                await stage.until(lambda: is_at_rest(stage, "n1"))
                await stage.clock.sleep(5)
                await give_back(stage, "n1")
                await stage.clock.sleep(5)
                assert remains(stage, "n1") == before
            assert one.under_way() == other.under_way() == ()
