"""A shutdown when the API server is away, slow, or has forgotten the past: ranges go on, and the end stands."""

from __future__ import annotations

import anyio
import pytest
from kubesim.faults import DropWatch, Expire, Latency, Partition, Refuse, Rule
from support.shutdowns import NODE, a_classed_pod, machine_with, of_all_classes

from gracectl.policy.waves import by_priority

DELETES = "DELETE"


async def test_an_api_server_that_is_away_from_the_beginning_holds_nothing_up() -> None:
    async with machine_with(*of_all_classes()) as machine:
        machine.line.cut()
        machine.stage.transport.is_listening = False
        result = await machine.shut_down()
        assert machine.ears.began == {0: 0, 1: 60, 2: 180, 3: 360}
        assert (machine.asked, machine.elapsed) == ([], 660)
        assert [pod.name for pod in result.not_deleted] == ["a", "b", "c", "regular"]
        assert "regular" in machine.ears.refused


async def test_an_api_server_that_comes_back_in_mid_range_is_asked_for_what_is_left() -> None:
    pods = [a_classed_pod("regular-short", 20), a_classed_pod("regular-long"), a_classed_pod("c", stop_seconds=1)]
    async with machine_with(*pods) as machine:
        async with anyio.create_task_group() as group:
            await machine.until(-1)
            machine.stage.transport.is_listening = False
            group.start_soon(machine.shut_down)
            await machine.until(20)
            machine.stage.transport.is_listening = True
        # Who needs little has all of it; the first tries are those of 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 22.7 s.
        assert machine.asked == [("regular-long", 22.7, 38), ("regular-short", 22.7, 20), ("c", 60, 120)]
        assert sorted(machine.ears.granted) == [("c", 120), ("regular-long", 38), ("regular-short", 20)]


async def test_an_api_server_that_is_away_in_the_middle_costs_only_that_range_its_time() -> None:
    """Away from 50 to 100 s: the first range is told before, the second when the server is back, in its own period."""
    async with machine_with(*of_all_classes(["regular", "c", "b"])) as machine:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.shut_down)
            await machine.until(50)
            machine.stage.transport.is_listening = False
            await machine.until(100)
            machine.stage.transport.is_listening = True
        assert machine.ears.began == {0: 0, 1: 60, 2: 180}
        asked = [(name, grace) for name, _, grace in machine.asked]
        (_, instant, grace) = machine.asked[1]
        assert 100 <= instant <= 110
        assert asked == [("regular", 60), ("c", grace), ("b", 180)]
        assert 180 <= instant + grace < 181
        assert machine.elapsed == 360


async def test_a_pod_that_could_not_be_deleted_in_its_range_is_deleted_in_the_next_one() -> None:
    async with machine_with(*of_all_classes(["regular", "c"])) as machine:
        async with anyio.create_task_group() as group:
            await machine.until(-1)
            machine.stage.transport.is_listening = False
            group.start_soon(machine.shut_down)
            await machine.until(62)
            machine.stage.transport.is_listening = True
        # Each by its own patience: the one has been refused for the fifth time, the other for many more.
        assert sorted((name, grace) for name, _, grace in machine.asked) == [("c", 117), ("regular", 110)]
        assert machine.ears.ended == [(0, 60, ["regular"]), (1, 180, ["c"])]


async def test_a_pod_refused_for_ever_blocks_its_own_range_only() -> None:
    async with machine_with(*of_all_classes(["regular", "c"], stop_seconds=2)) as machine:
        machine.stage.transport.before.add(Rule(fault=Refuse(status=403), method=DELETES, path="regular"))
        result = await machine.shut_down()
        assert machine.ears.began == {0: 0, 1: 60}
        assert (machine.elapsed, [pod.name for pod in result.not_deleted]) == (62, ["regular"])
        assert set(machine.ears.refused) == {"regular"}
        await machine.until(200)
        count = len(machine.ears.refused)
        await machine.until(1000)
        assert len(machine.ears.refused) == count  # no request is sent after the end


