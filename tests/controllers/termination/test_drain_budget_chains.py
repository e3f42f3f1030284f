"""Pods under one budget, over several nodes: how many requests each of them takes, and how long the chain."""

from __future__ import annotations

from itertools import pairwise

import pytest
from kubesim.faults import Latency, Rule
from support.inprocess import Stutter
from support.stage import Stage, a_budget_manifest, a_workload, staged

READY_SECONDS, STOP_SECONDS = 0.3, 0.5


async def drain(stage: Stage, replicas: int, max_unavailable: int = 1) -> tuple[int, int, float]:
    """Delete n1, n2, n3 at once; returns pods that had to leave, evictions asked for, seconds from first to last."""
    behaviour = {"ready-seconds": READY_SECONDS, "stop-seconds": STOP_SECONDS}
    await stage.create(
        a_workload("Deployment", "web", replicas, behaviour=behaviour),
        a_budget_manifest("web", maxUnavailable=max_unavailable),
    )
    await stage.add_nodes("n4", pods=500)
    async with stage.settled():
        await stage.clock.sleep(5)
        deleted = ("n1", "n2", "n3")
        leaving = sum(len(stage.pods_on(name)) for name in deleted)
        for name in deleted:
            await stage.delete_node(name)
        await stage.until_gone(*deleted)
    agreed = [each.instant for each in stage.evictions if each.status == 201]
    assert set(stage.agreed().values()) == {1}
    assert len(agreed) == leaving
    return leaving, len(stage.evictions), agreed[-1] - agreed[0]


@pytest.mark.parametrize("replicas", [9, 30])
async def test_one_request_per_pod_at_the_pace_of_the_replacements(replicas: int) -> None:
    async with staged("n1", "n2", "n3") as stage:
        pods, requests, seconds = await drain(stage, replicas)
        assert (pods, requests) == (replicas, replicas)
        assert seconds == pytest.approx((replicas - 1) * READY_SECONDS, rel=0.001)
        gaps = [later.instant - earlier.instant for earlier, later in pairwise(stage.evictions)]
        assert gaps == pytest.approx([READY_SECONDS] * (replicas - 1), abs=0.001)


async def test_several_disruptions_are_used_at_once() -> None:
    async with staged("n1", "n2", "n3") as stage:
        pods, requests, seconds = await drain(stage, 12, max_unavailable=3)
        assert (pods, requests) == (12, 12)
        assert seconds == pytest.approx(3 * READY_SECONDS, rel=0.001)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lag", [0.05, 0.5])
async def test_watches_out_of_step_cost_few_requests(lag: float, seed: int) -> None:
    async with staged("n1", "n2", "n3", seed=seed) as stage:
        stage.transport.stutter = Stutter(0.3, lag)
        stage.transport.behind.add(Rule(fault=Latency(0.0, lag), path="eviction"))
        pods, requests, _ = await drain(stage, 15)
        assert requests <= pods * 1.1
