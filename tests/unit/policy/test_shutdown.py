"""A machine's shutdown: who is told when, with how much grace, and who is waited for; the KEP's own examples first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_pod, owned_by
from support.shutdowns import KEP, Machine, at, told

from gracectl.model import names
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import granted
from gracectl.policy.settings import ShutdownPeriods
from gracectl.policy.shutdown import RangeEnd, RangeEnded, RangeStarted, ShutdownView, begin, ignored_reason, step
from gracectl.policy.waves import DEFAULT_ORDER, DrainOrder, by_priority

PRIORITIES = {"regular": None, "c": 1_000, "b": 10_000, "a": 100_000}
"""The KEP's custom priority classes."""
SLOW = 3600


def of_all_classes(grace: int = SLOW) -> list[Pod]:
    return [a_pod(name, priority=priority, grace_seconds=grace) for name, priority in PRIORITIES.items()]


def two_totals(total: str, critical: str | None = None) -> DrainOrder:
    order = ShutdownPeriods(shutdown_grace_period=total, shutdown_grace_period_critical_pods=critical).order()
    assert order is not None
    return order


# -- the examples of the KEP -------------------------------------------------------------------------------------------


def test_the_first_table_of_the_kep() -> None:
    machine = Machine(KEP, of_all_classes())
    machine.run()
    assert machine.began == {0: 0, 1: 60, 2: 180, 3: 360}
    assert machine.told == [("regular", 0, 60), ("c", 60, 120), ("b", 180, 180), ("a", 360, 300)]
    assert machine.over == 660


def test_the_two_totals_of_the_kep() -> None:
    """300 s, of which 120 s are the critical pods'."""
    pods = [*of_all_classes(), a_pod("dns", priority=2_000_000_000, grace_seconds=SLOW)]
    machine = Machine(two_totals("300s", "120s"), pods)
    machine.run()
    assert machine.told == [("a", 0, 180), ("b", 0, 180), ("c", 0, 180), ("regular", 0, 180), ("dns", 180, 120)]
    assert machine.over == 300


# -- ranges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "began", "over"), [
    (["a"], {3: 0}, 300), (["regular", "a"], {0: 0, 3: 60}, 360), (["c"], {1: 0}, 120),
    (["c", "b"], {1: 0, 2: 120}, 300), ([], {}, 0),
])  # fmt: skip
def test_a_range_without_a_pod_is_skipped_at_once(there: list[str], began: dict[int, float], over: float) -> None:
    machine = Machine(KEP, [pod for pod in of_all_classes() if pod.name in there])
    machine.run()
    assert (machine.began, machine.over) == (began, over)


def test_a_range_is_over_when_its_last_pod_is_gone() -> None:
    pods = [a_pod("x", grace_seconds=5), a_pod("y", grace_seconds=20), a_pod("c", priority=1_000, grace_seconds=7)]
    machine = Machine(KEP, pods)
    machine.run()
    assert machine.told == [("x", 0, 5), ("y", 0, 20), ("c", 20, 7)]
    assert machine.over == 27
    assert [each.ending for each in machine.ended] == [RangeEnd.EMPTY, RangeEnd.EMPTY]


def test_pods_that_ignore_their_grace_do_not_hold_the_next_range() -> None:
    machine = Machine(KEP, of_all_classes(grace=10), immortal={"regular", "b"})
    machine.run()
    assert machine.began == {0: 0, 1: 60, 2: 70, 3: 250}
    assert machine.over == 260
    assert [([pod.name for pod in each.left], each.seconds, each.ending) for each in machine.ended] == [
        (["regular"], 60, RangeEnd.PERIOD), ([], 10, RangeEnd.EMPTY), (["b"], 180, RangeEnd.PERIOD),
        ([], 10, RangeEnd.EMPTY),
    ]  # fmt: skip
    assert len(machine.told) == 4  # who is left behind is not told again, least of all to end at once


