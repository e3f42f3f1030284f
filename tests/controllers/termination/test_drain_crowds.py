"""Nodes with many pods: how often a node is planned while they leave."""

from __future__ import annotations

import anyio
import pytest
from kubesim.controllers.client import MERGE
from support.stage import Stage, a_pod_manifest, staged
from support.stories import START, delete_at_start, evictions

from gracectl.model import names
from gracectl.policy.plan import NodeView, Plan
from gracectl.policy.planner import plan

PROTECTED = {names.DO_NOT_DISRUPT: "true"}
STEP = 0.01
"""Seconds between the ends of two pods."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a node was planned (monotonic)."""
    instants: list[float] = []

    def counted(view: NodeView, now: float) -> Plan:
        instants.append(anyio.current_time())
        return plan(view, now)

    monkeypatch.setattr("gracectl.controllers.termination.drain.plan", counted)
    return instants


async def leaving(count: int) -> Stage:
    """So many pods stop one after another, and a critical one when they are gone."""
    async with staged("n1") as stage, stage.settled():
        for number in range(count):
            behaviour = {"stop-seconds": f"{5 + number * STEP:g}", "jitter": "0"}
            await stage.create(a_pod_manifest(f"web-{number}", "n1", behaviour=behaviour))
        await stage.create(a_pod_manifest("last", "n1", priorityClassName=names.SYSTEM_CLUSTER_CRITICAL))
        await delete_at_start(stage, "n1")
        await stage.until_gone("n1")
        return stage


@pytest.mark.parametrize("count", [5, 100])
async def test_a_wave_is_looked_at_with_the_end_of_its_last_pod_and_not_with_each(
    count: int, looks: list[float]
) -> None:
    stage = await leaving(count)
    end = 5 + (count - 1) * STEP
    while_they_leave = sorted({round(at - START, 3) for at in looks if 5 < at - START < end + 0.001})
    assert while_they_leave == [end]
    assert dict(evictions(stage))["last"] == pytest.approx(end, abs=0.001)


async def test_a_write_to_a_pod_that_changes_nothing_that_is_read_plans_no_node(looks: list[float]) -> None:
    pod = "/api/v1/namespaces/shop/pods/web"
    async with staged("n1") as stage, stage.settled():
        await stage.create(a_pod_manifest("web", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.delete_node("n1")
        await stage.clock.sleep(5)
        planned = len(looks)
        for patch, more in (
            ({"metadata": {"annotations": {"example.com/seen": "today"}}}, 0),
            ({"metadata": {"annotations": {names.DO_NOT_DISRUPT: "4h"}}}, 1),
        ):
            await stage.call("PATCH", pod, patch, content_type=MERGE)
            await stage.clock.sleep(1)
            assert len(looks) == planned + more


@pytest.mark.parametrize(
    ("stop", "looked_at"),
    [
        # The condition is written when the node is deleted, and may be again after ten seconds.
        pytest.param(4.0, [10.0], id="its stop and its end are one look"),
        pytest.param(13.0, [10.0, 20.0], id="its end is another"),
        pytest.param(25.0, [10.0, 26.0], id="a second later when the condition may be written"),
    ],
)
async def test_a_pod_that_stops_before_others_of_its_wave_is_looked_at_when_that_can_be_reported(
    stop: float, looked_at: list[float], looks: list[float]
) -> None:
    async with staged("n1") as stage, stage.settled():
        await stage.create(a_pod_manifest("web", "n1", behaviour={"stop-seconds": f"{stop:g}", "jitter": "0"}))
        await stage.create(a_pod_manifest("other", "n1", annotations=PROTECTED))
        await delete_at_start(stage, "n1")
        await stage.clock.sleep(30)
        # Once each: that the condition is written comes back through the watch, and is no news.
        late = [round(at - START, 3) for at in looks if at > START + 3]  # the minimum time of a drain is over
        assert late == looked_at


async def test_a_pod_that_has_ended_between_two_looks_is_not_among_those_left(looks: list[float]) -> None:
    async with staged("n1") as stage, stage.settled() as controller:
        await stage.create(a_pod_manifest("web", "n1", behaviour={"stop-seconds": "4", "jitter": "0"}))
        await stage.create(a_pod_manifest("other", "n1", annotations=PROTECTED))
        await delete_at_start(stage, "n1")
        await stage.clock.sleep(3)
        looks.clear()
        await stage.clock.sleep(1.01)
        assert looks == []
        (progress,) = controller.under_way()
        assert progress.pods_left == 1


async def test_a_pod_that_comes_while_others_leave_is_looked_at_at_once(looks: list[float]) -> None:
    behaviour = {"stop-seconds": "20", "jitter": "0"}
    async with staged("n1") as stage, stage.settled():
        for name in ("web", "other"):
            await stage.create(a_pod_manifest(name, "n1", behaviour=behaviour))
        await delete_at_start(stage, "n1")
        await stage.clock.sleep(3)
        await stage.create(a_pod_manifest("late", "n1", behaviour=behaviour))
        await stage.clock.sleep(0.01)
        assert dict(evictions(stage))["late"] == 3.0
        # The wave is over with the last pod that has come to it.
        assert await stage.until_gone("n1") - START == pytest.approx(23.0, abs=0.001)
