"""A kept node is given back: by whichever way and at whichever moment, what was put on it comes off, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.faults import Latency, LateWatch, Rule
from support.stage import (
    STOPS_AFTER_5,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    reasons,
    staged,
)
from support.stories import (
    RECORD,
    Way,
    asked,
    each_way_back,
    gracectl_keep,
    gracectl_uncordon,
    is_at_rest,
    is_cordoned,
    kubectl_uncordon,
    names_on,
    remains,
    seen,
    send,
    take_off,
)

from gracectl.controllers.termination import maintenance as kept
from gracectl.model import names


@each_way_back
async def test_a_node_at_rest_is_as_it_was_before(give_back: Way) -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1")]) as stage:
        async with stage.settled() as controller:
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
            assert (done.name, done.is_maintenance) == ("n1", True)
            assert names.UNCORDONED not in seen(stage, "n1").annotations
            await stage.create(a_pod_manifest("b"), a_workload("Deployment", "web", 4))
            assert any(name.startswith("web") for name in names_on(stage, "n1"))
        assert (await reasons(stage, "n1"))[-1] == "Uncordoned"


@each_way_back
async def test_uncordoned_in_the_middle_of_a_drain_no_eviction_is_sent_any_more(give_back: Way) -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 5}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2")
        async with stage.settled() as controller:
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


@each_way_back
async def test_a_node_that_is_uncordoned_before_its_first_run(give_back: Way) -> None:
    """By `kubectl uncordon` it cannot be: there is no cordon yet, and kubectl says so."""
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage:
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


@each_way_back
async def test_a_node_that_is_uncordoned_while_no_controller_runs(give_back: Way) -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "50s"}))
        async with stage.settled(mortal=True) as controller:
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


@each_way_back
@pytest.mark.parametrize(
    ("patch", "record", "left"),
    [
        ({"spec": {"taints": [OTHER]}}, RECORD, ""),
        ({"spec": {"taints": [OTHER, TAINT]}}, RECORD, "the taint karpenter.sh/disrupted"),
        (
            {"metadata": {"labels": LABEL}},
            "unschedulable",
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
    async with staged("n1", "n2") as stage, stage.settled():
        await stage.patch_node("n1", patch)
        before = remains(stage, "n1")
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        assert is_cordoned(stage, "n1")
        assert seen(stage, "n1").annotations[names.CORDONED] == record
        await give_back(stage, "n1")
        await stage.clock.sleep(1)
        assert remains(stage, "n1") == before
        [text] = [message for _, reason, message in await stage.events() if reason == "Uncordoned"]
        assert text.endswith(f"; it keeps {left}, which gracectl has not set" if left else "it") or not left


@each_way_back
async def test_a_node_that_was_cordoned_before_takes_pods_again(give_back: Way) -> None:
    """As after `kubectl drain` and `kubectl uncordon`, which know no more of who has cordoned it."""
    async with staged("n1", "n2") as stage, stage.settled():
        before = remains(stage, "n1")
        await stage.patch_node("n1", {"spec": {"unschedulable": True}})
        await gracectl_keep(stage, "n1")
        await stage.clock.sleep(10)
        await give_back(stage, "n1")
        await stage.clock.sleep(1)
        assert remains(stage, "n1") == before


# -- what the commands send --------------------------------------------------------------------------------------------


async def test_what_the_commands_ask_for() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        fresh, now = seen(stage, "n1"), stage.clock.now()
        assert kept.withdrawal_patch(fresh) is None
        asked_for = kept.request_patch(fresh, now)
        assert asked_for is not None
        assert asked_for.body == {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}}
        await send(stage, "n1", asked_for)
        assert kept.request_patch(seen(stage, "n1"), now + 5) is None  # the first one counts
        await stage.clock.sleep(10)
        assert kept.request_patch(seen(stage, "n1"), now + 15) is None
        back = kept.withdrawal_patch(seen(stage, "n1"))
        assert back is not None
        assert back.body == {
            "metadata": {"annotations": {names.KEEP_DRAINED: None}},
            "spec": {"unschedulable": None},
        }
        await stage.patch_node("n2", {"spec": {"unschedulable": True}})
        other = kept.withdrawal_patch(seen(stage, "n2"))
        assert other is not None
        assert other.body == {"spec": {"unschedulable": None}}
        await stage.delete_node("n1")
        assert kept.withdrawal_patch(seen(stage, "n1")) is kept.request_patch(seen(stage, "n1"), now) is None


@each_way_back
async def test_a_request_right_after_the_return_is_another_request(give_back: Way) -> None:
    """Also before a controller has seen the uncordon."""
    async with staged("n1", "n2") as stage:
        async with stage.settled(mortal=True) as controller:
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


async def test_a_request_while_the_last_one_is_being_cleared_up() -> None:
    """Between two of our writes: what is left of the last time is taken over."""
    async with staged("n1", "n2") as stage, stage.settled() as controller:
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
    async with staged("n1", "n2") as stage, stage.settled():
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