def test_the_default_waves_take_class_and_owner_for_their_ranges() -> None:
    """They have no periods, so all are deleted at once."""
    pods = [a_pod("web"), a_pod("logs", owners=owned_by("DaemonSet"))]
    machine = Machine(DEFAULT_ORDER, pods, available=10)
    machine.run()
    assert machine.told == [("logs", 0, 1), ("web", 0, 1)]


# -- grace -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "granted"), [(600, 60), (60, 60), (59, 59), (1, 1), (0, 1), (None, 30), (-7, 1)])
def test_a_pod_has_its_own_grace_within_the_period(own: int | None, granted: int) -> None:
    assert told(KEP, [a_pod("web", grace_seconds=own)]) == {"web": granted}


def test_a_range_without_a_period_is_told_with_a_second_and_not_waited_for() -> None:
    order = by_priority([(0, 0.0), (1_000, 10.0), (10_000, 0.0)])
    machine = Machine(order, of_all_classes(), available=11)
    machine.run()
    assert machine.told == [("c", 0, 10), ("regular", 0, 1), ("a", 10, 1), ("b", 10, 1)]
    assert (machine.began, machine.over) == ({0: 0, 1: 0, 2: 10}, 10)


def test_the_second_form_without_critical_seconds_tells_critical_pods_last_and_does_not_wait() -> None:
    pods = [a_pod("web", grace_seconds=20), a_pod("dns", priority=2_000_000_000, grace_seconds=SLOW)]
    machine = Machine(two_totals("60s"), pods)
    machine.run()
    assert machine.told == [("web", 0, 20), ("dns", 20, 1)]
    assert machine.over == 20


def test_no_pod_is_deleted_when_the_time_is_over() -> None:
    """Those of a last range without a period neither, if the others have used up everything."""
    pods = [a_pod("web", grace_seconds=SLOW), a_pod("dns", priority=2_000_000_000)]
    machine = Machine(two_totals("60s"), pods)
    machine.run()
    assert machine.told == [("web", 0, 60)]
    assert [pod.name for pod in machine.steps[-1].left] == ["dns"]


def test_a_pod_of_a_range_without_a_period_has_no_more_grace_in_a_later_one() -> None:
    """It could not be deleted in time: it has a second all the same."""
    order = by_priority([(0, 0.0), (1_000, 100.0)])
    pods = (a_pod("web", grace_seconds=SLOW), a_pod("c", priority=1_000, grace_seconds=SLOW))
    first = step(begin(order, 100, at(0, *pods)), at(0, *pods))
    later = step(first.shutdown, at(50, *pods))
    assert {notice.pod.name: notice.grace for notice in later.deletions} == {"web": 1, "c": 50}
    assert [pod.name for pod in later.awaited] == ["c"]


def test_instants_between_seconds_promise_nothing_beyond_the_end_of_the_range() -> None:
    """A shutdown that begins 0.7 s after a whole second. The server marks a pod in whole seconds, from the last one."""
    pod = a_pod("web", grace_seconds=SLOW)
    seen = ShutdownView((pod,), 0.0, NOW + 0.7)
    first = step(begin(KEP, 660, seen), seen)
    (notice,) = first.deletions
    assert (notice.grace, notice.deadline) == (60, NOW + 60)
    late = step(first.shutdown, ShutdownView((pod, a_pod("late", grace_seconds=SLOW)), 20.5, NOW + 21.2))
    assert {each.pod.name: (each.grace, each.deadline) for each in late.deletions}["late"] == (39, NOW + 60)


@pytest.mark.parametrize("elapsed", [0.00001, 0.003, 0.9])
def test_the_moment_that_passes_before_the_first_look_costs_no_range_a_second(elapsed: float) -> None:
    assert begin(KEP, 660, at(elapsed)).periods == (60, 120, 180, 300)
    assert begin(KEP, 66, at(elapsed)).periods == (6, 12, 18, 30)


@pytest.mark.parametrize("fraction", [0.9994, 0.9996, 0.99999, 0.0001])
def test_a_beginning_just_beside_a_whole_second_grants_no_second_more_than_the_period(fraction: float) -> None:
    seen = ShutdownView((a_pod("web", grace_seconds=SLOW),), 0.0, NOW + fraction)
    (notice,) = step(begin(KEP, 660, seen), seen).deletions
    assert notice.grace == 60
    assert granted(notice.pod, notice.deadline, max(NOW + fraction, notice.begins)) == 60


