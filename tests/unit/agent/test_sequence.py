"""A shutdown carried out on the embedded cluster: who is told at which second, and when the next range begins."""

from __future__ import annotations

import anyio
from support.shutdowns import a_classed_pod, machine_with, of_all_classes
from support.stage import a_workload
from support.stories import START

from gracectl.policy.waves import by_priority
from gracectl.runtime.supervise import while_running


async def test_a_range_whose_pods_stop_quickly_makes_room_for_the_next_at_once() -> None:
    pods = [
        a_classed_pod("regular-1", stop_seconds=5),
        a_classed_pod("regular-2", stop_seconds=12),
        a_classed_pod("a", 30, stop_seconds=7),
    ]
    async with machine_with(*pods) as machine:
        result = await machine.shut_down()
        assert machine.ears.began == {0: 0, 3: 12}
        assert machine.asked == [("regular-1", 0, 60), ("regular-2", 0, 60), ("a", 12, 30)]
        assert machine.ears.ended == [(0, 12, []), (3, 19, [])]
        assert (machine.elapsed, result.left, machine.names) == (19, (), [])


async def test_what_a_daemonset_puts_in_the_place_of_its_pod_is_left_alone() -> None:
    daemons = a_workload("DaemonSet", "logs", 1, behaviour={"stop-seconds": 4})
    del daemons["spec"]["replicas"]
    async with machine_with(daemons, a_classed_pod("c", stop_seconds=3)) as machine:
        await machine.shut_down()
        assert machine.ears.began == {0: 0, 1: 4}
        assert len(machine.asked) == 2
        assert [name.startswith("logs-") for name in machine.names] == [True]
        assert machine.elapsed == 7


async def test_a_deadline_of_the_node_that_appears_in_mid_shutdown_makes_pods_hurry() -> None:
    async with machine_with(*of_all_classes(["regular", "c"])) as machine:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.shut_down)
            await machine.until(10)
            machine.node_deadline = machine.stage.clock.now() + 30
            machine.sequence.wake()
        assert machine.asked == [("regular", 0, 60), ("regular", 10, 30), ("c", 40, 1)]
        assert machine.elapsed == 41


async def test_a_cancelled_shutdown_stops_all_further_deletions() -> None:
    async with machine_with(*of_all_classes(stop_seconds=50)) as machine:
        async with while_running(machine.shut_down):
            await machine.until(70)
        await machine.until(1000)
        assert [name for name, _, _ in machine.asked] == ["regular", "c"]
        assert machine.names == ["a", "b"]
        assert machine.ears.result is None
        assert machine.deleter.statistics().scheduled == 0


async def test_after_a_cancelled_shutdown_the_next_one_begins_anew() -> None:
    async with machine_with(*of_all_classes(stop_seconds=50)) as machine:
        async with while_running(machine.shut_down):
            await machine.until(70)
        await machine.until(200)
        await machine.shut_down()
        assert [(name, instant) for name, instant, _ in machine.asked[2:]] == [("b", 200), ("a", 250)]
        assert machine.elapsed == 300


async def test_every_pod_is_asked_once_however_many_there_are() -> None:
    pods = [a_classed_pod(f"regular-{number}", number % 7 + 1) for number in range(130)]
    async with machine_with(*pods, a_classed_pod("c", stop_seconds=1)) as machine:
        await machine.shut_down()
        expected = sorted([*(pod["metadata"]["name"] for pod in pods), "c"])
        assert sorted(name for name, _, _ in machine.asked) == expected
        assert {instant for name, instant, _ in machine.asked if name != "c"} == {0}
        assert machine.ears.began == {0: 0, 1: 7}


async def test_the_shutdown_may_begin_between_two_seconds() -> None:
    async with machine_with(*of_all_classes()) as machine:
        await machine.stage.clock.sleep(START + 0.7 - machine.stage.clock.monotonic())
        await machine.sequence.run(by_priority([(0, 60.0), (1_000, 120.0)]), 180)
        assert machine.asked == [("regular", 0.7, 60), ("a", 60.7, 120), ("b", 60.7, 120), ("c", 60.7, 120)]
        assert machine.elapsed == 180.7
