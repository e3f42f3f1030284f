"""The deadline is kept whatever the API server, its webhooks or other writers do: to the instant."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Fault, Latency, Partition, Refuse, Rule
from support.stage import a_pod_manifest, instants, staged, the_settings
from support.stories import (
    CROWD,
    START,
    asked_to_end,
    delete_at_start,
    deletions,
    draining,
    evictions,
    few_workers,
    stamp,
    staying,
    until,
    with_grace_period,
    written_on,
)

from gracectl.cloud.provider import ProviderUnavailable
from gracectl.model import names

QUARTER = with_grace_period("15m")
SLOW_CLOUD = CloudSettings(terminate_delay=60.0)
LAST_WORD = 1.0
"""The seconds that a server which does not answer may cost at the deadline."""

SILENCE, FAILURE, BUSY, FORBIDDEN = Partition(), Refuse(500), Refuse(429, retry_after=20), Refuse(403)


# -- nothing is answered -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [SILENCE, FAILURE, BUSY], ids=["silent", "failing", "busy"])
@pytest.mark.parametrize("since", [1.0, 300.0, 890.0, 899.9])
async def test_the_instance_is_asked_to_end_at_the_deadline_though_the_server_does_not_answer(
    fault: Fault, since: float
) -> None:
    objects = [staying("a", 600), staying("b", 5)]
    async with staged("n1", objects=objects, settings=QUARTER, cloud=SLOW_CLOUD) as stage, draining(stage, "n1"):
        await until(stage, since)
        stage.transport.before.add(rule := Rule(fault=fault, path="^/api"))
        await until(stage, 905.0)
        (asked,) = asked_to_end(stage)
        assert 900.0 <= asked <= 900.0 + LAST_WORD
        stage.transport.before.remove(rule)
        await stage.until_gone("n1")


@pytest.mark.parametrize("seconds", [10.0, 900.0])
async def test_a_server_that_hangs_from_the_deletion_on_is_not_waited_for(seconds: float) -> None:
    """The watch still shows the deletion, but no write is ever answered."""
    async with staged("n1", settings=with_grace_period(f"{seconds:g}s"), cloud=SLOW_CLOUD) as stage:
        await stage.create(staying("a"))
        async with stage.settled():
            await until(stage, -1.0)
            stage.transport.before.add(rule := Rule(fault=SILENCE, method="PATCH|POST|DELETE"))
            await delete_at_start(stage, "n1")
            await until(stage, seconds + 5.0)
            (asked,) = asked_to_end(stage)
            assert seconds <= asked <= seconds + LAST_WORD
            stage.transport.before.remove(rule)
            await stage.until_gone("n1")
            assert stage.instance_state("n1") == "terminated"


async def test_those_without_a_deadline_that_hang_take_no_place_of_those_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More nodes hang on a silent server than there are workers, each for as long as requests may last."""
    few_workers(monkeypatch)
    settings = the_settings(
        nodeGroups=[{"selector": {"matchLabels": {"bounded": "yes"}}, "terminationGracePeriod": "10s"}],
    )
    async with staged(*CROWD, settings=settings, cloud=SLOW_CLOUD) as stage:
        await stage.add_nodes("late", labels={"bounded": "yes"})
        async with stage.settled():
            await until(stage, -1.0)
            stage.transport.before.add(rule := Rule(fault=SILENCE, method="PATCH|POST|DELETE"))
            await delete_at_start(stage, *CROWD, "late")
            await until(stage, 15.0)
            (asked,) = asked_to_end(stage)
            # It is looked at for the first time: the deadline itself has to be written as well.
            assert 10.0 <= asked <= 10.0 + 2 * LAST_WORD
            stage.transport.before.remove(rule)
            await stage.until_gone(*CROWD, "late")


async def test_the_last_deletions_are_answered_before_the_instance_is_asked_to_end() -> None:
    objects = [staying("a", 0), staying("b", 0)]
    async with staged("n1", objects=objects, settings=QUARTER, cloud=SLOW_CLOUD) as stage, draining(stage, "n1"):
        stage.transport.before.add(Rule(fault=Latency(0.4, 0.4), method="DELETE", path="/pods/"))
        await until(stage, 905.0)
        assert deletions(stage) == [("a", 900.4, 1), ("b", 900.4, 1)]
        assert asked_to_end(stage) == [900.4]
        await stage.until_gone("n1")


