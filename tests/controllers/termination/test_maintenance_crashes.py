"""Restarts during maintenance, and two controllers by mistake. Kills at every write: simulation/sieve."""

from __future__ import annotations

from support.stage import a_pod_manifest, staged
from support.stories import (
    a_daemon_set,
    keep,
)


async def test_a_restart_while_the_node_rests_writes_nothing_and_emits_no_event() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1"), a_daemon_set("agent")]) as stage:
        async with stage.settled(mortal=True) as controller:
            await keep(stage, "n1")
            await stage.clock.sleep(30)
        before, events = stage.node("n1"), await stage.events()
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(120)
            assert [each.step for each in controller.under_way()] == ["drained"]
            assert stage.node("n1") == before
            assert await stage.events() == events
