"""Windows and freezes: nothing voluntary begins outside or during them, what runs continues, and waits end exactly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kubesim.faults import Refuse, Rule
from kubesim.server.api import JsonObject
from support.campaigns import condition as campaign_condition
from support.campaigns import create_campaign, until_complete
from support.collector import figures
from support.disruption import (
    AT_ONCE,
    POOL,
    TERMINABLE,
    create_node_budget,
    deletions,
    patch_node_budget,
    status_of,
)
from support.stage import Stage, a_pod_manifest, reasons, staged, the_settings
from support.stories import lasting

from gracectl.model import names
from gracectl.model.times import format_time

MINUTE = 60.0


def opens_in(stage: Stage, minutes: int) -> float:
    """The full minute after this many minutes, in Unix seconds."""
    return (stage.clock.now() // MINUTE + minutes) * MINUTE


def daily(at: float, duration: str = "1h") -> JsonObject:
    moment = datetime.fromtimestamp(at, UTC)
    return {"schedule": f"{moment.minute} {moment.hour} * * *", "duration": duration, "timeZone": "UTC"}


def windows(*found: JsonObject) -> Any:
    return the_settings(voluntary={**AT_ONCE["voluntary"], "windows": list(found)})


def hold(stage: Stage, node: str) -> tuple[str, str]:
    condition = stage.condition(node, names.TERMINATION_PENDING) or {}
    return condition.get("reason", ""), condition.get("message", "")


def ends(stage: Stage) -> list[tuple[float, str]]:
    """DELETEs of nodes by their instant in Unix seconds."""
    offset = stage.clock.now() - stage.clock.monotonic()
    return [(round(at + offset, 2), node) for at, node in deletions(stage)]


MAPS = "/api/v1/namespaces/kube-system/configmaps"
FREEZE = f"{MAPS}/{names.FREEZE}"


async def freeze(stage: Stage, **data: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.FREEZE}, "data": data}
    await stage.call("POST", MAPS, body)


async def test_a_termination_begins_in_the_instant_in_which_a_window_opens() -> None:
    async with staged("n1", "n2") as stage:
        opens = opens_in(stage, 30)
        stage.settings = windows(daily(opens))
        async with stage.settled() as controller:
            await stage.patch_node("n1", TERMINABLE)
            await stage.clock.sleep(5)
            reason, message = hold(stage, "n1")
            assert reason == "OutsideWindow"
            until = format_time(opens)
            assert message.endswith(f"waiting: outside of its windows until {until}; wait, or change voluntary.windows")
            assert not (stage.node("n1") or {})["spec"].get("unschedulable")
            found = figures(controller, "voluntary_terminations_pending")
            assert found == {("voluntary_terminations_pending", "terminable", "OutsideWindow"): 1}
            await stage.clock.sleep(opens - stage.clock.now() - 1)
            assert ends(stage) == []
            await stage.until_gone("n1")
            assert ends(stage) == [(opens, "n1")]


async def test_what_runs_continues_after_its_window_and_nothing_else_begins() -> None:
    async with lasting("n1", "n2") as stage:
        now = opens_in(stage, 0)
        stage.settings = windows(daily(now, "5m"))
        async with stage.settled():
            slow = a_pod_manifest("slow", "n1", terminationGracePeriodSeconds=900, behaviour={"stop-seconds": 800})
            await stage.create(slow)
            await stage.patch_node("n1", TERMINABLE)
            await stage.until(lambda: bool(deletions(stage)))
            await stage.clock.sleep(now + 5 * MINUTE - stage.clock.now())
            await stage.patch_node("n2", TERMINABLE)
            await stage.clock.sleep(5)
            assert hold(stage, "n2")[0] == "OutsideWindow"
            assert [node for _, node in ends(stage)] == ["n1"]
            assert await stage.until_gone("n1") > 10 * MINUTE
            await stage.until_gone("n2")
            assert ends(stage)[1] == (now + 24 * 3600, "n2")


async def test_a_freeze_holds_from_its_creation_until_it_is_removed() -> None:
    async with staged("n1", "n2") as stage, stage.settled() as controller:
        await freeze(stage, reason="release", by="jane")
        await stage.clock.sleep(1)
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(500)
        reason, message = hold(stage, "n1")
        assert reason == "Frozen"
        assert message.endswith("blocked: frozen by jane (release); run gracectl unfreeze to end it")
        assert figures(controller, "frozen") == {("frozen",): 1}
        assert (await reasons(stage, "n1")).count("DisruptionHeld") == 1
        assert ends(stage) == []
        await stage.call("DELETE", FREEZE)
        at = round(stage.clock.now(), 2)
        await stage.until_gone("n1")
        assert ends(stage) == [(at, "n1")]
        assert figures(controller, "frozen") == {}


@pytest.mark.parametrize("becomes", ["earlier", "later"])
async def test_a_freeze_ends_exactly_when_it_says(becomes: str) -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        first, second = opens_in(stage, 10), opens_in(stage, 5 if becomes == "earlier" else 20)
        await freeze(stage, until=format_time(first))
        await stage.clock.sleep(1)
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(10)
        assert f"until {format_time(first)}" in hold(stage, "n1")[1]
        body = {"data": {"until": format_time(second)}}
        await stage.call("PATCH", FREEZE, body, "application/merge-patch+json")
        await stage.until_gone("n1")
        assert ends(stage) == [(second, "n1")]


async def test_a_freeze_that_cannot_be_read_holds_and_says_so() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        await freeze(stage, until="tomorrow")
        await stage.clock.sleep(1)
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(5)
        assert "frozen; no end: its until cannot be read: 'tomorrow' is no RFC 3339 time" in hold(stage, "n1")[1]
        assert ends(stage) == []


async def test_a_new_leader_knows_the_freeze_before_it_acts() -> None:
    async with staged("n1", "n2") as stage:
        await freeze(stage)
        await stage.patch_node("n1", TERMINABLE)
        stage.transport.before.add(Rule(fault=Refuse(500), method="GET", path="/configmaps", count=12))
        async with stage.settled():
            await stage.clock.sleep(100)
            assert hold(stage, "n1")[0] == "Frozen"
            assert ends(stage) == []


async def test_windows_of_a_node_disruption_budget_hold_the_nodes_that_it_selects() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        opens, later = opens_in(stage, 30), opens_in(stage, 10)
        await stage.patch_node("n1", {"metadata": {"labels": POOL}})
        await create_node_budget(stage, maxUnavailable=1, windows=[daily(opens)])
        for node in ("n1", "n2"):
            await stage.patch_node(node, TERMINABLE)
        await stage.until_gone("n2")
        reason, message = hold(stage, "n1")
        assert reason == "OutsideWindow"
        closed = f"outside of its windows until {format_time(opens)}"
        assert f"waiting: node disruption budget pool-a is {closed}; wait, or change spec.windows" in message
        [condition] = status_of(stage)["conditions"]
        assert (condition["status"], condition["message"]) == ("True", f"voluntary terminations: {closed}")
        # Changed windows are looked at immediately.
        await patch_node_budget(stage, "pool-a", {"windows": [daily(later)]})
        await stage.until_gone("n1")
        assert ends(stage)[1] == (later, "n1")


async def test_a_campaign_waits_for_the_windows_of_the_budgets_over_its_nodes() -> None:
    """Each node begins when the window of its own budget opens, whichever opens first."""
    async with staged("n1", "n2", settings=the_settings(**AT_ONCE)) as stage, stage.settled():
        opens = {"n1": opens_in(stage, 30), "n2": opens_in(stage, 10)}
        for node, at in opens.items():
            await stage.patch_node(node, {"metadata": {"labels": {"pool": node}}})
            await create_node_budget(stage, node, labels={"pool": node}, maxUnavailable=1, windows=[daily(at)])
        await create_campaign(stage, nodeNames=["n1", "n2"], maxConcurrent=2, order="ByName")
        await stage.clock.sleep(5)
        assert campaign_condition(stage, names.PROGRESSING)[:2] == ("False", "OutsideWindow")
        await until_complete(stage)
        assert {node: at for at, node in ends(stage)} == pytest.approx(
            {node: at + 2 for node, at in opens.items()}, abs=1
        )
