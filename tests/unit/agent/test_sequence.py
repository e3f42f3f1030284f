"""A shutdown carried out on the embedded cluster: who is told at which second, and when the next range begins."""

from __future__ import annotations

import anyio
import pytest
from support.deadlines import START
from support.shutting import NODE, ShuttingMachine, a_classed_pod, machine_with, of_all_classes
from support.stage import NAMESPACE, a_pod_manifest, a_workload

from gracectl.policy.waves import by_priority

pytestmark = pytest.mark.anyio


async def test_the_example_of_the_kep_with_pods_that_take_all_of_their_periods() -> None:
    async with machine_with(*of_all_classes()) as machine:
        result = await machine.shut_down()
        assert machine.ears.began == {0: 0, 1: 60, 2: 180, 3: 360}
        assert machine.asked == [("regular", 0, 60), ("c", 60, 120), ("b", 180, 180), ("a", 360, 300)]
        assert result.seconds == pytest.approx(660)
        assert machine.elapsed == 660
        assert machine.ears.result == result


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


async def test_pods_that_outlive_their_grace_do_not_hold_the_next_range() -> None:
    """Their kubelet is gone, so they stay in the API."""
    async with machine_with(*of_all_classes(["regular", "c"], stop_seconds=3)) as machine:
        machine.stage.cluster.kubelet.kill(NODE)
        result = await machine.shut_down()
        assert machine.asked == [("regular", 0, 60), ("c", 60, 120)]
        assert machine.ears.ended == [(0, 60, ["regular"]), (1, 180, ["c"])]
        assert machine.elapsed == 180
        assert [pod.name for pod in result.left] == ["c", "regular"]
        assert result.not_deleted == ()


async def test_nothing_at_all_is_over_at_once() -> None:
    async with machine_with() as machine:
        result = await machine.shut_down()
        assert (machine.elapsed, result.left, result.is_known) == (0, (), True)


async def test_a_pod_that_was_deleted_before_is_waited_for_and_not_deleted_again() -> None:
    async with machine_with(a_classed_pod("regular", 30), a_classed_pod("c", stop_seconds=1)) as machine:
        await machine.until(-10)
        await machine.stage.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/regular")
        await machine.shut_down()
        assert machine.ears.began == {0: 0, 1: 20}
        assert [name for name, _, _ in machine.asked] == ["c"]


async def test_a_pod_with_more_grace_than_its_range_is_shortened_once() -> None:
    async with machine_with(a_classed_pod("regular", 600)) as machine:
        await machine.until(-10)
        await machine.stage.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/regular")
        await machine.shut_down()
        assert machine.asked == [("regular", 0, 60)]
        assert machine.elapsed == 60


async def test_a_late_pod_has_what_is_left_of_the_period() -> None:
    async with machine_with(a_classed_pod("c", stop_seconds=90), a_classed_pod("a", stop_seconds=1)) as machine:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.shut_down)
            await machine.until(20)
            await machine.stage.cluster.create(a_classed_pod("regular-late"))
            await machine.until(30.5)
            await machine.stage.cluster.create(a_classed_pod("c-late", stop_seconds=2))
        assert machine.asked == [("c", 0, 120), ("regular-late", 20, 100), ("c-late", 30.5, 90), ("a", 120, 300)]


async def test_what_a_daemonset_puts_in_the_place_of_its_pod_is_left_alone() -> None:
    daemons = a_workload("DaemonSet", "logs", 1, behaviour={"stop-seconds": 4})
    del daemons["spec"]["replicas"]
    async with machine_with(daemons, a_classed_pod("c", stop_seconds=3)) as machine:
        await machine.shut_down()
        assert machine.ears.began == {0: 0, 1: 4}
        assert len(machine.asked) == 2
        assert [name.startswith("logs-") for name in machine.names] == [True]
        assert machine.elapsed == 7


async def test_a_last_range_without_a_period_is_told_before_it_is_over() -> None:
    order = by_priority([(0, 60.0), (1_000, 0.0)])
    async with machine_with(a_classed_pod("regular", stop_seconds=5), a_classed_pod("c", stop_seconds=5)) as machine:
        result = await machine.shut_down(order=order)
        assert machine.asked == [("regular", 0, 60), ("c", 5, 1)]
        assert machine.elapsed == 5
        assert [pod.name for pod in result.left] == ["c"]


async def test_less_time_than_the_periods_is_shared() -> None:
    async with machine_with(*of_all_classes()) as machine:
        await machine.shut_down(available=330)
        assert machine.asked == [("regular", 0, 30), ("c", 30, 60), ("b", 90, 90), ("a", 180, 150)]
        assert machine.elapsed == 330


async def test_a_deadline_of_the_node_that_appears_in_mid_shutdown_makes_pods_hurry() -> None:
    async with machine_with(*of_all_classes(["regular", "c"])) as machine:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.shut_down)
            await machine.until(10)
            machine.node_deadline = machine.stage.clock.now() + 30
            machine.sequence.wake()
        assert machine.asked == [("regular", 0, 60), ("regular", 10, 30), ("c", 40, 1)]
        assert machine.elapsed == 41


async def test_our_own_pod_and_finished_ones_are_left_alone() -> None:
    pods = [
        a_classed_pod("regular-agent"),
        a_pod_manifest("job", NODE, behaviour={"exit-seconds": 1}, restartPolicy="Never"),
        a_classed_pod("regular", stop_seconds=1),
    ]
    async with machine_with(*pods) as machine:
        await machine.until(-1)
        own = machine.pods.get(NAMESPACE, "regular-agent")
        assert own is not None
        again = ShuttingMachine(machine.stage, own.uid)
        async with anyio.create_task_group() as group:
            await again.live(group)
            await again.shut_down()
            group.cancel_scope.cancel()
        assert again.asked == [("regular", 0, 60)]
        assert (again.elapsed, again.names) == (1, ["job", "regular-agent"])


async def test_a_cancelled_shutdown_stops_all_further_deletions() -> None:
    async with machine_with(*of_all_classes(stop_seconds=50)) as machine:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.shut_down)
            await machine.until(70)
            group.cancel_scope.cancel()
        await machine.until(1000)
        assert [name for name, _, _ in machine.asked] == ["regular", "c"]
        assert machine.names == ["a", "b"]
        assert machine.ears.result is None
        assert machine.deleter.statistics().scheduled == 0


async def test_after_a_cancelled_shutdown_the_next_one_begins_anew() -> None:
    async with machine_with(*of_all_classes(stop_seconds=50)) as machine:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.shut_down)
            await machine.until(70)
            group.cancel_scope.cancel()
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
