"""A kept node is given back: by whichever way and at whichever moment, what was put on it comes off, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from support.kept import (
    RECORD,
    WAYS_BACK,
    Way,
    asked,
    gracectl_keep,
    gracectl_uncordon,
    is_at_rest,
    is_cordoned,
    keep,
    kubectl_uncordon,
    names_on,
    remains,
    seen,
    send,
    take_off,
)
from support.stage import (
    STOPS_AFTER_5,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    reasons,
    staged,
)

from gracectl.model import names
from gracectl.sim.faults import Latency, LateWatch, Partition, Refuse, Rule
from gracectl.termination import kept

pytestmark = pytest.mark.anyio

ways = pytest.mark.parametrize("give_back", WAYS_BACK)


@ways
async def test_a_node_at_rest_is_as_it_was_before(give_back: Way) -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            await gracectl_keep(stage, "n1")
            await stage.clock.sleep(100)
            assert is_at_rest(stage, "n1")
            start = await give_back(stage, "n1")
            assert await stage.until(lambda: remains(stage, "n1") == before) - start <= 0.001
            await stage.clock.sleep(100)
            assert remains(stage, "n1") == before
            assert controller.under_way() == ()
            (done,) = controller.finished()
            assert (done.name, done.kept) == ("n1", True)
            assert names.UNCORDONED not in seen(stage, "n1").annotations
            await stage.create(a_pod_manifest("b"), a_workload("Deployment", "web", 4))
            assert any(name.startswith("web") for name in names_on(stage, "n1"))
        assert (await reasons(stage, "n1"))[-1] == "Uncordoned"


@ways
async def test_nobody_is_asked_any_more_in_the_middle_of_a_drain(give_back: Way) -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 5}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2")
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            start = await gracectl_keep(stage, "n1")
            await stage.clock.sleep(12)
            assert [at for _, at in asked(stage, start)] == [0.0, 5.0, 10.0]
            await give_back(stage, "n1")
            await stage.clock.sleep(60)
            assert len(asked(stage, start)) == 3
            assert remains(stage, "n1") == before
            assert controller.statistics().evictor.waiting == 0
            assert len([name for name in names_on(stage, "n1") if name.startswith("web")]) == 3


@ways
async def test_a_node_that_is_given_back_before_anybody_has_looked(give_back: Way) -> None:
    """By `kubectl uncordon` it cannot be: there is no cordon yet, and kubectl says so."""
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.mortal() as controller:
            await stage.settle(controller)
        before = remains(stage, "n1")
        await gracectl_keep(stage, "n1")
        await give_back(stage, "n1")
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(10)
            if give_back is kubectl_uncordon:
                assert is_at_rest(stage, "n1")
            else:
                assert remains(stage, "n1") == before
                assert stage.evictions == []
                assert await reasons(stage, "n1") == []


@ways
async def test_a_node_that_is_given_back_while_nobody_is_there(give_back: Way) -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "50s"}))
        async with stage.mortal() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            await gracectl_keep(stage, "n1")
            await stage.clock.sleep(10)
        await give_back(stage, "n1")
        await stage.clock.sleep(90)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(1)
            assert remains(stage, "n1") == before
            await stage.clock.sleep(10)
        assert stage.evictions == []
        assert "Uncordoned" in await reasons(stage, "n1")


# -- what was there before ---------------------------------------------------------------------------------------------

TAINT = {"key": names.DISRUPTED_TAINT_KEY, "value": "by-hand", "effect": "NoSchedule"}
OTHER = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
LABEL = {names.EXCLUDE_FROM_LOAD_BALANCERS: "true"}


@ways
@pytest.mark.parametrize(
    ("patch", "record", "left"),
    [
        ({"spec": {"taints": [OTHER]}}, RECORD, ""),
        ({"spec": {"taints": [OTHER, TAINT]}}, "label,unschedulable", "the taint karpenter.sh/disrupted"),
        (
            {"metadata": {"labels": LABEL}},
            "taint,unschedulable",
            "the label node.kubernetes.io/exclude-from-external-load-balancers",
        ),
        (
            {"spec": {"taints": [TAINT, OTHER]}, "metadata": {"labels": LABEL}},
            "unschedulable",
            "the taint karpenter.sh/disrupted and the label node.kubernetes.io/exclude-from-external-load-balancers",
        ),
    ],
)
async def test_what_others_have_put_on_a_node_stays(give_back: Way, patch: Any, record: str, left: str) -> None:
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        await stage.patch_node("n1", patch)
        before = remains(stage, "n1")
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        assert is_cordoned(stage, "n1")
        assert seen(stage, "n1").annotations[names.CORDONED] == record
        await give_back(stage, "n1")
        await stage.clock.sleep(1)
        assert remains(stage, "n1") == before
        [told] = [message for _, reason, message in await stage.events() if reason == "Uncordoned"]
        assert told.endswith(f"; it keeps {left}, which gracectl has not put there" if left else "it") or not left


@ways
async def test_a_node_that_somebody_had_cordoned_before_takes_pods_again(give_back: Way) -> None:
    """As after `kubectl drain` and `kubectl uncordon`, which know no more of who has cordoned it."""
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        before = remains(stage, "n1")
        await stage.patch_node("n1", {"spec": {"unschedulable": True}})
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        await give_back(stage, "n1")
        await stage.clock.sleep(1)
        assert remains(stage, "n1") == before


async def test_what_somebody_has_taken_off_by_hand_already_is_no_hindrance() -> None:
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        before = remains(stage, "n1")
        await keep(stage, "n1")
        await stage.clock.sleep(10)
        everything: Any = {
            "metadata": {
                "annotations": {names.KEEP_DRAINED: None},
                "labels": {names.EXCLUDE_FROM_LOAD_BALANCERS: None},
            },
            "spec": {"unschedulable": None, "taints": None},
        }
        await stage.patch_node("n1", everything)
        await stage.clock.sleep(1)
        assert remains(stage, "n1") == before


# -- what the commands send --------------------------------------------------------------------------------------------


async def test_what_the_commands_ask_for() -> None:
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        fresh, now = seen(stage, "n1"), stage.clock.now()
        assert kept.withdrawal(fresh) is None
        asked_for = kept.request(fresh, now)
        assert asked_for is not None
        assert asked_for.body == {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}}
        await send(stage, "n1", asked_for)
        assert kept.request(seen(stage, "n1"), now + 5) is None  # the first one counts
        await stage.clock.sleep(10)
        assert kept.request(seen(stage, "n1"), now + 15) is None
        back = kept.withdrawal(seen(stage, "n1"))
        assert back is not None
        assert back.body == {
            "metadata": {"annotations": {names.KEEP_DRAINED: None}},
            "spec": {"unschedulable": None},
        }
        await stage.patch_node("n2", {"spec": {"unschedulable": True}})
        other = kept.withdrawal(seen(stage, "n2"))
        assert other is not None
        assert other.body == {"spec": {"unschedulable": None}}
        await stage.delete_node("n1")
        assert kept.withdrawal(seen(stage, "n1")) is kept.request(seen(stage, "n1"), now) is None


@ways
async def test_a_request_right_after_the_return_is_another_request(give_back: Way) -> None:
    """Also before anybody has taken note of the return."""
    async with staged("n1", "n2") as stage:
        async with stage.mortal() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            await gracectl_keep(stage, "n1")
            await stage.clock.sleep(10)
        await give_back(stage, "n1")
        await stage.clock.sleep(10)
        await gracectl_keep(stage, "n1")
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(100)
            assert is_at_rest(stage, "n1")
            assert is_cordoned(stage, "n1")
            assert "Uncordoned" not in await reasons(stage, "n1")
            await gracectl_uncordon(stage, "n1")
            await stage.clock.sleep(1)
            assert remains(stage, "n1") == before


async def test_again_and_again() -> None:
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        before = remains(stage, "n1")
        for number in range(6):
            await stage.cluster.create(a_pod_manifest(f"p{number}", "n1"))
            start = await gracectl_keep(stage, "n1")
            await stage.until(lambda: is_at_rest(stage, "n1"))
            await stage.clock.sleep(0.001)
            assert asked(stage, start)[-1] == (f"p{number}", 0.0)
            await WAYS_BACK[number % 3](stage, "n1")
            await stage.until(lambda: remains(stage, "n1") == before)
            await stage.clock.sleep(0.01 + number / 3)
        told = await reasons(stage, "n1")
        assert told.count("Drained") == told.count("Uncordoned") == 1  # within five minutes
        assert len(controller.finished()) == 6


async def test_a_request_while_the_last_one_is_being_cleared_up() -> None:
    """Between two of our writes: what is left of the last time is taken over."""
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        before = remains(stage, "n1")
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        stage.transport.before.add(slow := Rule(fault=Latency(3.0, 3.0), path="nodes/n1/status"))
        await gracectl_uncordon(stage, "n1")
        await stage.clock.sleep(1)
        assert remains(stage, "n1")["annotations"] == {names.CORDONED: ""}
        await stage.create(a_pod_manifest("a", "n1"))
        start = await gracectl_keep(stage, "n1")
        await stage.clock.sleep(0.01)
        assert is_cordoned(stage, "n1")
        assert asked(stage, start) == [("a", 0.0)]
        stage.transport.before.remove(slow)
        await stage.clock.sleep(1.9)
        assert [each.step for each in controller.under_way()] == ["drain"]  # for the whole minimum time, as ever
        await stage.clock.sleep(100)
        assert is_at_rest(stage, "n1")
        await take_off(stage, "n1")
        await stage.until(lambda: remains(stage, "n1") == before)


@pytest.mark.parametrize("late", [0.0, 5.0])
async def test_a_request_that_comes_just_before_our_uncordon_stands(late: float) -> None:
    """Whether the watch or the server, which refuses the uncordon, tells of it first."""
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(100)
        stage.transport.before.add(Rule(fault=LateWatch(late, late), path="nodes"))
        before = stage.condition("n1", names.DRAINED)
        handle = stage.server.handle

        async def once_more(request: Any) -> Any:
            if request.method == "PATCH" and isinstance(request.body, bytes) and b"keep-drained" in request.body:
                stage.server.handle = handle  # type: ignore[method-assign]  # as before
                await gracectl_keep(stage, "n1")
            return await handle(request)

        stage.server.handle = once_more  # type: ignore[method-assign]  # the one way to be there just before
        await kubectl_uncordon(stage, "n1")
        await stage.clock.sleep(100)
        assert is_cordoned(stage, "n1")
        assert stage.condition("n1", names.DRAINED) == before
        assert "Uncordoned" not in await reasons(stage, "n1")


# -- late watches and slow servers -------------------------------------------------------------------------------------


async def test_a_cordon_that_is_late_is_not_put_on_a_node_that_was_given_back() -> None:
    """Our view is ten seconds old: the server refuses the cordon (the node has no annotations any more that it could be
    recorded among), and we look again."""
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        async with stage.controller() as controller:
            await stage.settle(controller)
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
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            start = await keep(stage, "n1")
            await stage.clock.sleep(2)
            stage.transport.before.add(Rule(fault=LateWatch(10.0, 10.0), path="nodes"))
            await stage.clock.sleep(2)
            await take_off(stage, "n1")
            assert await stage.until(lambda: remains(stage, "n1") == before) - start == pytest.approx(5.0, abs=0.001)
            assert "Drained" not in await reasons(stage, "n1")


async def test_a_cordon_that_is_long_on_its_way_is_called_off() -> None:
    """The watch shows that the node was given back; nobody waits for the answer to what has become pointless."""
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        async with stage.controller() as controller:
            await stage.settle(controller)
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


async def test_a_late_watch_that_shows_what_was_before_the_return_brings_nobody_to_leave() -> None:
    """An answer to a write of ours has told of the return before the watch does, which then shows older states."""
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            await keep(stage, "n1")
            await stage.clock.sleep(20)
            stage.transport.before.add(Rule(fault=LateWatch(10.0, 10.0), path="nodes"))
            await stage.clock.sleep(25)
            await stage.patch_node("n1", {"metadata": {"labels": {"somebody": "else"}}})
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
            assert remains(stage, "n1") == {**before, "labels": {**before["labels"], "somebody": "else"}}
            assert controller.under_way() == ()


@ways
@pytest.mark.parametrize("late", [0.5, 3.0, 30.0])
async def test_late_watches_delay_a_return_and_lose_nothing_of_it(give_back: Way, late: float) -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "300s"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            stage.transport.before.add(Rule(fault=LateWatch(late / 2, late), path="nodes|pods"))
            await gracectl_keep(stage, "n1")
            await stage.clock.sleep(60)
            assert is_cordoned(stage, "n1")
            start = await give_back(stage, "n1")
            # Some news from before are still on their way, and may be believed for as long.
            assert await stage.until(lambda: remains(stage, "n1") == before) - start <= 2 * late
            await stage.clock.sleep(20 * late)
            assert remains(stage, "n1") == before
            assert controller.under_way() == ()
            told = [message for _, reason, message in await stage.events() if reason == "Uncordoned"]
            assert len(told) == 1
            assert stage.evictions == []


@ways
@pytest.mark.parametrize("fault", [Latency(1000.0, 1000.0), Refuse(500), Refuse(409)], ids=["silent", "500", "409"])
async def test_conditions_that_cannot_be_written_keep_no_pod_from_a_node_that_was_given_back(
    give_back: Way, fault: Any
) -> None:
    """They come off when they can be written again."""
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        async with stage.controller() as controller:
            await stage.settle(controller)
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


async def test_a_drain_whose_condition_hangs_is_over_at_once_for_the_pods() -> None:
    """Nobody is asked any more, though the last look has not come to its end."""
    async with staged("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 1}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2")
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = remains(stage, "n1")
            stage.transport.before.add(Rule(fault=Latency(1000.0, 1000.0), path="nodes/n1/status"))
            start = await gracectl_keep(stage, "n1")
            await stage.clock.sleep(1.5)
            await take_off(stage, "n1")
            await stage.until(lambda: remains(stage, "n1")["spec"] == before["spec"])
            assert stage.clock.monotonic() - start <= 5.01  # a condition that was begun is given five seconds
            assert [at for _, at in asked(stage, start)] == [0.0, 1.0]


async def test_a_storm_of_conflicts_delays_cordon_and_uncordon_and_loses_nothing() -> None:
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
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
