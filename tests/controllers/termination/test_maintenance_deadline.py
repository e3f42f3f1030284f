"""A drain for maintenance with a deadline: pods leave as for the deadline of a termination, and the node stays."""

from __future__ import annotations

import pytest
from kubesim.faults import Refuse, Rule
from support.stage import Stage, a_budget_manifest, a_pod_manifest, reasons, staged, the_settings
from support.stories import (
    START,
    Way,
    a_daemon_set,
    deletions,
    each_way_back,
    evictions,
    is_at_rest,
    names_on,
    seen,
    send,
    stamp,
    staying,
    told,
    until,
)

from gracectl.controllers.termination.maintenance import request_patch
from gracectl.model import names

HOUR = 3600.0
STAYS = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"ignores-sigterm": "true"}}


async def drain_by(stage: Stage, seconds: float | None, node: str = "n1") -> None:
    """What `gracectl drain --deadline` sends."""
    await send(stage, node, request_patch(seen(stage, node), stage.clock.now(), seconds))


def deadline_on(stage: Stage, node: str = "n1") -> str | None:
    return seen(stage, node).annotations.get(names.DRAIN_DEADLINE)


async def test_pods_that_are_blocked_are_deleted_with_their_grace_before_it() -> None:
    """Protection, a spent budget, another pod's do-not-evict; a DaemonSet pod and the node stay."""
    objects = [
        a_budget_manifest("spent", minAvailable=1), a_pod_manifest("spent", "n1", terminationGracePeriodSeconds=200),
        staying("protected", 100), a_daemon_set("agent"),
    ]  # fmt: skip
    async with staged("n1", objects=objects) as stage, stage.settled() as controller:
        (daemon,) = [name for name in names_on(stage, "n1") if name.startswith("agent")]
        await until(stage, 0.0)
        await drain_by(stage, HOUR)
        await until(stage, 10.0)
        assert deadline_on(stage) == stamp(stage, HOUR)
        (announced,) = await told(stage, "n1", "TerminationGracePeriodExpiring")
        assert announced.startswith(f"drained by {stamp(stage, HOUR)} (annotation gracectl.io/drain-deadline): ")
        assert [each.deadline for each in controller.under_way()] == [stage.clock.now() + HOUR - 10.0]
        assert await stage.until(lambda: is_at_rest(stage, "n1")) == START + HOUR
        assert deletions(stage) == [("spent", HOUR - 200, 200), ("protected", HOUR - 100, 100)]
        assert evictions(stage) == []
        await until(stage, HOUR + 100)
        assert (names_on(stage, "n1"), deadline_on(stage)) == ([daemon], None)
        assert [each.deadline for each in controller.under_way()] == [None]
        assert (stage.provider.calls, stage.transport.of("delete", "nodes")) == ([], [])
        (message,) = await told(stage, "protected", "DeletedForDeadline")
        assert f"node n1 must be drained by {stamp(stage, HOUR)}" in message


async def test_a_pod_in_its_last_second_is_waited_for() -> None:
    """The node is not drained before it is gone: someone may reboot it."""
    async with staged("n1", objects=[staying("a", 0)]) as stage, stage.settled():
        await until(stage, 0.0)
        await drain_by(stage, 10.0)
        assert await stage.until(lambda: is_at_rest(stage, "n1")) == START + 11.0
        assert deletions(stage) == [("a", 10.0, 1)]


async def test_a_pod_that_arrives_after_the_drain_has_no_deadline() -> None:
    async with staged("n1") as stage, stage.settled():
        await until(stage, 0.0)
        await drain_by(stage, 60.0)
        await stage.until(lambda: is_at_rest(stage, "n1"))
        await until(stage, 100.0)
        await stage.create(staying("late"))
        await until(stage, 1000.0)
        assert names_on(stage, "n1") == ["late"]


