"""Forced terminations of unhealthy nodes: refused ones, and crashes between the forced deadline and the DELETE."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import LateWatch, Partition, Rule
from support.disruption import (
    AT_ONCE,
    NOT_TERMINABLE,
    ON_LOST_NODES,
    TERMINABLE,
    deletions,
    instant_of,
    lost_at,
    refusing,
)
from support.stage import Stage, a_pod_manifest, staged, the_settings

from gracectl.config import Settings
from gracectl.model import names
from gracectl.model.times import format_time, parse_time

FORCING: Any = {"health": {"force": True, "maximumUnhealthy": "100%"}}
FORCED = the_settings(**FORCING)
PROTECTED = {names.DO_NOT_DISRUPT: "true"}


def deadline_on(stage: Stage, node: str) -> str | None:
    """As it is written."""
    annotation: str | None = (
        (stage.node(node) or {})["metadata"].get("annotations", {}).get(names.TERMINATION_TIMESTAMP)
    )
    return annotation


async def test_forced_the_deadline_is_now_and_holds_for_every_pod() -> None:
    objects = [a_pod_manifest("job", "n1", annotations=PROTECTED, tolerations=ON_LOST_NODES)]
    async with staged("n1", objects=objects, claim=ClaimSpec(), settings=FORCED) as stage, stage.settled():
        lost = await lost_at(stage, "n1")
        before = stage.transport.of("patch", "nodeclaims")
        await stage.until(lambda: "deletionTimestamp" in (stage.node("n1") or {"metadata": {}})["metadata"])
        [(at, claim)] = deletions(stage, "nodeclaims")
        assert (at, claim) == (lost + 900.0, "n1-claim")
        assert len(before) < len(stage.transport.of("patch", "nodeclaims"))
        deadline = (stage.claim(claim) or {})["metadata"]["annotations"][names.TERMINATION_TIMESTAMP]
        assert instant_of(stage, deadline) == pytest.approx(lost + 900.0)
        await stage.clock.sleep(0.5)  # the Event is written in the background
        messages = {reason: words for name, reason, words in await stage.events() if name == "n1"}
        assert messages["NodeUnhealthy"].endswith("; immediately, with all its pods (health.force)")


async def test_forced_a_deadline_in_the_past_is_kept_and_one_in_the_future_is_not() -> None:
    slow, settings = CloudSettings(terminate_delay=120.0), the_settings(**FORCING, **AT_ONCE)
    async with staged("n1", "n2", settings=settings, cloud=slow) as stage, stage.settled():
        now = stage.clock.now()
        for node, seconds in (("n1", 100), ("n2", 100_000)):
            annotation = {names.TERMINATION_TIMESTAMP: format_time(now + seconds)}
            await stage.patch_node(node, {"metadata": {"annotations": annotation}})
        await lost_at(stage, "n1")
        lost = await lost_at(stage, "n2")
        await stage.clock.sleep(lost + 910 - stage.clock.monotonic())
        kept, pulled = (node["metadata"]["annotations"][names.TERMINATION_TIMESTAMP] for node in stage.nodes())
        assert parse_time(kept) == int(now + 100)
        assert instant_of(stage, pulled) == pytest.approx(lost + 900.0)


async def test_a_forced_termination_that_is_refused_leaves_no_deadline_behind() -> None:
    """A later deletion, when the node is healthy again, must not be forced."""
    async with staged("n1", settings=FORCED) as stage, stage.settled():
        before = {names.TERMINATION_TIMESTAMP: format_time(stage.clock.now() + 100_000)}
        await stage.patch_node("n1", {"metadata": {"annotations": before}})
        async with refusing(stage, "/api/v1/nodes/n1") as asked:
            lost = await lost_at(stage, "n1")
            await stage.clock.sleep(lost + 905 - stage.clock.monotonic())
            assert asked[0] == lost + 900.0
            assert deadline_on(stage, "n1") == before[names.TERMINATION_TIMESTAMP]
            stage.cluster.kubelet.heal("n1")
            await stage.clock.sleep(600)
        assert deadline_on(stage, "n1") == before[names.TERMINATION_TIMESTAMP]


async def test_a_node_that_recovers_in_the_last_moment_is_left_as_it_was() -> None:
    async with staged("n1", settings=FORCED) as stage, stage.settled():
        lost = await lost_at(stage, "n1")
        handle, moments = stage.server.handle, iter(range(1))

        async def recovering(request: Any) -> Any:
            is_ours = request.method == "PATCH" and b"termination-timestamp" in (request.body or b"")
            if is_ours and next(moments, None) is not None:
                stage.cluster.kubelet.heal("n1")
                await stage.until(lambda: (stage.condition("n1", "Ready") or {})["status"] == "True")
            return await handle(request)

        stage.server.handle = recovering  # type: ignore[method-assign]  # the one way to be there just before
        await stage.clock.sleep(lost + 2000 - stage.clock.monotonic())
        assert next(moments, None) is None
        assert stage.node("n1") is not None
        assert deadline_on(stage, "n1") is None
        assert deletions(stage) == []


async def test_a_forced_termination_loosens_no_deadline_that_is_set_in_that_moment() -> None:
    slow = CloudSettings(terminate_delay=120.0)
    async with staged("n1", settings=FORCED, cloud=slow) as stage, stage.settled():
        lost = await lost_at(stage, "n1")
        tighter = format_time(stage.clock.now() - 1000)
        handle, storms = stage.server.handle, iter(range(1))

        async def stormy(request: Any) -> Any:
            is_ours = request.method == "PATCH" and b"termination-timestamp" in (request.body or b"")
            if is_ours and next(storms, None) is not None:
                await stage.patch_node("n1", {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: tighter}}})
            return await handle(request)

        await stage.clock.sleep(lost + 899 - stage.clock.monotonic())
        stage.server.handle = stormy  # type: ignore[method-assign]  # the one way to be there just before
        await stage.clock.sleep(5)
        assert next(storms, None) is None
        assert deadline_on(stage, "n1") == tighter
        assert deletions(stage) == [(lost + 900.0, "n1")]


async def test_a_refused_deletion_is_retried_with_backoff_and_makes_one_event() -> None:
    async with staged("n1") as stage, stage.settled() as controller:
        async with refusing(stage, "/api/v1/nodes/n1") as asked:
            before = controller.statistics().events.recorded
            await stage.patch_node("n1", TERMINABLE)
            for n in range(600):  # nothing that happens to the node hurries us
                await stage.patch_node("n1", {"metadata": {"labels": {"n": str(n)}}})
                await stage.clock.sleep(1)
            assert 12 <= len(asked) <= 25
            assert controller.statistics().events.recorded == before + 1
            assert all(later - earlier <= 60.1 for earlier, later in pairwise(asked))
        await stage.until_gone("n1")
        messages = [words for _, reason, words in await stage.events() if reason == "DisruptionRefused"]
        assert len(messages) == 1
        assert 'budget "all" would be broken' in messages[0]


async def test_a_webhook_that_says_when_to_come_back_is_obeyed() -> None:
    async with staged("n1") as stage, stage.settled():
        async with refusing(stage, "/api/v1/nodes/n1", retry_after=45) as asked:
            await stage.patch_node("n1", TERMINABLE)
            start = stage.clock.monotonic()
            await stage.clock.sleep(100)
        assert [at - start for at in asked] == pytest.approx([0.0, 45.0, 90.0], abs=0.01)
        await stage.patch_node("n1", NOT_TERMINABLE)
        await stage.clock.sleep(600)
        assert stage.node("n1") is not None


async def test_while_the_watch_is_late_no_delete_is_sent_twice() -> None:
    async with staged("n1", claim=ClaimSpec()) as stage, stage.settled():
        stage.transport.before.add(Rule(fault=LateWatch(2.0, 2.0), path="nodeclaims"))
        await stage.patch_node("n1", TERMINABLE)
        for n in range(5):
            await stage.clock.sleep(0.1)
            await stage.patch_node("n1", {"metadata": {"labels": {"n": str(n)}}})
        assert [each.status for each in stage.transport.of("delete", "nodeclaims")] == [200]


async def test_a_node_that_a_person_has_deleted_is_no_business_of_ours() -> None:
    """Its claim may be one that must not be deleted."""
    objects = [a_pod_manifest("job", "n1", annotations=PROTECTED)]
    async with staged("n1", objects=objects, claim=ClaimSpec()) as stage, stage.settled():
        async with refusing(stage, "/apis/karpenter.sh/v1/nodeclaims/n1-claim"):
            await stage.delete_node("n1")
            await stage.patch_node("n1", TERMINABLE)
            await stage.clock.sleep(100)
        reasons = {reason for _, reason, _ in await stage.events()}
        assert not reasons & {"DisruptionRefused", "DisruptionHeld", "NodeTerminable"}


FORCED = the_settings(health={"force": True, "maximumUnhealthy": "100%"})
LATER = 1_000_000.0


async def pulled_and_killed(stage: Stage, what: str) -> None:
    """A controller that has written the deadline and dies before its DELETE is heard; then the node is well again."""
    async with stage.settled(mortal=True):
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
    async with staged("n1", claim=ClaimSpec() if claimed else None, settings=FORCED) as stage:
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


async def test_a_node_that_is_unhealthy_after_a_crash_is_still_terminated_by_force() -> None:
    async with staged("n1", settings=FORCED) as stage:
        async with stage.settled(mortal=True):
            stage.transport.before.add(rule := Rule(fault=Partition(), method="DELETE", path="nodes"))
            lost = await lost_at(stage, "n1")
            await stage.clock.sleep(lost + 902 - stage.clock.monotonic())
        stage.transport.before.remove(rule)
        async with stage.controller():
            await stage.until_gone("n1")
