"""Sources of a deadline: administrators, claims that come late or go, changed settings, servers with other clocks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Rule
from kubesim.server.api import JsonObject
from support.stage import Stage, a_pod_manifest, staged, the_settings
from support.stories import (
    START,
    delete_at_start,
    deletions,
    draining,
    evictions,
    stamp,
    staying,
    told,
    until,
    with_grace_period,
    written_on,
)
from support.virtual import ShiftedClock

from gracectl.app.controller import Controller
from gracectl.model import names

QUARTER = with_grace_period("15m")
HOUR_CLAIM = ClaimSpec(termination_grace_period="1h")


def annotated(text: str | None) -> JsonObject:
    return {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: text}}}


async def patch(stage: Stage, kind: str, body: JsonObject) -> None:
    """What a person writes on the node n1 or its claim."""
    await (stage.patch_node("n1", body) if kind == "node" else stage.patch_claim("n1-claim", body))


# -- what is written ---------------------------------------------------------------------------------------------------


async def test_without_a_claim_the_nodes_deletion_and_its_group_say_when() -> None:
    async with staged("n1", objects=[staying("a")], settings=QUARTER) as stage, draining(stage, "n1") as controller:
        await until(stage, 1.0)
        node = stage.node("n1")
        assert node is not None
        assert node["metadata"]["deletionTimestamp"] == stamp(stage, 0.0)
        assert written_on(node) == stamp(stage, 900.0)
        (progress,) = controller.under_way()
        assert progress.deadline == stage.clock.now() - 1.0 + 900.0
        (message,) = await told(stage, "n1", "TerminationGracePeriodExpiring")
        assert message.startswith(f"ends by {stamp(stage, 900.0)} (termination grace period 15m0s): ")


async def test_a_claims_own_grace_period_wins_over_its_groups_and_both_are_told() -> None:
    async with staged("n1", objects=[staying("a")], claim=HOUR_CLAIM, settings=QUARTER) as stage, draining(stage, "n1"):
        await until(stage, 1.0)
        assert written_on(stage.node("n1")) == written_on(stage.claim("n1-claim")) == stamp(stage, 3600.0)
        for holder in ("n1", "n1-claim"):
            (message,) = await told(stage, holder, "TerminationGracePeriodExpiring")
            assert "termination grace period 1h0m0s" in message
        assert await stage.until_gone("n1") == START + 3600
        assert deletions(stage)[0] == ("a", 3570.0, 30)


async def test_the_claims_deletion_starts_the_clock_and_not_the_nodes() -> None:
    async with staged("n1", objects=[staying("a")], claim=HOUR_CLAIM) as stage:
        await until(stage, -50.0)
        async with stage.mortal() as controller:
            await stage.settle(controller)
        await stage.delete_claim("n1-claim")
        await delete_at_start(stage, "n1")
        async with stage.controller():
            assert await stage.until_gone("n1") == START + 3550
            assert deletions(stage)[0] == ("a", 3520.0, 30)


# -- administrators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["node", "claim"])
async def test_a_tighter_deadline_set_by_hand_is_obeyed_at_once(kind: str) -> None:
    objects = [staying("slow", 600), staying("quick", 30)]
    async with staged("n1", objects=objects, claim=HOUR_CLAIM) as stage, draining(stage, "n1"):
        await until(stage, 60.0)
        await patch(stage, kind, annotated(stamp(stage, 360.0)))
        await until(stage, 60.01)
        assert deletions(stage) == [("slow", 60.0, 300)]
        assert written_on(stage.node("n1")) == written_on(stage.claim("n1-claim")) == stamp(stage, 360.0)
        assert await stage.until_gone("n1") == START + 360
        assert [each for each in deletions(stage) if each[1] < 360] == [("slow", 60.0, 300), ("quick", 330.0, 30)]


async def test_a_tightened_deadline_and_the_grace_it_costs_are_reported_at_once() -> None:
    async with staged("n1", objects=[staying("slow", 3600)], claim=HOUR_CLAIM) as stage, draining(stage, "n1"):
        await until(stage, 60.0)
        await patch(stage, "node", annotated(stamp(stage, 360.0)))
        await until(stage, 61.0)
        for holder in ("n1", "n1-claim"):
            before, now = await told(stage, holder, "TerminationGracePeriodExpiring")
            assert before.startswith(f"ends by {stamp(stage, 3600.0)} (termination grace period 1h0m0s): ")
            assert now.startswith(f"ends by {stamp(stage, 360.0)} (annotation {names.TERMINATION_TIMESTAMP}): ")
        whole, cut = await told(stage, "slow", "DeletedForDeadline")
        assert "its whole grace (3600 s)" in whole
        assert "to 300 s: node" in cut


async def test_a_deadline_that_has_passed_already_promises_nothing() -> None:
    async with staged("n1", objects=[staying("slow")], claim=HOUR_CLAIM) as stage:
        await stage.patch_node("n1", annotated("2000-01-01T00:00:00Z"))
        async with draining(stage, "n1"):
            await until(stage, 0.1)
            (message,) = await told(stage, "n1", "TerminationGracePeriodExpiring")
            assert message == (
                f"ends now: its deadline 2000-01-01T00:00:00Z (annotation {names.TERMINATION_TIMESTAMP}) has passed; "
                "each remaining pod is deleted with 1 s of grace, regardless of what blocks it"
            )


@pytest.mark.parametrize("kind", ["node", "claim"])
@pytest.mark.parametrize("text", ["2030-01-01T00:00:00Z", None], ids=["later", "none"])
async def test_a_deadline_that_is_loosened_or_removed_comes_back(kind: str, text: str | None) -> None:
    async with staged("n1", claim=ClaimSpec(termination_grace_period="15m")) as stage:
        await stage.create(staying("a"))
        async with draining(stage, "n1"):
            await until(stage, 60.0)
            await patch(stage, kind, annotated(text))
            await until(stage, 60.01)
            assert written_on(stage.node("n1")) == written_on(stage.claim("n1-claim")) == stamp(stage, 900.0)
            assert await stage.until_gone("n1") == START + 900


async def test_a_deadline_that_was_written_before_the_deletion_counts_from_the_deletion_on() -> None:
    async with staged("n1", objects=[staying("a")]) as stage:
        await stage.patch_node("n1", annotated(stamp(stage, 240.0)))
        async with stage.settled():
            await until(stage, -10.0)
            assert deletions(stage) == []
            await delete_at_start(stage, "n1")
            assert await stage.until_gone("n1") == START + 240
            assert deletions(stage)[0] == ("a", 210.0, 30)


@pytest.mark.parametrize("text", ["soon", "", "9999-12-31T23:59:59-23:59"])
async def test_an_unreadable_annotation_is_reported_once_and_overwritten(text: str) -> None:
    async with staged("n1", objects=[staying("a")], settings=QUARTER) as stage, draining(stage, "n1"):
        await until(stage, 60.0)
        await stage.patch_node("n1", annotated(text))
        await until(stage, 60.01)
        assert written_on(stage.node("n1")) == stamp(stage, 900.0)
        assert await told(stage, "n1", "InvalidTerminationTimestamp") == [
            f'annotation {names.TERMINATION_TIMESTAMP} is "{text}", which is no instant such as '
            f"2026-01-01T00:00:00Z: {stamp(stage, 900.0)} is written instead"
        ]
        assert await stage.until_gone("n1") == START + 900


async def test_an_unreadable_annotation_is_no_deadline() -> None:
    async with staged("n1", objects=[staying("a")]) as stage:
        await stage.patch_node("n1", annotated("tomorrow"))
        async with draining(stage, "n1"):
            await until(stage, 1000.0)
            assert deletions(stage) == []
            assert written_on(stage.node("n1")) == "tomorrow"
            assert await told(stage, "n1", "InvalidTerminationTimestamp") == [
                f'annotation {names.TERMINATION_TIMESTAMP} is "tomorrow", which is no instant such as '
                "2026-01-01T00:00:00Z: there is no deadline"
            ]


# -- claims ------------------------------------------------------------------------------------------------------------


async def test_a_claim_that_appears_when_the_drain_has_begun_brings_its_deadline() -> None:
    async with staged("n1", objects=[staying("a")]) as stage:
        provider_id = f"sim:///zone-a/{stage.instances['n1']}"
        async with draining(stage, "n1"):
            await until(stage, 100.0)
            status = {"nodeName": "n1", "providerID": provider_id}
            await stage.create_claim("late", status, terminationGracePeriod="5m")
            await until(stage, 100.1)
            assert written_on(stage.node("n1")) == written_on(stage.claim("late")) == stamp(stage, 400.0)
            assert await stage.until_gone("n1") == START + 400
            assert deletions(stage)[0] == ("a", 370.0, 30)


async def test_a_claim_brings_its_deadline_while_a_write_to_its_node_hangs() -> None:
    async with staged("n1", objects=[staying("a")]) as stage, stage.settled():
        stage.transport.before.add(Rule(fault=Latency(1000, 1000), method="PATCH", path="/nodes/n1$"))
        await delete_at_start(stage, "n1")
        await until(stage, 10.0)  # what the deletion itself demands has been scheduled
        status = {"nodeName": "n1", "providerID": f"sim:///zone-a/{stage.instances['n1']}"}
        await stage.create_claim("late", status, terminationGracePeriod="50s")
        await until(stage, 21.0)
        assert deletions(stage) == [("a", 20.0, 30)]


async def test_a_claim_that_vanishes_leaves_its_deadline() -> None:
    async with staged("n1", objects=[staying("a")], claim=ClaimSpec(termination_grace_period="15m")) as stage:
        async with draining(stage, "n1", mortal=True):
            await until(stage, 100.0)
            await stage.patch_claim("n1-claim", {"metadata": {"finalizers": None}})
            await stage.until_claims_gone("n1-claim")
            await until(stage, 200.0)
        async with stage.controller():  # which has never seen the claim
            assert await stage.until_gone("n1") == START + 900
            assert deletions(stage)[0] == ("a", 870.0, 30)


# -- settings and restarts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "deadline"), [("1h", 900.0), ("5m", 300.0), (None, 900.0)])
async def test_a_grace_period_that_is_changed_in_the_settings_moves_no_deadline_to_a_later_instant(
    after: str | None, deadline: float
) -> None:
    async with staged("n1", objects=[staying("a")], settings=QUARTER) as stage:
        async with draining(stage, "n1", mortal=True):
            await until(stage, 60.0)
        stage.settings = the_settings() if after is None else with_grace_period(after)
        async with stage.controller():
            assert await stage.until_gone("n1") == START + deadline
            assert deletions(stage)[0] == ("a", deadline - 30, 30)
        assert written_on(stage.node("n1")) == ""


@pytest.mark.parametrize("away", [10.0, 580.0, 620.0, 880.0, 910.0])
async def test_a_restart_deletes_no_pod_twice_and_none_late(away: float) -> None:
    """Killed after a while and started again 15 s later; what has become due meanwhile goes at once."""
    async with staged("n1", settings=QUARTER) as stage:
        stage.provider.seconds = 30.0  # the instance takes its time, so that the second life finds it
        await stage.create(staying("slow", 300), staying("quick", 30), staying("late", 5))
        async with draining(stage, "n1", mortal=True):
            await until(stage, away)
        back = away + 15.0
        await until(stage, back)

        def due(at: float, grace: int) -> tuple[float, int]:
            return (at, grace) if not away < at < back else (back, min(grace, int(900.0 - back)))

        async with stage.controller():
            await stage.until_gone("n1")
        on_time = [(name, *due(900.0 - grace, grace)) for name, grace in (("slow", 300), ("quick", 30), ("late", 5))]
        assert [each for each in deletions(stage) if each[1] < 900.0] == on_time
        assert evictions(stage) == []


async def test_a_restart_repeats_no_event_or_condition() -> None:
    reasons = (names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRING, names.EventReason.DRAINING)
    async with staged("n1", claim=ClaimSpec(name="c1", termination_grace_period="15m")) as stage:
        await stage.create(staying("a"))
        async with draining(stage, "n1", mortal=True):
            await until(stage, 60.0)
        for life in range(3):
            async with stage.mortal():
                await until(stage, 120.0 + 60.0 * life)
        for name in ("n1", "c1"):
            assert len(await told(stage, name, *reasons)) == 2, name
        tighter = {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: stamp(stage, 600.0)}}}
        await stage.patch_node("n1", tighter)
        async with stage.mortal():
            # Tightened while no controller ran: that is news.
            await until(stage, 400.0)
            assert len(await told(stage, "n1", *reasons)) == 3


# -- the server's clock ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(stage: Stage, clock: ShiftedClock) -> AsyncIterator[None]:
    """A controller that goes by this clock."""
    controller = Controller(stage.settings, stage.transport.line(), clock, stage.provider)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run, stop)
        await stage.settle(controller)
        yield
        stop.set()


async def test_a_deadline_that_turns_out_to_have_passed_is_obeyed_in_that_instant() -> None:
    """Though nothing happens on the node: only the minimum drain time is waited for."""
    settings = with_grace_period("15m", drain={"minimumSeconds": 3600})
    async with staged("n1", "n2", settings=settings, clock_offset_seconds=400.0) as stage:
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        clock = ShiftedClock(stage.clock)
        async with running(stage, clock):
            await delete_at_start(stage, "n1")
            await until(stage, 905.3)
            clock.offset = 400.0
            assert await stage.until_gone("n1") == pytest.approx(START + 905.3, abs=0.001)
