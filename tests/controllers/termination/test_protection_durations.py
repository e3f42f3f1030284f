"""Protected pods from one plan to the next: since when each blocks the drain, how that ends, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_node, a_pod

from gracectl.controllers.termination.statistics import ProtectionDurations
from gracectl.model import names
from gracectl.model.pod import Pod
from gracectl.policy.plan import NodeView, Plan
from gracectl.policy.planner import plan
from gracectl.policy.protected_pods import ProtectedPod, ProtectionEnd, ProtectionUpdate, update_protection
from gracectl.policy.settings import PolicySettings, ProtectionSettings

CAPPED = PolicySettings(protection=ProtectionSettings(maximum_seconds=7200.0))


def job(value: str | None = "2h", **fields: Any) -> Pod:
    """A pod of `NOW - 3600`."""
    return a_pod("job", annotations={} if value is None else {names.DO_NOT_DISRUPT: value}, **fields)


def holder(**fields: Any) -> Pod:
    return a_pod("job", labels={names.DO_NOT_EVICT: "true"}, **fields)


def planned(*pods: Pod, at: float = NOW, **view: Any) -> Plan:
    node = a_node(deletion_timestamp=NOW - 60)
    return plan(NodeView(node=node, pods=pods, budgets={}, cordoned_at=NOW - 60, **view), at)


def begun(pod: Pod, **view: Any) -> Mapping[str, ProtectedPod]:
    return update_protection({}, planned(pod, **view), NOW, NOW - 60).protected_pods


def lapses(changes: ProtectionUpdate) -> list[ProtectionEnd]:
    return [ended.how for ended in changes.ended]


@pytest.mark.parametrize("pod", [job(), job("true"), job("nonsense"), holder()])
def test_a_protected_pod_stays_as_long_as_nothing_changes(pod: Pod) -> None:
    first = update_protection({}, planned(pod), NOW, NOW - 60)
    [protected] = first.begun
    assert (protected.pod, protected.since, protected.delete_at, protected.is_leaving) == (pod, NOW, None, False)
    again = update_protection(first.protected_pods, planned(pod, at=NOW + 60), NOW + 60, NOW - 60)
    assert again == ProtectionUpdate(first.protected_pods, (), ())


@pytest.mark.parametrize(("created", "since"), [(NOW - 3600, NOW - 60), (NOW - 30, NOW - 30)])
def test_at_the_first_plan_it_has_blocked_since_the_termination_began(created: float, since: float) -> None:
    """After a restart, too."""
    protected_pods = update_protection(None, planned(job(created=created)), NOW, NOW - 60).protected_pods
    assert [protected.since for protected in protected_pods.values()] == [since]


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        (job(), job(), ProtectionEnd.ELAPSED),
        (job(), job(deletion_timestamp=NOW + 3700.0), ProtectionEnd.LEFT),
        (job(), job(phase="Succeeded"), ProtectionEnd.LEFT),
        (job(), None, ProtectionEnd.LEFT),
        (job(), job("90m"), ProtectionEnd.ELAPSED),
        (job("3h"), job("90m"), ProtectionEnd.LIFTED),
        (job("3h"), job(None), ProtectionEnd.LIFTED),
        (job("true"), job(None), ProtectionEnd.LIFTED),
        (job("nonsense"), job("1h"), ProtectionEnd.LIFTED),
        (holder(), job(None), ProtectionEnd.LIFTED),
        (holder(), None, ProtectionEnd.LEFT),
    ],
)
def test_how_it_has_ended(before: Pod, after: Pod | None, how: ProtectionEnd) -> None:
    """An hour later."""
    later = NOW + 3600
    changes = update_protection(begun(before), planned(*(pod for pod in (after,) if pod), at=later), later, NOW - 60)
    assert lapses(changes) == [how]
    assert changes.protected_pods == {}
    assert changes.begun == ()


@pytest.mark.parametrize("value", ["true", "10h", "nonsense"])
def test_the_administrators_maximum_is_a_time_that_elapses(value: str) -> None:
    changes = update_protection(
        begun(job(value), settings=CAPPED), planned(job(value), at=NOW + 3600, settings=CAPPED), NOW + 3600, NOW - 60
    )
    assert lapses(changes) == [ProtectionEnd.ELAPSED]


@pytest.mark.parametrize("after", [job("true"), job("true", deletion_timestamp=NOW + 70.0), None])
def test_a_pod_whose_time_for_the_deadline_has_come_was_deleted_for_it(after: Pod | None) -> None:
    """Whether the plan is made before the deletion, before the pod is gone, or later."""
    deadline, now = NOW + 70, NOW + 40
    protected_pods = begun(job("true"), deadline=deadline)
    assert [protected.delete_at for protected in protected_pods.values()] == [deadline - 30]
    pods = () if after is None else (after,)
    assert lapses(update_protection(protected_pods, planned(*pods, at=now, deadline=deadline), now, NOW - 60)) == [
        ProtectionEnd.DEADLINE
    ]


def test_a_deadline_that_was_tightened_to_now_deletes_as_well() -> None:
    changes = update_protection(
        begun(job("true")), planned(job("true"), at=NOW + 5, deadline=NOW + 5), NOW + 5, NOW - 60
    )
    assert lapses(changes) == [ProtectionEnd.DEADLINE]


def test_a_pod_that_is_deleted_long_before_the_deadline_has_left() -> None:
    deadline = NOW + 3600
    changes = update_protection(
        begun(job("true"), deadline=deadline),
        planned(job("true", deletion_timestamp=NOW + 40.0), at=NOW + 10, deadline=deadline),
        NOW + 10,
        NOW - 60,
    )
    assert lapses(changes) == [ProtectionEnd.LEFT]


def test_do_not_evict_holds_until_the_pod_is_gone() -> None:
    protected_pods = begun(holder())
    leaving = holder(deletion_timestamp=NOW + 40.0, deletion_grace_seconds=30)
    changes = update_protection(protected_pods, planned(leaving, at=NOW + 10), NOW + 10, NOW - 60)
    [protected] = changes.protected_pods.values()
    assert (protected.is_leaving, protected.since, changes.begun, changes.ended) == (True, NOW, (), ())
    assert lapses(update_protection(changes.protected_pods, planned(at=NOW + 40), NOW + 40, NOW - 60)) == [
        ProtectionEnd.LEFT
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (job("2h"), job("3h")),
        (job("3h"), job("2h")),
        (job("2h"), job("true")),
        (job("nonsense"), job("2h")),
    ],
)
def test_another_end_is_news_of_the_same_protected_pod(before: Pod, after: Pod) -> None:
    changes = update_protection(begun(before), planned(after, at=NOW + 10), NOW + 10, NOW - 60)
    assert [protected.since for protected in changes.begun] == [NOW]
    assert changes.ended == ()


@pytest.mark.parametrize(("before", "after"), [(job("2h"), job("120m")), (job("true"), job("nonsense"))])
def test_the_same_end_in_other_words_is_none(before: Pod, after: Pod) -> None:
    changes = update_protection(begun(before), planned(after, at=NOW + 10), NOW + 10, NOW - 60)
    assert (changes.begun, changes.ended) == ((), ())


def test_another_kind_is_another_protection() -> None:
    both = msgspec.structs.replace(holder(), annotations={names.DO_NOT_DISRUPT: "true"})
    changes = update_protection(begun(both), planned(job("true"), at=NOW + 10), NOW + 10, NOW - 60)
    assert lapses(changes) == [ProtectionEnd.LIFTED]
    [protected] = changes.begun
    assert (protected.protection.kind, protected.since) == ("do-not-disrupt", NOW + 10)


def test_a_pod_without_protection_is_not_listed() -> None:
    assert update_protection({}, planned(a_pod("web"), job("30m")), NOW, NOW - 60) == ProtectionUpdate({}, (), ())


def test_how_long_each_has_stood_is_counted_by_kind_and_end() -> None:
    times = ProtectionDurations()
    times.note("do-not-disrupt", ProtectionEnd.ELAPSED, 3600)
    times.note("do-not-disrupt", ProtectionEnd.ELAPSED, 0.5)
    times.note("do-not-disrupt", ProtectionEnd.LEFT, 10 * 86_400)
    seen = times.statistics()
    assert len(seen) == 2 * len(ProtectionEnd)
    assert seen["do-not-disrupt", ProtectionEnd.ELAPSED].total == 3600.5
    assert seen["do-not-disrupt", ProtectionEnd.ELAPSED].counts == (1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
    assert seen["do-not-disrupt", ProtectionEnd.LEFT].counts[-1] == 1
    assert sum(seen["do-not-evict", ProtectionEnd.LEFT].counts) == 0