async def test_a_machine_whose_clock_was_wrong_grants_no_more_when_it_learns_that() -> None:
    """A hundred seconds ahead of the server for the first ten; each time seconds count from when they were promised."""
    async with machine_with(*of_all_classes(), ahead=100.0) as machine:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.shut_down)
            await machine.until(10)
            machine.clock.offset = 0.0
        assert machine.asked == [("regular", 0, 60), ("c", 60, 120), ("b", 180, 180), ("a", 360, 300)]
        assert machine.elapsed == 660


async def test_a_pod_deleted_late_by_a_slow_server_is_shortened_to_be_gone_in_time() -> None:
    """The grace counts from when the server looks at the request: 60 s from then would end after the range."""
    async with machine_with(*of_all_classes(["regular", "c"])) as machine:
        machine.stage.transport.before.add(Rule(fault=Latency(4.0, 4.0), method=DELETES, count=1))
        await machine.shut_down()
        assert machine.asked == [("regular", 4, 56), ("regular", 4, 60), ("c", 60, 120)]


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["resumed", "listed anew"])
async def test_a_watch_that_ends_in_the_middle_loses_nothing(is_forgotten: bool) -> None:
    async with machine_with(*of_all_classes(["regular", "c", "b"], stop_seconds=20)) as machine:
        faults = machine.stage.transport.before
        faults.add(Rule(fault=DropWatch(0.5)))
        if is_forgotten:
            faults.add(Rule(fault=Expire()))
        await machine.shut_down()
        assert [name for name, _, _ in machine.asked] == ["regular", "c", "b"]
        assert machine.names == []
        # A pod's end is seen by the next watch, a pause later.
        assert 60 <= machine.elapsed <= 66


async def test_a_last_range_without_a_period_delays_nothing_if_the_server_does_not_answer() -> None:
    async with machine_with(*of_all_classes(["regular", "c"], stop_seconds=5)) as machine:
        machine.stage.transport.before.add(Rule(fault=Partition(), method=DELETES, path="/c$"))
        await machine.shut_down(available=12, order=by_priority([(0, 60.0), (1_000, 0.0)]))
        assert machine.ears.began == {0: 0, 1: 5}
        assert (machine.asked, machine.elapsed) == ([("regular", 0, 12)], 12)


async def test_a_cache_that_becomes_live_late_is_waited_for_and_what_is_left_is_shared() -> None:
    async with machine_with(*of_all_classes(), is_watched=False) as machine:
        machine.stage.transport.is_listening = False
        async with anyio.create_task_group() as group:
            await machine.live(group)
            async with anyio.create_task_group() as shutdown:
                shutdown.start_soon(machine.shut_down)
                await machine.until(329.5)
                machine.stage.transport.is_listening = True
            group.cancel_scope.cancel()
        (began, *_) = machine.ears.began.values()
        assert 329.5 < began < 330
        assert [round(instant - began, 3) for instant in machine.ears.began.values()] == [0, 30, 90, 180]
        assert [(name, grace) for name, _, grace in machine.asked] == [
            ("regular", 30), ("c", 60), ("b", 90), ("a", 150),
        ]  # fmt: skip
        assert round(machine.elapsed - began, 3) == 330


async def test_a_cache_that_never_becomes_live_is_never_acted_upon() -> None:
    async with machine_with(*of_all_classes(), is_watched=False) as machine:
        pod = machine.stage.pods_on(NODE)[0]
        assert pod
        result = await machine.shut_down()
        assert (machine.asked, machine.elapsed) == ([], 660)
        assert (result.is_known, result.left) == (False, ())
        assert machine.ears.result == result


@pytest.mark.parametrize("cancelled_at", [5, 20])
async def test_a_cancelled_shutdown_repeats_no_request_even_if_one_has_failed(cancelled_at: float) -> None:
    async with machine_with(*of_all_classes(["regular"])) as machine:
        async with anyio.create_task_group() as group:
            await machine.until(-1)
            machine.stage.transport.is_listening = False
            group.start_soon(machine.shut_down)
            await machine.until(cancelled_at)
            group.cancel_scope.cancel()
        assert "regular" in machine.ears.refused
        machine.stage.transport.is_listening = True
        await machine.until(1000)
        assert (machine.asked, machine.names) == ([], ["regular"])
