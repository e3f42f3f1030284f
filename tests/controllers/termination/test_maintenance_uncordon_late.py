"""Uncordon of a drained node through late watches, slow servers and conflicts: no eviction is sent after it."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.faults import Latency, LateWatch, Partition, Refuse, Rule
from support.stage import (
    STOPS_AFTER_5,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    reasons,
    staged,
)
from support.stories import (
    Way,
    asked,
    each_way_back,
    gracectl_keep,
    is_cordoned,
    keep,
    names_on,
    remains,
    take_off,
)

from gracectl.model import names

GONE = Refuse(404, None, {"kind": "Status", "reason": "NotFound", "code": 404, "message": 'nodes "n1" not found'})


async def test_a_cordon_that_is_late_is_not_put_on_a_node_that_was_given_back() -> None:
    """Our view is ten seconds old: the server refuses the cordon (the node has no annotations any more that it could be
    recorded among), and we look again."""
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1")]) as stage, stage.settled():
        before = remains(stage, "n1")
        stage.transport.before.add(Rule(fault=LateWatch(10.0, 10.0), path="nodes"))
        await keep(stage, "n1")
        await stage.clock.sleep(9)
        await take_off(stage, "n1")
        await stage.clock.sleep(100)
        assert remains(stage, "n1") == before
        assert stage.evictions == []
        assert [each.status for each in stage.transport.of("patch", "nodes") if each.instant > 5] == [422]
        assert await reasons(stage, "n1") == []


async def test_an_answer_that_tells_of_the_return_before_the_watch_does_is_heeded() -> None:
    """It is the answer to the condition that says that the node is drained."""
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage, stage.settled():
        before = remains(stage, "n1")
        start = await keep(stage, "n1")
        await stage.clock.sleep(2)
        stage.transport.before.add(Rule(fault=LateWatch(10.0, 10.0), path="nodes"))
        await stage.clock.sleep(2)
        await take_off(stage, "n1")
        assert await stage.until(lambda: remains(stage, "n1") == before) - start == pytest.approx(5.0, abs=0.001)
        assert "Drained" not in await reasons(stage, "n1")


async def test_a_cordon_that_is_long_on_its_way_is_called_off() -> None:
    """The watch shows that the node was uncordoned; the answer to a request that became pointless is not waited for."""
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1")]) as stage, stage.settled() as controller:
        before = remains(stage, "n1")
        stage.transport.before.add(silence := Rule(fault=Partition(), method="PATCH", path="nodes/n1"))
        await keep(stage, "n1")
        await stage.clock.sleep(20)
        await take_off(stage, "n1")
        await stage.clock.sleep(0.01)
        assert controller.under_way() == ()
        stage.transport.before.remove(silence)
        await stage.clock.sleep(100)
        assert remains(stage, "n1") == before
        assert stage.evictions == []


async def test_a_late_watch_that_shows_the_state_before_the_uncordon_evicts_no_pod() -> None:
    """An answer to a write of ours has told of the return before the watch does, which then shows older states."""
    objects = [a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled() as controller:
        before = remains(stage, "n1")
        await keep(stage, "n1")
        await stage.clock.sleep(20)
        stage.transport.before.add(Rule(fault=LateWatch(10.0, 10.0), path="nodes"))
        await stage.clock.sleep(25)
        await stage.patch_node("n1", {"metadata": {"labels": {"another": "label"}}})
        await stage.clock.sleep(1)
        await take_off(stage, "n1")
        await stage.clock.sleep(1)
        await stage.cluster.create(a_pod_manifest("late", "n1"))
        await stage.clock.sleep(1)
        assert not is_cordoned(stage, "n1")
        agreed = len(asked(stage, 0.0))
        await stage.cluster.create(a_pod_manifest("new", "n1"))
        await stage.clock.sleep(300)
        assert len(asked(stage, 0.0)) == agreed
        assert {"job", "new"} <= set(names_on(stage, "n1"))
        assert remains(stage, "n1") == {**before, "labels": {**before["labels"], "another": "label"}}
        assert controller.under_way() == ()


@each_way_back
@pytest.mark.parametrize("late", [0.5, 3.0, 30.0])
async def test_late_watches_delay_a_return_and_lose_nothing_of_it(give_back: Way, late: float) -> None:
    objects = [a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "300s"})]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled() as controller:
        before = remains(stage, "n1")
        stage.transport.before.add(Rule(fault=LateWatch(late / 2, late), path="nodes|pods"))
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(60)
        assert is_cordoned(stage, "n1")
        start = await give_back(stage, "n1")
        # Events from before are still on their way, each late after the one before.
        assert await stage.until(lambda: remains(stage, "n1") == before) - start <= 3 * late
        await stage.clock.sleep(20 * late)
        assert remains(stage, "n1") == before
        assert controller.under_way() == ()
        messages = [message for _, reason, message in await stage.events() if reason == "Uncordoned"]
        assert len(messages) == 1
        assert stage.evictions == []


@each_way_back
@pytest.mark.parametrize("fault", [Latency(1000.0, 1000.0), Refuse(500), Refuse(409)], ids=["silent", "500", "409"])
async def test_conditions_that_cannot_be_written_keep_no_pod_from_a_node_that_was_given_back(
    give_back: Way, fault: Any
) -> None:
    """They come off when they can be written again."""
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1")]) as stage, stage.settled():
        before = remains(stage, "n1")
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        stage.transport.before.add(broken := Rule(fault=fault, path="nodes/n1/status"))
        start = await give_back(stage, "n1")
        await stage.until(lambda: remains(stage, "n1")["spec"] == before["spec"])
        assert stage.clock.monotonic() - start <= 0.001
        await stage.clock.sleep(50)
        assert remains(stage, "n1")["annotations"] == {names.CORDONED: ""}
        assert remains(stage, "n1")["conditions"] != []
        stage.transport.before.remove(broken)
        await stage.clock.sleep(60)
        assert remains(stage, "n1") == before


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "gone"])
async def test_a_request_before_the_return_is_complete_is_read_from_the_server(is_there: bool) -> None:
    """The watch may be late: a node that the server no longer has is not cordoned again."""
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1")]) as stage, stage.settled():
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        stage.transport.before.add(Rule(fault=Refuse(500), path="nodes/n1/status"))
        await take_off(stage, "n1")
        await stage.clock.sleep(10)
        if not is_there:
            stage.transport.before.add(Rule(fault=GONE, method="GET", path="/nodes/n1$"))
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        assert is_cordoned(stage, "n1") is is_there


async def test_a_drain_whose_condition_hangs_is_over_at_once_for_the_pods() -> None:
    """No eviction is sent any more, though the last snapshot is not complete."""
    async with staged("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 1}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2")
        async with stage.settled():
            before = remains(stage, "n1")
            stage.transport.before.add(Rule(fault=Latency(1000.0, 1000.0), path="nodes/n1/status"))
            start = await gracectl_keep(stage, "n1")
            await stage.clock.sleep(1.5)
            await take_off(stage, "n1")
            await stage.until(lambda: remains(stage, "n1")["spec"] == before["spec"])
            assert stage.clock.monotonic() - start <= 5.01  # a condition that was begun is given five seconds
            assert [at for _, at in asked(stage, start)] == [0.0, 1.0]


async def test_a_storm_of_conflicts_delays_cordon_and_uncordon_and_loses_nothing() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        before = remains(stage, "n1")
        handle, storms = stage.server.handle, iter(range(30))

        async def stormy(request: Any) -> Any:
            is_patch = request.method == "PATCH" and request.path == "/api/v1/nodes/n1"
            if is_patch and isinstance(request.body, bytes) and (number := next(storms, None)) is not None:
                await stage.patch_node("n1", {"metadata": {"labels": {"storm": str(number)}}})
            return await handle(request)

        stage.server.handle = stormy  # type: ignore[method-assign]  # the one way to be there just before
        start = await keep(stage, "n1")
        await stage.clock.sleep(0.5)
        await take_off(stage, "n1")
        await stage.clock.sleep(20)
        labels = {**before["labels"], "storm": "29"}
        assert next(storms, None) is None
        assert remains(stage, "n1") == {**before, "labels": labels}
        assert asked(stage, start) == []
