"""The condition DisruptionTarget, before a deletion that is no eviction; no deletion waits for it."""

from __future__ import annotations

import logging

import pytest
from support.eviction import NAMESPACE, REFUSED, deleting

from gracectl.controllers.termination.events import disruption_target
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.model.times import format_time


async def test_a_pod_is_marked_two_seconds_before_its_deletion_once_and_under_its_uid() -> None:
    async with deleting() as stage:
        await stage.add(web=30, slow=600)
        stage.set_pods(900)
        await stage.until(297.9)
        assert stage.wire.patched == []
        await stage.until(1000)
        assert [(at, name) for at, name, _ in stage.wire.patched] == [(298, "slow"), (868, "web")]
        (at, _, body), _ = stage.wire.patched
        pod = stage.pods.get(NAMESPACE, "slow")
        assert pod is not None
        assert body == {
            "metadata": {"uid": pod.uid},
            "status": {
                "conditions": [
                    {
                        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByGracectl",
                        "message": f"deleted by gracectl: node n1 must be gone by {format_time(stage.start + 900)}",
                        "lastTransitionTime": format_time(stage.start + at),
                    },
                ],
            },
        }  # fmt: skip
        assert stage.asked[:2] == [(300, "slow", 600), (870, "web", 30)]


@pytest.mark.parametrize("deadline", [30.0, 31.0, 2.0], ids=["now", "in a second", "late"])
async def test_with_less_time_both_are_sent_together(deadline: float) -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.set_pods(deadline)
        await stage.until(1)
        assert [at for at, _, _ in stage.wire.patched] == [0.0]
        assert stage.asked == [(max(deadline - 30.0, 0.0), "web", min(deadline, 30))]


async def test_no_deletion_waits_for_patches_that_hang() -> None:
    async with deleting(max_in_flight=2) as stage:
        stage.wire.patch_seconds = 4.0
        await stage.add(**{f"web-{n}": 30 for n in range(40)})
        stage.set_pods(100)
        stage.set_pods(101, "web-0", node="n2")  # of another node, whose condition waits behind those
        await stage.until(75)
        assert {at for at, _, _ in stage.asked} == {70.0, 71.0}
        # Two more each second, until six of eight slots hang.
        assert [at for at, _, _ in stage.wire.patched] == [at for at in (68, 69, 70, 72, 73, 74) for _ in range(2)]


async def test_a_failure_is_in_the_log_once_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async with deleting() as stage:
        stage.wire.patch_refusal = REFUSED
        await stage.add(a=30, b=30)
        stage.set_pods(100)
        await stage.until(80)
        assert [name for _, name, _ in stage.wire.patched] == ["a", "b"]
        (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert record.message.startswith(f"pod {NAMESPACE}/a: condition DisruptionTarget not set: ")
        assert sorted(stage.asked) == [(70, "a", 30), (70, "b", 30)]


async def test_pods_that_terminate_or_may_stay_are_not_marked() -> None:
    async with deleting() as stage:
        await stage.add(evicted=600, stays=30, moves=30)
        stage.set_pods(700)
        await stage.until(50)
        await stage.delete("evicted")
        stage.set_pods(700, "evicted", "moves")
        await stage.until(665)
        assert stage.wire.patched == []
        stage.set_pods(800, "evicted", "moves")
        await stage.until(700)
        assert stage.wire.patched == []
        await stage.until(770)
        assert [(at, name) for at, name, _ in stage.wire.patched] == [(768, "moves")]


async def test_a_deletion_that_is_repeated_marks_no_pod_again() -> None:
    async with deleting() as stage:
        stage.wire.down = REFUSED
        await stage.add(web=30)
        stage.set_pods(100)
        await stage.until(99)
        assert len(stage.asked) > 3
        assert [at for at, _, _ in stage.wire.patched] == [68]


def test_the_message_says_what_the_earlier_end_is_for() -> None:
    pod = ScheduledDeletion("shop", "web", "u", "n1", 1_767_225_600.0, "daemons have until 2026-01-01T00:01:00Z")
    assert disruption_target(pod).message == (
        "deleted by gracectl: node n1 is being terminated, and must be gone by 2026-01-01T00:00:00Z "
        "(daemons have until 2026-01-01T00:01:00Z)"
    )
