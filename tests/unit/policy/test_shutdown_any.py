"""What holds for a shutdown with whatever pods, periods and endings."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_pod, owned_by
from support.shutdowns import Machine

from gracectl.model.pod import Pod
from gracectl.policy.deadlines import grace_of
from gracectl.policy.shutdown import ignored_reason, rehearse
from gracectl.policy.waves import DrainOrder, by_priority

LOWEST = (-5, 0, 10, 1_000)
PHASES = ("Running", "Running", "Running", "Succeeded")


class World(NamedTuple):
    order: DrainOrder
    pods: list[Pod]
    available: float
    known_at: float
    seconds: dict[str, float]
    immortal: set[str]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    lowest = draw(st.lists(st.sampled_from(LOWEST), min_size=1, unique=True))
    order = by_priority([(each, float(draw(st.integers(0, 40)))) for each in lowest])
    pods = [draw(pods_of(f"p{number}")) for number in range(draw(st.integers(0, 8)))]
    return World(
        order=order, pods=pods, available=draw(st.floats(-1, 200)),
        known_at=draw(st.sampled_from([0.0, 0.0, 0.25, 12.5])),
        seconds={pod.name: draw(st.floats(0, 50)) for pod in pods if draw(st.booleans())},
        immortal={pod.name for pod in pods if draw(st.integers(0, 4)) == 0},
    )  # fmt: skip


@st.composite
def pods_of(draw: st.DrawFn, name: str) -> Pod:
    asked, grace = draw(st.integers(-60, 0)), draw(st.integers(1, 90))
    ends = draw(st.booleans()) and draw(st.booleans())
    return a_pod(
        name, priority=draw(st.sampled_from([None, -10, -5, 0, 9, 10, 1_000, 2_000_000_000])),
        grace_seconds=draw(st.sampled_from([None, -3, 0, 1, 5, 30, 90])), phase=draw(st.sampled_from(PHASES)),
        owners=owned_by(draw(st.sampled_from(["ReplicaSet", "DaemonSet"]))),
        deletion_timestamp=NOW + asked + grace if ends else None, deletion_grace_seconds=grace if ends else None,
    )  # fmt: skip


def a_run_of(world: World, late: list[tuple[float, Pod]]) -> Machine:
    machine = Machine(
        world.order, world.pods, world.available, world.known_at, immortal=world.immortal, seconds=world.seconds
    )
    for instant, pod in sorted(late, key=lambda each: each[0]):
        machine.look(until=world.known_at + instant)
        machine.add(pod)
    machine.run()
    return machine


@given(world=worlds(), late=st.lists(st.tuples(st.floats(0, 60), pods_of("late")), max_size=1))
def test_order_grace_and_end_of_any_shutdown(world: World, late: list[tuple[float, Pod]]) -> None:
    machine = a_run_of(world, late)
    by_name = {pod.name: pod for pod in [*world.pods, *(pod for _, pod in late)]}
    waves = {name: world.order.wave_of(pod) for name, pod in by_name.items()}
    periods = machine.steps[0].shutdown.periods
    # All of it is over in time.
    assert machine.over <= max(world.available, world.known_at, *(instant + world.known_at for instant, _ in late), 0)
    assert sum(periods) <= max(world.available - (world.known_at if world.known_at >= 1 else 0), 0)
    # No pod is deleted twice: the grace of terminating ones is shortened once, if at all.
    assert all(times == 1 for times in Counter(name for name, _, _ in machine.told).values())
    for name, instant, grace in machine.told:
        pod = by_name[name]
        assert 1 <= grace <= max(grace_of(pod) if pod.deletion_timestamp is None else 90, 1)
        # Several may come and go in the same instant.
        current = [each.number for each in machine.ended if machine.began[each.number] <= instant <= each.at]
        assert grace <= max(1, *(periods[number] for number in current))
        assert ignored_reason(pod, machine.steps[0].shutdown) is None
        # None before its range.
        assert waves[name] <= max(current)
    # One range after the other, each within its period and without a gap while there are pods.
    began, ended = list(machine.began.items()), machine.ended
    assert began == sorted(began)
    assert [number for number, _ in began] == [each.number for each in ended]
    for (number, instant), over in zip(began, ended, strict=True):
        assert over.at >= instant
        assert over.at - instant <= max(periods[number], 0) + 1e-6 or any(
            instant <= world.known_at + at for at, _ in late
        )
    for before, (_, instant) in zip(ended, began[1:], strict=False):
        assert instant == before.at


@given(world=worlds())
def test_every_pod_whose_turn_came_was_deleted_or_terminated(world: World) -> None:
    machine = a_run_of(world, [])
    deleted = {name for name, _, _ in machine.told}
    for pod in world.pods:
        in_turn = world.order.wave_of(pod) in machine.began and ignored_reason(pod, machine.steps[0].shutdown) is None
        if pod.deletion_timestamp is None:
            assert (pod.name in deleted) == in_turn
        elif not in_turn:
            assert pod.name not in deleted


@given(world=worlds())
def test_a_rehearsal_is_what_happens_with_pods_that_take_their_grace(world: World) -> None:
    # A pod whose grace has ended before and that is still there may stay for ever.
    stuck = {pod.name for pod in world.pods if pod.deletion_timestamp is not None and pod.deletion_timestamp <= NOW}
    machine = Machine(world.order, world.pods, world.available, immortal=stuck)
    machine.run()
    rehearsal = rehearse(world.order, world.pods, world.available, NOW)
    rehearsed = [
        (pod.pod.name, pod.at, pod.grace) for each in rehearsal.ranges for pod in each.pods if pod.at is not None
    ]
    assert sorted(rehearsed) == sorted(machine.told)
    assert {each.number: each.begins for each in rehearsal.ranges if each.begins is not None} == machine.began
    assert [each.ends for each in rehearsal.ranges if each.ends is not None] == [each.at for each in machine.ended]
    assert rehearsal.over == machine.over
    # It is a bound: no pod that ends sooner makes anything later.
    sooner = Machine(world.order, world.pods, world.available, immortal=stuck, seconds=world.seconds)
    sooner.run()
    assert sooner.over <= rehearsal.over + 1e-6
    assert all(
        instant <= machine.began[number] + 1e-6 for number, instant in sooner.began.items() if number in machine.began
    )


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_a_fraction_of_a_second_never_means_a_second_delete(fraction: float) -> None:
    """The server marks a pod from the last whole second; what it marks must not look as if the pod were too late."""
    order = by_priority([(0, 60.0), (10, 7.0)])
    pods = [a_pod(f"p{number}", grace_seconds=grace, priority=number) for number, grace in enumerate([3, 60, 600, 59])]
    rehearsal = rehearse(order, [*pods, a_pod("q", priority=10, grace_seconds=600)], 67, NOW + fraction)
    assert [pod.grace for each in rehearsal.ranges for pod in each.pods] == [3, 60, 60, 59, 7]
    assert [each.begins for each in rehearsal.ranges] == [0, 60]