def test_the_pods_to_delete_are_the_same_at_every_look_until_the_range_is_over() -> None:
    pods = (a_pod("web", grace_seconds=SLOW),)
    first = step(begin(KEP, 660, at(0, *pods)), at(0, *pods))
    second = step(first.shutdown, at(13.37, *pods))
    assert second.events == ()
    fixed = [(notice.begins, notice.deadline) for notice in (*first.deletions, *second.deletions)]
    assert fixed == [(NOW, NOW + 60)] * 2
    assert [notice.grace for notice in second.deletions] == [47]


# -- pods that terminate already -----------------------------------------------------------------------------------


def terminating(name: str, asked: float, grace: int, **fields: Any) -> Pod:
    """Deleted by another client `asked` seconds after NOW, with this grace."""
    return a_pod(
        name, grace_seconds=fields.pop("own", grace), deletion_timestamp=NOW + asked + grace,
        deletion_grace_seconds=grace, **fields,
    )  # fmt: skip


def test_a_pod_that_terminates_in_time_is_not_deleted_again_but_waited_for() -> None:
    machine = Machine(KEP, [terminating("web", -10, 30), a_pod("c", priority=1_000)])
    machine.run()
    assert machine.told == [("c", 20, 30)]


def test_a_pod_that_would_terminate_beyond_the_end_of_its_range_is_shortened_once() -> None:
    machine = Machine(KEP, [terminating("web", -10, 600)])
    machine.run()
    assert machine.told == [("web", 0, 60)]
    assert machine.over == 60


def test_a_pod_that_a_second_delete_would_kill_is_left_alone() -> None:
    """A server counts a shorter grace from the first DELETE (policy.deadlines.shorten_before)."""
    machine = Machine(KEP, [terminating("web", -300, 600)])
    machine.run()
    assert machine.told == []
    assert machine.over == 60  # it is waited for, and does not delay the end


def test_a_pod_that_is_stuck_is_waited_for_until_its_period_is_over() -> None:
    """Its grace has ended minutes ago: a drain would pass over it, but what still runs is killed with the machine."""
    machine = Machine(KEP, [terminating("web", -600, 30), a_pod("c", priority=1_000)], immortal={"web"})
    machine.run()
    assert machine.began == {0: 0, 1: 60}
    assert machine.told == [("c", 60, 30)]


# -- the node's own deadline ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline", "granted"), [(None, 60), (1000, 60), (60, 60), (45, 45), (45.9, 45), (0.5, 1), (0, 1), (-100, 1)]
)
def test_no_grace_reaches_beyond_the_deadline_of_the_node(deadline: float | None, granted: int) -> None:
    by = None if deadline is None else NOW + deadline
    assert told(KEP, [a_pod("web", grace_seconds=SLOW)], node_deadline=by) == {"web": granted}


def test_a_deadline_that_moves_earlier_in_mid_shutdown_makes_pods_hurry() -> None:
    machine = Machine(KEP, [a_pod("web", grace_seconds=SLOW), a_pod("c", priority=1_000, grace_seconds=SLOW)])
    machine.look(until=10)
    machine.node_deadline = NOW + 40
    machine.run()
    # The period is that of the range all the same; who is told later has a second.
    assert machine.told == [("web", 0, 60), ("web", 10, 30), ("c", 40, 1)]


# -- who comes late ----------------------------------------------------------------------------------------------------


def test_a_late_pod_of_the_range_or_an_earlier_one_has_what_is_left_of_the_period() -> None:
    machine = Machine(KEP, [a_pod("c", priority=1_000, grace_seconds=SLOW), a_pod("a", priority=100_000)])
    machine.look(until=30)
    machine.add(a_pod("early", grace_seconds=SLOW), a_pod("same", priority=2_000, grace_seconds=SLOW))
    machine.add(a_pod("later", priority=10_000, grace_seconds=SLOW))
    machine.run()
    assert machine.told == [("c", 0, 120), ("early", 30, 90), ("same", 30, 90), ("later", 120, 180), ("a", 300, 30)]