@pytest.mark.parametrize("kind", ["nodes", "nodeclaims"])
async def test_a_connection_that_is_refused_costs_no_second_at_the_deadline(kind: str) -> None:
    claim = ClaimSpec(termination_grace_period="15m") if kind == "nodeclaims" else None
    async with staged("n1", claim=claim, settings=QUARTER, cloud=SLOW_CLOUD) as stage:
        await stage.create(staying("a", 600))
        async with draining(stage, "n1"):
            await until(stage, 890.0)
            stage.transport.is_listening = False
            await until(stage, 905.0)
            assert asked_to_end(stage) == [900.0]
            stage.transport.is_listening = True
            await stage.until_gone("n1")


async def test_a_server_that_comes_back_late_finds_what_is_overdue() -> None:
    """Away from before a pod's instant until after it: it is deleted with what is left, and only once."""
    async with staged("n1", objects=[staying("a", 300)], settings=QUARTER) as stage, draining(stage, "n1"):
        await until(stage, 590.0)
        stage.transport.is_listening = False
        await until(stage, 650.0)
        stage.transport.is_listening = True
        assert await stage.until_gone("n1") == pytest.approx(START + 900, abs=1.0)
        first, *others = deletions(stage)
        assert 650.0 <= first[1] <= 665.0
        assert first[2] == pytest.approx(900 - first[1], abs=1.0)
        assert [each for each in others if each[1] < 900.0] == []


# -- something is not answered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [SILENCE, FAILURE, FORBIDDEN], ids=["silent", "failing", "forbidden"])
async def test_a_node_that_cannot_be_cordoned_ends_in_time_and_its_pods_have_their_grace(fault: Fault) -> None:
    objects = [staying("a", 600), staying("slow", 3600), a_pod_manifest("free", "n1")]
    async with staged("n1", objects=objects, settings=QUARTER, cloud=SLOW_CLOUD) as stage, stage.settled():
        stage.transport.before.add(rule := Rule(fault=fault, method="PATCH", path="/nodes/n1$"))
        await delete_at_start(stage, "n1")
        await until(stage, 905.0)
        # Before the cordon no pod is evicted: its replacement might be scheduled here.
        assert evictions(stage) == []
        assert [each for each in deletions(stage) if each[1] < 899.0] == [
            ("slow", 5.0, 895),
            ("a", 300.0, 600),
            ("free", 870.0, 30),
        ]
        (asked,) = asked_to_end(stage)
        assert 900.0 <= asked <= 900.0 + LAST_WORD
        stage.transport.before.remove(rule)
        await stage.until_gone("n1")


@pytest.mark.parametrize("fault", [SILENCE, FAILURE, FORBIDDEN], ids=["silent", "failing", "forbidden"])
async def test_a_node_that_cannot_be_cordoned_ends_in_time_though_nothing_happens_on_it(fault: Fault) -> None:
    """No event wakes any waiter, and a step that has failed before may back off for 10 s."""
    settings = with_grace_period("903s", drain={"minimumSeconds": 3600})
    objects = [a_pod_manifest("elsewhere", "n2")]
    async with staged("n1", "n2", objects=objects, settings=settings, cloud=SLOW_CLOUD) as stage, stage.settled():
        stage.transport.before.add(rule := Rule(fault=fault, method="PATCH", path="/nodes/n1$"))
        await delete_at_start(stage, "n1")
        await until(stage, 910.0)
        (asked,) = asked_to_end(stage)
        assert 903.0 <= asked <= 903.0 + LAST_WORD
        stage.transport.before.remove(rule)
        await stage.until_gone("n1")


async def test_a_node_that_can_be_cordoned_in_the_end_is_drained_as_ever() -> None:
    objects = [staying("a", 600), a_pod_manifest("free", "n1")]
    async with staged("n1", objects=objects, settings=QUARTER) as stage, stage.settled():
        stage.transport.before.add(rule := Rule(fault=FAILURE, method="PATCH", path="/nodes/n1$"))
        await delete_at_start(stage, "n1")
        await until(stage, 100.0)
        stage.transport.before.remove(rule)
        assert await stage.until_gone("n1") == START + 900
        ((name, instant),) = evictions(stage)
        assert name == "free"
        assert 100.0 <= instant <= 115.0
        assert deletions(stage)[0] == ("a", 300.0, 600)


