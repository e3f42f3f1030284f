"""A pod that has just lost its budget is not evicted without it before the change has settled."""

from __future__ import annotations

import pytest
from support.stage import Stage, a_budget_manifest, a_pod_manifest, staged, the_settings
from support.stories import delete_at_start, draining, evictions, stamp, until

from gracectl.model import names

MERGE = "application/merge-patch+json"
BUDGETS = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets"
PODS = "/api/v1/namespaces/shop/pods"


async def a_primary(stage: Stage) -> None:
    """Two pods of a set, on n1, of which one is the primary, under a budget that lets none go."""
    for name, role in (("db-0", "primary"), ("db-1", "replica")):
        pod = a_pod_manifest(name, "n1", labels={"app": role}, behaviour={"stop-seconds": 1})
        await stage.create(pod)
    await stage.create(a_budget_manifest("primary", maxUnavailable=0))


async def relabel(stage: Stage, pod: str, role: str) -> None:
    await stage.call("PATCH", f"{PODS}/{pod}", {"metadata": {"labels": {"app": role}}}, MERGE)


async def select(stage: Stage, role: str) -> None:
    selector = {"matchLabels": {"app": role}}
    await stage.call("PATCH", f"{BUDGETS}/primary", {"spec": {"selector": selector}}, MERGE)


@pytest.mark.parametrize("before", [0.0, 20.0], ids=["on a draining node", "before the drain"])
@pytest.mark.parametrize("by", ["labels", "selector"])
async def test_a_failover_does_not_set_the_old_primary_free(by: str, before: float) -> None:
    async with staged("n1", "n2") as stage:
        await a_primary(stage)
        async with stage.settled():
            change = relabel(stage, "db-0", "standby") if by == "labels" else select(stage, "nothing")
            if before:
                await until(stage, -before)
                await change
                await delete_at_start(stage, "n1")
            else:
                await delete_at_start(stage, "n1")
                await until(stage, 10.0)
                await change
            lost = -before if before else 10.0
            await until(stage, 30.0)
            assert evictions(stage) == [("db-1", 0.0)]
            drained = stage.condition("n1", names.DRAINED)
            assert drained is not None
            assert drained["reason"] == "BudgetSettling"
            assert drained["message"] == (
                f"1 pod left: shop/db-0 (budget shop/primary selected it until {stamp(stage, lost)}; "
                f"eviction waits until {stamp(stage, lost + 60)})"
            )
            await until(stage, 80.0)
            assert evictions(stage) == [("db-1", 0.0), ("db-0", lost + 60)]


async def test_a_new_primary_that_comes_under_the_budget_obeys_it() -> None:
    async with staged("n1", "n2") as stage:
        await a_primary(stage)
        async with stage.settled():
            await until(stage, -10.0)
            await relabel(stage, "db-0", "replica")
            await relabel(stage, "db-1", "primary")
            await delete_at_start(stage, "n1")
            await until(stage, 100.0)
            assert evictions(stage) == [("db-0", 50.0)]


@pytest.mark.parametrize(("seconds", "at"), [(5, 5.0), (0, 0.0)])
async def test_the_time_is_a_setting(seconds: int, at: float) -> None:
    settings = the_settings(eviction={"settleSeconds": seconds})
    async with staged("n1", "n2", settings=settings) as stage:
        await a_primary(stage)
        async with draining(stage, "n1"):
            await relabel(stage, "db-0", "standby")
            await until(stage, 10.0)
            assert sorted(evictions(stage)) == [("db-0", at), ("db-1", 0.0)]


async def test_a_deleted_budget_frees_its_pods_and_a_new_pod_was_under_none() -> None:
    async with staged("n1", "n2") as stage:
        await a_primary(stage)
        async with draining(stage, "n1"):
            await until(stage, 10.0)
            await stage.create(a_pod_manifest("new", "n1", labels={"app": "standby"}))
            await stage.call("DELETE", f"{BUDGETS}/primary")
            await until(stage, 20.0)
            assert sorted(evictions(stage)) == [("db-0", 10.0), ("db-1", 0.0), ("new", 10.0)]
