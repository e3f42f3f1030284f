"""Pods that come back to the node that is drained: evicted less and less often, and reported with their workload."""

from __future__ import annotations

import pytest
from kubesim.server.api import JsonObject
from support.collector import figures
from support.stage import Stage, a_workload, staged
from support.stories import delete_at_start, deletions, draining, evictions, stamp, told, until, with_grace_period

from gracectl.model import names

BY_NAME = "its pods are bound to this node by name; change spec.nodeName"


def pinned(replicas: int) -> JsonObject:
    """A Deployment whose template names the node."""
    pod = {"nodeName": "n1", "terminationGracePeriodSeconds": 5}
    return a_workload("Deployment", "pinned", replicas, behaviour={"stop-seconds": 1}, pod=pod)


def instants(stage: Stage) -> list[float]:
    return [at for _, at in evictions(stage)]


async def test_pods_bound_by_name_are_evicted_less_and_less_often() -> None:
    async with staged("n1", "n2", objects=[pinned(1)]) as stage, draining(stage, "n1") as controller:
        await until(stage, 14.5)
        assert await told(stage, "n1", "PodsReturn", "DrainBlocked") == []
        await until(stage, 20.0)
        (message,) = await told(stage, "n1", "PodsReturn")
        assert message == (
            f"Deployment shop/pinned: its pods come back to this node after each eviction: {BY_NAME}; "
            "evicting them every 60 s at most"
        )
        await until(stage, 30.0)
        drained = stage.condition("n1", names.DRAINED)
        assert drained is not None
        assert f"shop/pinned made it after the cordon: {BY_NAME}; eviction waits until " in drained["message"]
        assert stamp(stage, 32) in drained["message"]
        assert figures(controller, "blocked_pods") == {("blocked_pods", "returned"): 1}
        await until(stage, 250.0)
        assert instants(stage) == [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 124.0, 184.0, 244.0]
        assert len(await told(stage, "n1", "PodsReturn")) == 1


async def test_a_deadline_does_not_wait_for_them() -> None:
    async with staged("n1", "n2", objects=[pinned(1)], settings=with_grace_period("40s")) as stage, stage.settled():
        await delete_at_start(stage, "n1")
        assert await stage.until_gone("n1") == pytest.approx(140.0, abs=1.0)
        assert instants(stage) == [0.0, 2.0, 4.0, 8.0, 16.0, 32.0]
        assert [(at, grace) for _, at, grace in deletions(stage)][:1] == [(35.0, 5)]


async def test_a_stateful_set_that_comes_back_elsewhere_does_not_wait() -> None:
    objects = [a_workload("StatefulSet", "db", 2, behaviour={"stop-seconds": 1})]
    async with staged("n1", "n2", "n3", objects=objects) as stage, draining(stage, "n1"):
        await stage.until_gone("n1")
        before = instants(stage)
        await until(stage, 40.0)
        assert len(stage.pods_on("n2")) + len(stage.pods_on("n3")) >= 2
        await stage.delete_node("n2")
        await stage.until_gone("n2")
        assert set(instants(stage)) - set(before) <= {40.0}
        assert await told(stage, "n2", "PodsReturn") == []