def test_a_late_pod_is_waited_for_within_the_period() -> None:
    machine = Machine(KEP, [a_pod("c", priority=1_000, grace_seconds=20), a_pod("a", priority=100_000)])
    machine.look(until=10)
    machine.add(a_pod("early", grace_seconds=50))
    machine.run()
    assert machine.began[3] == 60


def test_a_pod_not_deleted_in_its_range_is_deleted_in_the_next_one_but_not_waited_for() -> None:
    pods = (a_pod("web", grace_seconds=SLOW), a_pod("c", priority=1_000, grace_seconds=SLOW))
    first = step(begin(KEP, 660, at(0, *pods)), at(0, *pods))
    second = step(first.shutdown, at(60, *pods))
    assert {notice.pod.name: notice.grace for notice in second.deletions} == {"web": 120, "c": 120}
    assert [pod.name for pod in second.awaited] == ["c"]
    assert step(second.shutdown, at(70, pods[0])).shutdown.is_over


def test_a_daemon_pod_that_replaces_one_that_was_told_is_left_alone() -> None:
    machine = Machine(KEP, [a_pod("logs-1", owners=owned_by("DaemonSet"), grace_seconds=5), a_pod("web")])
    machine.look(until=5)
    machine.add(a_pod("logs-2", owners=owned_by("DaemonSet"), created=NOW + 5))
    machine.run()
    assert machine.told == [("logs-1", 0, 5), ("web", 0, 30)]
    assert machine.over == 30


def test_a_daemon_pod_of_before_the_shutdown_is_told_even_if_it_is_seen_late() -> None:
    machine = Machine(KEP, [a_pod("web")])
    machine.look(until=5)
    machine.add(a_pod("logs-1", owners=owned_by("DaemonSet"), created=NOW - 1))
    machine.run()
    assert ("logs-1", 5, 30) in machine.told


def test_a_daemon_pod_that_was_there_when_the_pods_became_known_replaces_no_pod() -> None:
    """Creation has whole seconds, and no pod had been deleted by then."""
    assert told(KEP, [a_pod("logs-1", owners=owned_by("DaemonSet"), created=NOW)]) == {"logs-1": 30}


# -- who is passed over ------------------------------------------------------------------------------------------------


def test_a_pod_of_a_node_of_another_api_group_is_deleted() -> None:
    pod = a_pod("robot", owners=owned_by(names.NODE_KIND, group="robots.example.com"))
    assert ignored_reason(pod, begin(KEP, 660, at(0, pod))) is None


@pytest.mark.parametrize(("fields", "reason"), [
    ({"annotations": {names.MIRROR_POD: "x"}}, "static pod: it ends with its machine"),
    ({"owners": owned_by(names.NODE_KIND)}, "static pod: it ends with its machine"),
    ({"phase": "Succeeded"}, "finished: its phase is Succeeded"),
    ({"phase": "Failed"}, "finished: its phase is Failed"),
    ({"uid": "own"}, "the node agent itself: it ends with its machine"),
])  # fmt: skip
def test_a_skipped_pod_is_neither_deleted_nor_waited_for(fields: dict[str, Any], reason: str) -> None:
    pod = a_pod("odd", **fields)
    seen = at(0, pod)
    shutdown = begin(KEP, 660, seen, "own")
    assert ignored_reason(pod, shutdown) == reason
    decided = step(shutdown, seen)
    assert (decided.shutdown.is_over, decided.deletions, decided.events, decided.left) == (True, (), (), ())


def test_tolerating_a_cordon_or_protection_helps_no_pod_when_the_machine_goes_down() -> None:
    pod = a_pod("web", annotations={names.DO_NOT_DISRUPT: "true"}, owners=owned_by("DaemonSet"))
    assert told(KEP, [pod]) == {"web": 30}


