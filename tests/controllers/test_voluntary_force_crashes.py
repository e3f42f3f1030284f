"""An end by force that a crash interrupts between the deadline that is pulled to now and the deletion."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Partition, Rule
from support.stage import Stage, staged, the_settings
from support.voluntary import deletions, lost_at

from gracectl.config import Settings
from gracectl.model import names
from gracectl.model.times import format_time

pytestmark = pytest.mark.anyio

FORCED = the_settings(health={"force": True, "maximumUnhealthy": "100%"})
LATER = 1_000_000.0


async def pulled_and_killed(stage: Stage, what: str) -> None:
    """A controller that has written the deadline and dies before its DELETE is heard; then the node is well again."""
    async with stage.mortal() as controller:
        await stage.settle(controller)
        stage.transport.before.add(rule := Rule(fault=Partition(), method="DELETE", path=what))
        lost = await lost_at(stage, "n1")
        await stage.clock.sleep(lost + 902 - stage.clock.monotonic())
    stage.transport.before.remove(rule)
    stage.cluster.kubelet.heal("n1")
    await stage.until(lambda: (stage.condition("n1", "Ready") or {})["status"] == "True")


def deadlines_on(stage: Stage, claimed: bool) -> dict[str, str]:
    thing = stage.claim("n1-claim") if claimed else stage.node("n1")
    assert thing is not None
    ours = (names.TERMINATION_TIMESTAMP, names.FORCED_DEADLINE)
    return {key: value for key, value in thing["metadata"].get("annotations", {}).items() if key in ours}


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("before", ["", "a deadline"])
@pytest.mark.parametrize("after", [FORCED, Settings()], ids=["forced", "not forced"])
async def test_a_node_that_is_well_again_after_a_crash_gets_its_deadline_back(
    claimed: bool, before: str, after: Settings
) -> None:
    async with staged(settings=FORCED) as stage:
        await stage.add_nodes("n1", claim=ClaimSpec() if claimed else None)
        stood = {names.TERMINATION_TIMESTAMP: format_time(stage.clock.now() + LATER)} if before else {}
        patch = {"metadata": {"annotations": stood}}
        await (stage.patch_claim("n1-claim", patch) if claimed else stage.patch_node("n1", patch))
        await pulled_and_killed(stage, "nodeclaims" if claimed else "nodes")
        assert deadlines_on(stage, claimed) != stood
        stage.settings = after
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(600)
            assert deadlines_on(stage, claimed) == stood
            assert deletions(stage) == deletions(stage, "nodeclaims") == []


async def test_what_somebody_has_tightened_meanwhile_stays() -> None:
    async with staged("n1", settings=FORCED) as stage:
        await pulled_and_killed(stage, "nodes")
        tighter = {names.TERMINATION_TIMESTAMP: format_time(stage.clock.now() - 5000)}
        await stage.patch_node("n1", {"metadata": {"annotations": tighter}})
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(10)
            assert deadlines_on(stage, claimed=False) == tighter


async def test_a_node_that_is_still_ill_after_a_crash_ends_by_force_all_the_same() -> None:
    async with staged("n1", settings=FORCED) as stage:
        async with stage.mortal() as controller:
            await stage.settle(controller)
            stage.transport.before.add(rule := Rule(fault=Partition(), method="DELETE", path="nodes"))
            lost = await lost_at(stage, "n1")
            await stage.clock.sleep(lost + 902 - stage.clock.monotonic())
        stage.transport.before.remove(rule)
        async with stage.controller():
            await stage.until_gone("n1")
