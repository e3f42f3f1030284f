"""Voluntary terminations: a lost node, the label, an expired claim; to the second, and once."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.disruption import (
    NOT_TERMINABLE,
    ON_LOST_NODES,
    TERMINABLE,
    created_at,
    deletions,
    lost_at,
)
from support.stage import a_pod_manifest, reasons, staged, the_settings
from support.virtual import ShiftedClock

from gracectl.app.controller import Controller
from gracectl.cli.crds import shipped_definitions
from gracectl.model import names
from gracectl.model.times import format_time


async def test_a_lost_node_is_ended_after_fifteen_minutes_to_the_second() -> None:
    async with staged("n1", "n2") as stage, stage.settled() as controller:
        lost = await lost_at(stage, "n1")
        before = controller.statistics().queues["voluntary"].handed_out
        await stage.clock.sleep(lost + 899.9 - stage.clock.monotonic())
        assert controller.statistics().queues["voluntary"].handed_out - before <= 2  # no polling
        await stage.until_gone("n1")
        assert deletions(stage) == [(lost + 900.0, "n1")]
        assert stage.instance_state("n1") == "terminated"
        assert stage.node("n2") is not None
        [message] = [words for name, reason, words in await stage.events() if (name, reason) == ("n1", "NodeUnhealthy")]
        since = format_time(stage.clock.now() - stage.clock.monotonic() + lost)
        assert message == (
            f"terminating: node n1 is unhealthy: its condition Ready has been Unknown since {since}, and 900 s of that "
            "are tolerated"
        )


async def test_the_search_for_unhealthy_nodes_can_be_switched_off() -> None:
    async with (
        staged("n1", "n2", settings=the_settings(health={"enabled": False})) as stage,
        stage.controller() as controller,
    ):
        await stage.settle(controller)
        await lost_at(stage, "n1")
        await stage.clock.sleep(7200)
        assert deletions(stage) == []
        await stage.patch_node("n1", TERMINABLE)
        await stage.until_gone("n1")


async def test_a_node_that_is_not_managed_is_not_terminated() -> None:
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("n1", settings=settings) as stage, stage.controller() as controller:
        await controller.wait_live()
        await lost_at(stage, "n1")
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(1000)
        assert deletions(stage) == []


async def test_a_new_leader_queues_only_nodes_to_which_something_can_happen() -> None:
    """There may be 100,000 nodes, and the first deletion waits behind none of them."""
    names = [f"n{number}" for number in range(20)]
    async with staged(*names) as stage:
        await stage.create(a_pod_manifest("p1", "n1"))
        async with stage.settled(mortal=True):
            pass
        await stage.patch_node("n3", NOT_TERMINABLE)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(10)
            adds = {name: queue.adds for name, queue in controller.statistics().queues.items()}
            assert {name: number for name, number in adds.items() if number} == {}
        await stage.patch_node("n2", TERMINABLE)
        async with stage.controller() as controller:
            await stage.until_gone("n2")
            assert controller.statistics().queues["voluntary"].handed_out < len(names)


@pytest.mark.parametrize("dead_until", [100.0, 899.0, 950.0])
async def test_a_restart_forgets_nothing(dead_until: float) -> None:
    """In time: to the second all the same. Too late: at once."""
    async with staged("n1", "n2") as stage:
        async with stage.settled(mortal=True):
            lost = await lost_at(stage, "n1")
        await stage.clock.sleep(lost + dead_until - stage.clock.monotonic())
        async with stage.controller():
            await stage.until_gone("n1")
        assert deletions(stage) == [(max(lost + 900.0, lost + dead_until), "n1")]


async def test_a_lost_node_that_is_also_terminable_is_deleted_once() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        await stage.create(
            a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "1000s"}, tolerations=ON_LOST_NODES)
        )
        await stage.patch_node("n1", TERMINABLE)
        await lost_at(stage, "n1")
        await stage.until(lambda: "deletionTimestamp" in (stage.node("n1") or {"metadata": {}})["metadata"])
        await stage.clock.sleep(600)
        assert len(stage.transport.of("delete", "nodes")) == 1
        [message] = [words for _, reason, words in await stage.events() if reason == "NodeUnhealthy"]
        assert "Ready has been Unknown since" in message
        assert message.endswith("; node n1 has the label karpenter.sh/lifecycle-phase=terminable")


async def test_the_claim_of_a_lost_node_is_deleted_and_the_node_goes_with_it() -> None:
    async with staged("n1", claim=ClaimSpec()) as stage:
        await stage.add_nodes("n2")
        async with stage.settled():
            lost = await lost_at(stage, "n1")
            await stage.until_gone("n1")
            await stage.until_claims_gone("n1-claim")
            assert deletions(stage, "nodeclaims") == [(lost + 900.0, "n1-claim")]
            assert "NodeUnhealthy" in await reasons(stage, "n1")
            assert "NodeUnhealthy" in await reasons(stage, "n1-claim")


async def test_a_node_with_two_claims_has_none() -> None:
    async with staged("n1", claim=ClaimSpec(expire_after="600s")) as stage:
        await stage.create_claim("other", {"nodeName": "n1", "providerID": f"sim:///zone-a/{stage.instances['n1']}"})
        async with stage.settled():
            await stage.clock.sleep(700)
            assert deletions(stage, "nodeclaims") == []
            objects = [name for name, reason, _ in await stage.events() if reason == "SeveralNodeClaims"]
            assert sorted(objects) == ["n1", "n1-claim"]
            await stage.patch_node("n1", TERMINABLE)
            await stage.until_gone("n1")
            assert [name for _, name in deletions(stage)] == ["n1"]
            objects = [name for name, reason, _ in await stage.events() if reason == "SeveralNodeClaims"]
            assert sorted(objects) == ["n1", "n1-claim"]


async def test_the_label_terminates_a_node_at_once() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        await stage.clock.sleep(10)
        await stage.patch_node("n1", TERMINABLE)
        start = stage.clock.monotonic()
        await stage.until_gone("n1")
        assert deletions(stage) == [(start, "n1")]
        messages = {reason: words for name, reason, words in await stage.events() if name == "n1"}
        assert (
            messages["NodeTerminable"] == "terminating: node n1 has the label karpenter.sh/lifecycle-phase=terminable"
        )


async def test_a_node_that_cannot_get_the_finalizer_is_not_deleted() -> None:
    """It would be gone at once, with its pods."""
    async with staged() as stage:
        stage.transport.before.add(Rule(fault=Refuse(403), method="PATCH", path="/nodes/n1$"))
        async with stage.controller():
            await stage.add_nodes("n1", labels={names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE})
            await stage.clock.sleep(30)
            assert stage.transport.of("delete", "nodes") == []


async def test_the_deletion_is_of_the_node_that_was_judged() -> None:
    """The node changes before each of our DELETEs arrives: the last change takes the label off."""
    async with staged("n1") as stage, stage.settled():
        handle, storms = stage.server.handle, iter(range(3))

        async def stormy(request: Any) -> Any:
            if request.method == "DELETE" and request.path == "/api/v1/nodes/n1":
                number = next(storms)
                await stage.patch_node("n1", NOT_TERMINABLE if number == 2 else {"metadata": {"labels": {"x": "y"}}})
                await stage.patch_node("n1", {"metadata": {"labels": {"storm": str(number)}}})
            return await handle(request)

        stage.server.handle = stormy  # type: ignore[method-assign]  # the one way to be there just before
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(600)
        assert stage.node("n1") is not None
        assert [each.status for each in stage.transport.of("delete", "nodes")] == [409, 409, 409]
        assert "NodeTerminable" not in await reasons(stage, "n1")


async def test_a_claim_expires_to_the_second_and_its_node_ends() -> None:
    async with staged() as stage:
        await stage.clock.sleep(3.25)
        await stage.add_nodes("n1", claim=ClaimSpec(expire_after="1h30m"))
        await stage.add_nodes("n2", claim=ClaimSpec(expire_after="Never"))
        await stage.add_nodes("n3", claim=ClaimSpec(spec={"expireAfter": "Never"}))
        async with stage.settled():
            created = created_at(stage, stage.claim("n1-claim"))
            await stage.until_gone("n1")
            assert deletions(stage, "nodeclaims") == [(created + 5400.0, "n1-claim")]
            messages = {reason: words for name, reason, words in await stage.events() if name == "n1-claim"}
            assert messages["ClaimExpired"].endswith("has reached its expireAfter of 1h30m")
            await stage.clock.sleep(3600)
            assert len(deletions(stage, "nodeclaims")) == 1


async def test_a_claim_without_a_node_expires_too() -> None:
    async with staged("n1") as stage:
        await stage.create_claim("early", expireAfter="10m")
        await stage.create_claim("late", expireAfter="20m")
        async with stage.settled():
            created = created_at(stage, stage.claim("early"))
            await stage.until_claims_gone("early", "late")
            assert deletions(stage, "nodeclaims") == [(created + 600.0, "early"), (created + 1200.0, "late")]


@pytest.mark.parametrize(
    ("offset", "learns", "expires"), [(-400.0, 100.0, 600.0), (400.0, 100.0, 600.0), (400.0, 700.0, 700.0)]
)
async def test_an_expiry_is_an_instant_of_the_servers_clock(offset: float, learns: float, expires: float) -> None:
    """As soon as we know how far that is ahead."""
    async with staged("n1", clock_offset_seconds=offset) as stage:
        await stage.create_claim("early", expireAfter="10m")
        clock, stop = ShiftedClock(stage.clock), anyio.Event()
        controller = Controller(stage.settings, stage.transport.line(), clock, stage.provider)
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run, stop)
            await stage.settle(controller)
            await stage.clock.sleep(learns - stage.clock.monotonic())
            clock.offset = offset
            await stage.until_claims_gone("early")
            stop.set()
        assert deletions(stage, "nodeclaims") == [(expires, "early")]


async def test_an_invalid_expiry_never_comes_and_makes_one_event() -> None:
    """Other definitions of NodeClaims are less strict than ours."""
    lenient = shipped_definitions()
    for definition in lenient:
        for version in definition["spec"]["versions"]:
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            spec["expireAfter"] = {"type": "string"}
    claim = ClaimSpec(expire_after="30 days")
    async with staged("n1", claim=claim, definitions=lenient) as stage, stage.settled() as controller:
        for n in range(10):
            await stage.patch_claim("n1-claim", {"metadata": {"labels": {"n": str(n)}}})
            await stage.clock.sleep(200)
        assert deletions(stage, "nodeclaims") == []
        messages = [words for name, reason, words in await stage.events() if reason == "InvalidExpireAfter"]
        assert len(messages) == controller.statistics().events.recorded == 1
        assert messages[0].startswith("never expires: expireAfter cannot be read: '30 days' is no duration")