@pytest.mark.parametrize("fault", [SILENCE, FAILURE, FORBIDDEN], ids=["silent", "failing", "forbidden"])
async def test_a_claim_that_cannot_be_written_holds_nothing_up(fault: Fault) -> None:
    """Its deletion does not succeed either, so the node's own counts."""
    async with staged("n1", claim=ClaimSpec(termination_grace_period="15m"), cloud=SLOW_CLOUD) as stage:
        await stage.create(staying("a", 600))
        async with stage.settled():
            stage.transport.before.add(rule := Rule(fault=fault, method="PATCH|DELETE", path="nodeclaims"))
            await delete_at_start(stage, "n1")
            await until(stage, 905.0)
            assert written_on(stage.node("n1")) == stamp(stage, 900.0)
            assert written_on(stage.claim("n1-claim")) == ""
            assert deletions(stage)[0] == ("a", 300.0, 600)
            (asked,) = asked_to_end(stage)
            assert 900.0 <= asked <= 900.0 + LAST_WORD
            stage.transport.before.remove(rule)
            await stage.until_gone("n1")


async def test_pods_that_cannot_be_deleted_hold_the_instance_up_by_no_more_than_a_second() -> None:
    async with staged("n1", objects=[staying("a", 30)], settings=QUARTER, cloud=SLOW_CLOUD) as stage, stage.settled():
        await delete_at_start(stage, "n1")
        stage.transport.before.add(Rule(fault=SILENCE, method="DELETE", path="/pods/"))
        await until(stage, 920.0)
        (asked,) = asked_to_end(stage)
        assert 900.0 <= asked <= 900.0 + LAST_WORD
        drained = stage.condition("n1", names.DRAINED)
        assert drained is not None
        assert drained["reason"] == "DeadlinePassed"
        assert drained["message"].endswith("has passed with 1 pod left: shop/a (running)")
        stage.transport.before.clear()
        await stage.until_gone("n1")


async def test_a_slow_server_delays_neither_deletions_nor_the_end() -> None:
    """Every request takes 2 s, so that conditions are written all the time."""
    async with staged("n1", objects=[staying("a", 600), staying("b", 299)], settings=QUARTER) as stage, stage.settled():
        await delete_at_start(stage, "n1")
        await until(stage, 10.0)
        stage.transport.before.add(Rule(fault=Latency(2.0, 2.0), method="PATCH|POST|DELETE"))
        await stage.until_gone("n1")
        # What has come so late is told to be quicker by just that.
        assert [each for each in deletions(stage) if each[1] < 900.0] == [
            ("a", 302.0, 600),
            ("a", 304.0, 598),
            ("b", 603.0, 299),
            ("b", 605.0, 297),
        ]
        (asked,) = asked_to_end(stage)
        assert 900.0 <= asked <= 900.0 + LAST_WORD


@pytest.mark.parametrize("since", [-1.0, 890.0])
async def test_a_provider_that_fails_at_the_deadline_is_asked_again_though_the_server_is_away(since: float) -> None:
    settings = with_grace_period("15m", instance={"retryMaximumSeconds": 20})
    async with staged("n1", objects=[staying("a", 600)], settings=settings) as stage, stage.settled():
        if since < 0:
            await until(stage, since)
            stage.transport.before.add(rule := Rule(fault=SILENCE, method="PATCH|POST|DELETE"))
            await delete_at_start(stage, "n1")
        else:
            await delete_at_start(stage, "n1")
            await until(stage, since)
            stage.transport.before.add(rule := Rule(fault=SILENCE, path="^/api"))
        stage.provider.moods.extend([ProviderUnavailable("try again")] * 100)
        await until(stage, 1100.0)
        calls = [instant - START for instant in stage.provider.instants_of("terminate")]
        assert len(calls) > 5
        # At most its own backoff and, one after the other, the patience of what comes before it.
        assert all(later - earlier <= 20.0 + 5 * 5.0 for earlier, later in pairwise(calls))
        stage.transport.before.remove(rule)
        stage.provider.moods.clear()
        await stage.until_gone("n1")


async def test_a_conflict_storm_at_the_deadline_is_not_waited_out() -> None:
    async with staged("n1", settings=with_grace_period("0s"), cloud=SLOW_CLOUD) as stage:
        await stage.create(staying("a", 600))
        async with stage.settled():
            handle = stage.server.handle

            async def stormy(request: Any) -> Any:
                if request.method == "PATCH" and request.path.endswith("nodes/n1") and isinstance(request.body, bytes):
                    await stage.patch_node("n1", {"metadata": {"labels": {"storm": str(stage.clock.monotonic())}}})
                return await handle(request)

            stage.server.handle = stormy  # type: ignore[method-assign]  # the one way to be there just before
            await delete_at_start(stage, "n1")
            await until(stage, 1.0)
            assert asked_to_end(stage)[0] <= LAST_WORD
            stage.server.handle = handle  # type: ignore[method-assign]  # and to be gone again
            await stage.until_gone("n1")
            assert instants(stage, "delete", "pods", START)[0] <= LAST_WORD
