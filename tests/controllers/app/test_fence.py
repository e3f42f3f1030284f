"""What leaves a controller whose fence is closed: every way to change something is tried, and none is open."""

from __future__ import annotations

import logging

import anyio
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Partition, Rule
from support.contest import ANYBODYS
from support.disruption import TERMINABLE
from support.stage import Stage, a_budget_manifest, a_pod_manifest, staged, the_settings
from support.stories import keep, take_off

from gracectl.app.controller import Controller
from gracectl.config import Settings
from gracectl.model import names

WAYS = {
    "create pods/eviction",
    "delete nodeclaims",
    "delete nodes",
    "delete pods",
    "patch nodeclaims",
    "patch nodeclaims/status",
    "patch nodes",
    "patch nodes/status",
    "patch pods/status",
    "terminate",
}
"""All ways in which a controller changes anything but Events and Leases. Who adds one puts it behind the fence, too."""


def changes(stage: Stage, since: float) -> set[str]:
    """In which ways something was changed from an instant on."""
    asked = (each for each in stage.transport.executed if each.request.method != "GET" and each.instant >= since)
    found = {
        f"{each.operation.verb} {each.operation.resource}" for each in asked if each.operation.plural not in ANYBODYS
    }
    terminations = any(at >= since for at in stage.provider.instants_of("terminate"))
    return found | ({"terminate"} if terminations else set())


async def everything_at_once(stage: Stage) -> None:
    """Each kind of work there is, for a controller to find."""
    await stage.delete_node("plain")
    await stage.delete_node("claimed")
    await stage.delete_claim("ending-claim")
    await stage.patch_node("unwanted", TERMINABLE)
    await keep(stage, "resting")
    await take_off(stage, "returning")
    await stage.add_nodes("new", claim=ClaimSpec())


async def test_nothing_leaves_through_a_closed_fence_and_everything_when_it_opens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    tgp = ClaimSpec(termination_grace_period="5s")
    async with staged("plain", "resting", "returning", settings=the_settings(drain={"minimumSeconds": 0})) as stage:
        await stage.add_nodes("claimed", "ending", claim=tgp)
        await stage.add_nodes("unwanted", claim=ClaimSpec())
        await stage.create(
            *(a_pod_manifest(f"on-{node}", node) for node in ("plain", "claimed", "ending", "unwanted", "resting")),
            a_budget_manifest("on-ending", maxUnavailable=0),
        )
        async with stage.settled() as controller:
            await keep(stage, "returning")
            await stage.until(lambda: stage.condition("returning", names.DRAINED) is not None)
            await stage.clock.sleep(3)
            controller._fence.shut()
            shut = stage.clock.monotonic() + 0.001
            await stage.clock.sleep(0.001)
            await everything_at_once(stage)
            await stage.clock.sleep(60)
            assert changes(stage, shut) == set()
            assert controller.statistics().fence.refused > 0
            assert [each.message for each in caplog.records if "NotLeading" in each.message] == []
            opened = stage.clock.monotonic()
            controller._fence.open()
            await stage.until_gone("plain", "claimed", "ending", "unwanted")
            await stage.until_claims_gone("ending-claim", "claimed-claim", "unwanted-claim")
            await stage.clock.sleep(60)
            assert changes(stage, opened) == WAYS


async def test_with_another_in_the_lead_nothing_leaves_at_all() -> None:
    async with staged("n1", settings=Settings()) as stage, stage.settled() as first, stage.controller() as second:
        await second.wait_live()
        since = stage.clock.monotonic()
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert changes(stage, since) >= {"patch nodes", "terminate"}
        # It reads discovery, whether Karpenter is installed.
        assert {key[0] for key in second.statistics().client.attempts} == {"get", "list", "watch"}
        await stage.clock.sleep(1)
        assert (first.under_way(), second.under_way()) == ((), ())


@pytest.mark.parametrize("contends", [True, False])
async def test_the_process_ends_in_time_though_the_server_is_silent(contends: bool) -> None:
    settings = the_settings(leaderElection={"enabled": contends}, drain={"minimumSeconds": 0})
    async with staged("n1", objects=[a_pod_manifest("a", "n1")], settings=settings) as stage:
        controller = Controller(stage.settings, stage.transport, stage.clock, stage.provider)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run, stop)
            await stage.settle(controller)
            stage.transport.before.add(Rule(fault=Partition(), path="eviction"))
            await stage.delete_node("n1")
            await stage.clock.sleep(1)
            stage.transport.before.add(Rule(fault=Partition(), method="POST|PUT|PATCH|DELETE"))
            stop.set()
            asked = stage.clock.monotonic()
        # Ten seconds for writes, five for Events; with a Lease two and a half until nothing can arrive, and two for it.
        assert stage.clock.monotonic() - asked == pytest.approx(19.5 if contends else 15.0, abs=0.1)