def test_two_agents_on_a_machine_do_not_wait_for_each_other() -> None:
    ours, theirs = owned_by("DaemonSet", "gracectl-agent"), owned_by("DaemonSet", "network")
    pods = (a_pod("old", owners=ours), a_pod("new", owners=ours), a_pod("net", owners=theirs), a_pod("web"))
    first = begin(KEP, 660, at(0, *pods), own_uid=pods[0].uid)
    assert [notice.pod.name for notice in step(first, at(0, *pods)).deletions] == ["net", "web"]
    assert ignored_reason(pods[1], first) == "another node agent, as while they are updated: it ends with its machine"
    late = a_pod("newer", owners=ours, created=NOW + 5)
    assert [pod.name for pod in step(first, at(9, *pods, late)).awaited] == ["net", "web"]


def test_outside_of_a_pod_no_pod_is_the_agent() -> None:
    assert ignored_reason(a_pod("web", uid=""), begin(KEP, 660, at(0))) is None


# -- too little time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("available", "periods"), [
    (660, [60, 120, 180, 300]), (100_000, [60, 120, 180, 300]), (330, [30, 60, 90, 150]), (330.9, [30, 60, 90, 150]),
    (100, [10, 18, 27, 45]), (5, [1, 1, 1, 2]), (1, [1, 0, 0, 0]), (0.5, [0, 0, 0, 0]), (0, [0, 0, 0, 0]),
    (-1, [0, 0, 0, 0]),
])  # fmt: skip
def test_too_little_time_is_shared_in_proportion_in_whole_seconds(available: float, periods: list[float]) -> None:
    shutdown = begin(KEP, available, at(0))
    assert list(shutdown.periods) == periods
    machine = Machine(KEP, of_all_classes(), available=available)
    machine.run()
    assert machine.over <= max(available, 0)


def test_pods_that_became_known_late_share_what_is_left() -> None:
    machine = Machine(KEP, of_all_classes(), available=660, known_at=330)
    machine.run()
    assert machine.began == {0: 330, 1: 360, 2: 420, 3: 510}
    assert machine.over == 660


def test_a_step_that_comes_late_shortens_the_last_ranges_and_not_the_end() -> None:
    """The loop of the program stood still for 400 s: the second range has begun late, and the last has what is left."""
    pods = of_all_classes()
    machine = Machine(KEP, pods, immortal={"b"})
    machine.look(until=0)
    machine.elapsed = 400
    machine.run()
    assert machine.began == {0: 0, 1: 400, 2: 520}
    assert machine.over == 660
    assert machine.ended[-1].ending is RangeEnd.TIME
    assert machine.told[-1] == ("b", 520, 140)


# -- clocks and news ---------------------------------------------------------------------------------------------------


def test_when_the_servers_clock_jumps_periods_run_on() -> None:
    pod = a_pod("web", grace_seconds=SLOW)
    first = step(begin(KEP, 660, at(0, pod)), at(0, pod))
    jumped = step(first.shutdown, ShutdownView((pod,), 10, NOW + 10 + 100))
    assert jumped.shutdown.ends == 60
    assert [(notice.deadline, notice.grace) for notice in jumped.deletions] == [(NOW + 160, 50)]


def test_what_begins_and_ends_is_told_in_its_order() -> None:
    pods = [a_pod("web"), a_pod("a", priority=100_000, grace_seconds=SLOW)]
    first = step(begin(KEP, 660, at(0, *pods)), at(0, *pods))
    (news,) = first.events
    assert isinstance(news, RangeStarted)
    assert (news.number, news.wave.name, news.at, news.seconds) == (0, "priority below 1000", 0, 60)
    assert [pod.name for pod in news.pods] == ["web"]
    second = step(first.shutdown, at(12, pods[1]))
    over, began = second.events
    assert isinstance(over, RangeEnded)
    assert isinstance(began, RangeStarted)
    assert (over.number, over.at, over.seconds, over.left, over.ending) == (0, 12, 12, (), RangeEnd.EMPTY)
    assert (began.number, began.at, began.seconds) == (3, 12, 300)
    assert msgspec.structs.replace(second.shutdown, left_behind=frozenset()).current == 3
