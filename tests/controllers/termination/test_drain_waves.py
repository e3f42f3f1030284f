"""Pods leave in waves: which, when the next one begins, and what a deadline reserves for the last ones."""

from __future__ import annotations

from typing import Any

from kubesim.controllers.paths import PRIORITY_CLASSES
from support.stage import STOPS_AFTER_5, Stage, a_pod_manifest, staged, the_settings
from support.stories import deletions, draining, evictions, stamp, told, with_grace_period

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
