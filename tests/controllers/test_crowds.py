"""Nodes with many pods: how often a node is planned while they leave."""

from __future__ import annotations

import anyio
import pytest
from kubesim.controllers.client import MERGE
from support.deadlines import START, delete_at_start, evictions
from support.stage import Stage, a_pod_manifest, staged

from gracectl.controllers.node.controller import COALESCE_SECONDS, MANY_PODS, STOPPING_SECONDS
from gracectl.model import names
from gracectl.policy.plan import NodeView, Plan, plan

pytestmark = pytest.mark.anyio

STEP = 0.01
"""Seconds between the ends of two pods."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a node was planned (monotonic)."""
    found: list[float] = []

    def counted(view: NodeView, now: float) -> Plan:
        found.append(anyio.current_time())
        return plan(view, now)

    monkeypatch.setattr("gracectl.controllers.node.drain.plan", counted)
    return found


async def leaving(count: int) -> Stage:
    """So many pods stop one after another, and a critical one when they are gone."""
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        for number in range(count):
            behaviour = {"stop-seconds": f"{5 + number * STEP:g}", "jitter": "0"}
            await stage.create(a_pod_manifest(f"web-{number}", "n1", behaviour=behaviour))
        await stage.create(a_pod_manifest("last", "n1", priorityClassName=names.SYSTEM_CLUSTER_CRITICAL))
        await delete_at_start(stage, "n1")
        await stage.until_gone("n1")
        return stage


async def test_a_node_is_not_planned_anew_for_each_of_many_pods_that_leave(looks: list[float]) -> None:
    stage = await leaving(100)
    crowded = 5 + (100 - MANY_PODS) * STEP
    while_many_left = [at for at in looks if 5 < at - START < crowded]
    assert len(while_many_left) <= (crowded - 5) / COALESCE_SECONDS + 2
    # No pod waits for the calm once there are few; the next wave begins with the end of the one before.
    assert dict(evictions(stage))["last"] == pytest.approx(5 + 99 * STEP, abs=0.001)


async def test_each_of_a_few_pods_that_leave_is_looked_at_in_that_instant(looks: list[float]) -> None:
    await leaving(5)
    gone = [START + 5 + number * STEP for number in range(5)]
    assert all(any(look == pytest.approx(at, abs=0.001) for look in looks) for at in gone)


async def test_a_write_to_a_pod_that_changes_nothing_that_is_read_plans_no_node(looks: list[float]) -> None:
    pod = "/api/v1/namespaces/shop/pods/web"
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
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


@pytest.mark.parametrize(("seconds", "looked_at"), [(0.5, {0.5}), (5, {STOPPING_SECONDS, 5})])
async def test_a_pod_that_begins_to_stop_is_planned_with_its_end_or_after_a_second(
    seconds: float, looked_at: set[float], looks: list[float]
) -> None:
    behaviour = {"stop-seconds": f"{seconds:g}", "jitter": "0"}
    protected = {names.DO_NOT_DISRUPT: "true"}
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        for name in ("web", "other"):
            await stage.create(a_pod_manifest(name, "n1", annotations=protected, behaviour=behaviour))
        await stage.delete_node("n1")
        await stage.clock.sleep(5)
        looks.clear()
        start = anyio.current_time()
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/web")
        await stage.clock.sleep(seconds + STOPPING_SECONDS)
        # Once more when the condition has been written.
        assert {round(at - start, 3) for at in looks} == looked_at
