"""Pods leave in waves: which, when the next one begins, and what a deadline reserves for the last ones."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.paths import PRIORITY_CLASSES
from support.stage import STOPS_AFTER_5, Stage, a_pod_manifest, staged, the_settings
from support.stories import delete_at_start, deletions, draining, evictions, stamp, told, until, with_grace_period

from gracectl.config import Settings
from gracectl.model import names

KEP = [
    {"priority": 100_000, "shutdownGracePeriodSeconds": 300},
    {"priority": 10_000, "shutdownGracePeriodSeconds": 180},
    {"priority": 1_000, "shutdownGracePeriodSeconds": 120},
    {"priority": 0, "shutdownGracePeriodSeconds": 60},
]
KEPT: dict[str, Any] = {"annotations": {names.DO_NOT_DISRUPT: "true"}}


def ranged(**more: Any) -> Settings:
    return the_settings(shutdownGracePeriodByPodPriority=KEP, **more)


CLASSES = (-5, 1, 5, 999, 1_000, 10_000, 100_000)


async def create_classes(stage: Stage) -> None:
    """A pod has the priority of its class, as on any server."""
    for value in CLASSES:
        metadata = {"name": f"class{value}".replace("-", "-minus-")}
        await stage.call("POST", PRIORITY_CLASSES, {"metadata": metadata, "value": value})


def prioritised(name: str, priority: int, node: str = "n1", **more: Any) -> dict[str, Any]:
    """A pod that stops after five seconds, unless told otherwise."""
    by_class: dict[int, dict[str, str]] = {0: {}, 2_000_000_000: {"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL}}
    own = {"priorityClassName": f"class{priority}".replace("-", "-minus-")}
    return a_pod_manifest(name, node, **{**STOPS_AFTER_5, **by_class.get(priority, own), **more})


async def seen_leaving(stage: Stage, settings_of: str = "n1") -> list[tuple[str, float]]:
    async with draining(stage, settings_of):
        await stage.until_gone(settings_of)
    return evictions(stage)


async def test_ranges_leave_one_after_the_other_the_lowest_first_and_empty_ones_take_no_time() -> None:
    async with staged("n1", settings=ranged()) as stage:
        await create_classes(stage)
        await stage.create(
            prioritised("d", 2_000_000_000), prioritised("a", -5), prioritised("b", 999), prioritised("c", 1_000)
        )
        assert await seen_leaving(stage) == [("a", 0.0), ("b", 0.0), ("c", 5.0), ("d", 10.0)]


async def test_a_range_begins_when_the_last_pod_of_the_one_before_is_gone() -> None:
    async with staged("n1", settings=ranged()) as stage:
        await create_classes(stage)
        slow: dict[str, Any] = {"behaviour": {"stop-seconds": 20}}
        await stage.create(prioritised("quick", 0), prioritised("slow", 1, **slow), prioritised("last", 1_000))
        assert await seen_leaving(stage) == [("quick", 0.0), ("slow", 0.0), ("last", 20.0)]


async def test_the_two_totals_are_two_ranges() -> None:
    settings = the_settings(shutdownGracePeriod="5m", shutdownGracePeriodCriticalPods="2m")
    async with staged("n1", settings=settings) as stage:
        await create_classes(stage)
        await stage.create(prioritised("critical", 2_000_000_000), prioritised("plain", 0))
        assert await seen_leaving(stage) == [("plain", 0.0), ("critical", 5.0)]


async def test_a_pod_that_comes_late_to_an_earlier_range_goes_before_the_later_ones() -> None:
    """Two high pods under one budget leave one by one; while the second waits, a low pod appears on the node."""
    async with staged("n1", settings=ranged()) as stage, stage.controller() as controller:
        await create_classes(stage)
        await stage.settle(controller)
        await stage.create(prioritised("low", 0), prioritised("high", 100_000, **KEPT))
        await delete_at_start(stage, "n1")
        await until(stage, 10.0)
        await stage.create(prioritised("late", 5))
        unprotected = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}}
        path = "/api/v1/namespaces/shop/pods/high"
        await stage.call("PATCH", path, unprotected, "application/merge-patch+json")
        await stage.until_gone("n1")
    [(first, at), (second, next_at), (third, last_at)] = evictions(stage)
    assert (first, second, third) == ("low", "late", "high")
    assert at == 0.0
    assert last_at == pytest.approx(next_at + 5.0, abs=0.01)


async def test_each_range_has_its_own_deadline_before_that_of_the_node() -> None:
    """No pod terminates by itself: each is deleted its grace before the deadline of its range, to the second."""
    settings = with_grace_period("30m", shutdownGracePeriodByPodPriority=KEP)
    async with staged("n1", settings=settings) as stage:
        await create_classes(stage)
        for priority in (0, 1_000, 10_000, 100_000):
            await stage.create(
                prioritised(f"p{priority}", priority, terminationGracePeriodSeconds=40, **KEPT),
            )
        assert await seen_leaving(stage) == []
        assert deletions(stage) == [
            ("p0", 1800.0 - 600 - 40, 40),
            ("p1000", 1800.0 - 480 - 40, 40),
            ("p10000", 1800.0 - 300 - 40, 40),
            ("p100000", 1800.0 - 40, 40),
        ]
        [words] = await told(stage, "p1000", "DeletedForDeadline")
        assert words == (
            "deleted by gracectl with its whole grace (40 s): node n1 is being terminated, and must be gone by "
            f"{stamp(stage, 1800.0 - 480)} (the pods of priority 1000 to 9999 must be gone by then: those of a "
            f"higher priority have until {stamp(stage, 1800.0)}), regardless of budgets and protection"
        )
        [words] = await told(stage, "p100000", "DeletedForDeadline")
        assert words.endswith(f": node n1 must be gone by {stamp(stage, 1800.0)}, regardless of budgets and protection")


async def test_a_range_whose_pods_hang_holds_the_next_one_until_its_own_deadline_only() -> None:
    settings = with_grace_period("15m", shutdownGracePeriodByPodPriority=KEP)
    async with staged("n1", settings=settings) as stage:
        await create_classes(stage)
        hanging: dict[str, Any] = {"behaviour": {"stop-seconds": 100_000}}
        await stage.create(
            prioritised("low", 0, terminationGracePeriodSeconds=3_000, **hanging), prioritised("high", 100_000)
        )
        assert await seen_leaving(stage) == [("high", 600.0)]
        # With 600 s at once, as it asks for more than there is; then it is killed, and the node ends long before D.
        assert deletions(stage)[0] == ("low", 0.0, 600)


async def test_too_little_time_for_all_ranges_is_shared_in_proportion() -> None:
    settings = with_grace_period("330s", shutdownGracePeriodByPodPriority=KEP)
    async with staged("n1", settings=settings) as stage:
        await create_classes(stage)
        for priority in (0, 1_000, 10_000, 100_000):
            await stage.create(prioritised(f"p{priority}", priority, terminationGracePeriodSeconds=10, **KEPT))
        assert await seen_leaving(stage) == []
        assert deletions(stage) == [
            ("p0", 20.0, 10),
            ("p1000", 80.0, 10),
            ("p10000", 170.0, 10),
            ("p100000", 320.0, 10),
        ]


async def test_nodes_have_the_waves_of_the_first_group_that_matches_them() -> None:
    groups = [
        {"selector": {"matchLabels": {"pool": "plain"}}, "shutdownGracePeriodByPodPriority": []},
        {"selector": {}, "terminationGracePeriod": "1h"},
    ]
    async with staged(settings=ranged(nodeGroups=groups)) as stage:
        await create_classes(stage)
        await stage.add_nodes("n1", labels={"pool": "plain"})
        await stage.add_nodes("n2")
        for node in ("n1", "n2"):
            await stage.create(prioritised(f"low-{node}", 0, node), prioritised(f"high-{node}", 1_000, node))
        async with draining(stage, "n1", "n2"):
            await stage.until_gone("n1", "n2")
        assert sorted(evictions(stage)) == [("high-n1", 0.0), ("high-n2", 5.0), ("low-n1", 0.0), ("low-n2", 0.0)]