@each_way_back
async def test_an_uncordon_ends_it(give_back: Way) -> None:
    async with staged("n1", objects=[staying("a")]) as stage, stage.settled() as controller:
        await until(stage, 0.0)
        await drain_by(stage, 600.0)
        await until(stage, 100.0)
        await give_back(stage, "n1")
        await until(stage, 1000.0)
        assert (deletions(stage), names_on(stage, "n1"), controller.under_way()) == ([], ["a"], ())
        assert [each for each in seen(stage, "n1").annotations if each.startswith("gracectl.io/")] == []
        await drain_by(stage, None)
        await until(stage, 2000.0)
        assert deletions(stage) == []


@pytest.mark.parametrize(("text", "at"), [
    pytest.param(None, None, id="removed"),
    pytest.param("2026-01-01T00:00:00Z", 100.0, id="in the past"),
    pytest.param("tomorrow", None, id="invalid"),
])  # fmt: skip
async def test_it_counts_as_the_annotation_says_now(text: str | None, at: float | None) -> None:
    async with staged("n1", objects=[staying("a")]) as stage, stage.settled():
        await until(stage, 0.0)
        await drain_by(stage, 600.0)
        await until(stage, 100.0)
        await stage.patch_node("n1", {"metadata": {"annotations": {names.DRAIN_DEADLINE: text}}})
        await until(stage, 1000.0)
        assert [(name, when) for name, when, _ in deletions(stage)] == ([] if at is None else [("a", at)])
        invalid = "InvalidTerminationTimestamp" in await reasons(stage, "n1")
        assert invalid is (text == "tomorrow")


async def test_a_second_request_may_make_it_earlier_and_never_later() -> None:
    async with staged("n1", objects=[staying("a")]) as stage, stage.settled():
        await until(stage, 0.0)
        requests = ((0.0, 600.0, 600.0), (10.0, 600.0, 600.0), (20.0, 300.0, 320.0), (30.0, None, 320.0))
        for at, seconds, expected in requests:
            await until(stage, at)
            await drain_by(stage, seconds)
            assert deadline_on(stage) == stamp(stage, expected)
        await until(stage, 1000.0)
        assert deletions(stage)[0] == ("a", 290.0, 30)


async def test_another_controller_resumes_with_the_same_instant() -> None:
    async with staged("n1", objects=[staying("a")]) as stage:
        async with stage.settled(mortal=True):
            await until(stage, 0.0)
            await drain_by(stage, 600.0)
            await until(stage, 100.0)
        await until(stage, 200.0)
        async with stage.settled():
            await until(stage, 700.0)
        assert deletions(stage)[0] == ("a", 570.0, 30)


async def test_ranges_of_priorities_share_the_time_since_the_request() -> None:
    totals = {"shutdownGracePeriod": "10m", "shutdownGracePeriodCriticalPods": "5m"}
    critical = {"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL}
    async with staged("n1", settings=the_settings(**totals)) as stage, stage.settled():
        for name, more in (("low", {}), ("high", critical)):
            await stage.create(a_pod_manifest(name, "n1", terminationGracePeriodSeconds=10, **STAYS, **more))
        await until(stage, 0.0)
        await drain_by(stage, 300.0)
        await until(stage, 400.0)
        assert [each for each in deletions(stage) if each[2] > 1] == [("low", 140.0, 10), ("high", 290.0, 10)]


async def test_pods_are_deleted_in_time_on_a_node_that_cannot_be_cordoned() -> None:
    async with staged("n1", objects=[staying("a", 200), a_pod_manifest("free", "n1")]) as stage, stage.settled():
        await until(stage, 0.0)
        await drain_by(stage, 600.0)
        stage.transport.before.add(Rule(fault=Refuse(403), method="PATCH", path="/nodes/n1$"))
        await until(stage, 599.0)
        assert evictions(stage) == []
        assert deletions(stage) == [("a", 400.0, 200), ("free", 570.0, 30)]
