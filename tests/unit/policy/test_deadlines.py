"""The deadline of a node, and what it means for each pod: the tables, and a life that keeps them, second by second."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_node, a_pod

from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import LATEST, format_time
from gracectl.policy.deadlines import (
    Deadline,
    deadline_of,
    delete_at,
    earliest_deadline,
    ends_at,
    grace_of,
    granted,
    invalid_deadline,
    latest_shortening,
    parse_grace_period,
    was_shortened,
)
from gracectl.policy.plan import NodeView, Outcome
from gracectl.policy.planner import plan
from gracectl.policy.settings import NodeGroup, PolicySettings

D = NOW + 900
GROUPS = PolicySettings(
    node_groups=(
        NodeGroup(LabelSelector({"pool": "batch"}), termination_grace_seconds=3600.0),
        NodeGroup(LabelSelector({"pool": "free"})),
        NodeGroup(LabelSelector(), termination_grace_seconds=600.0),
    )
)


def at(instant: float) -> dict[str, Any]:
    return {"annotations": {names.TERMINATION_TIMESTAMP: format_time(instant)}}


def a_claim(**fields: Any) -> NodeClaim:
    return NodeClaim(name="c", uid="uid-c", **{"deletion_timestamp": NOW, **fields})


def terminating(first: float, grace: int, own: int | None = None) -> Pod:
    """A pod that was deleted at `first` with `grace`; `own` is what its spec asks for."""
    return a_pod(
        deletion_timestamp=first + grace, deletion_grace_seconds=grace, grace_seconds=grace if own is None else own
    )


# -- the deadline of a node --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0.0), ("90s", 90.0), ("15m", 900.0), ("1h30m", 5400.0), ("1h0m30s", 3630.0)]
)
def test_a_grace_period_is_read_as_its_definition_has_it(text: str, seconds: float) -> None:
    assert parse_grace_period(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "15", "-1h", "+1h", "1.5h", "1d", "1h 30m", "100ms", "Never", "15m\n"])
def test_what_is_no_grace_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no termination grace period"):
        parse_grace_period(text)


@pytest.mark.parametrize(("node", "claim", "deadline"), [
    # the claim's own grace period wins over the group's, and its deletion starts the clock
    ({"deletion_timestamp": NOW}, None, Deadline(NOW + 600, 600.0)),
    ({"deletion_timestamp": NOW, "labels": {"pool": "batch"}}, None, Deadline(NOW + 3600, 3600.0)),
    ({"deletion_timestamp": NOW, "labels": {"pool": "free"}}, None, None),
    ({"deletion_timestamp": NOW + 50}, {"termination_grace_period": "2h"}, Deadline(NOW + 7200, 7200.0)),
    ({"deletion_timestamp": NOW + 50}, {"termination_grace_period": "0s"}, Deadline(NOW, 0.0)),
    ({"deletion_timestamp": NOW + 50}, {}, Deadline(NOW + 600, 600.0)),
    ({"deletion_timestamp": NOW, "labels": {"pool": "free"}}, {}, None),
    # a claim that could not be deleted yet has no clock of its own
    ({"deletion_timestamp": NOW}, {"deletion_timestamp": None}, Deadline(NOW + 600, 600.0)),
    # an invalid value forces nothing
    ({"deletion_timestamp": NOW}, {"termination_grace_period": "soon"}, None),
    ({"deletion_timestamp": NOW}, {"termination_grace_period": "99999999999h"}, None),
    # an annotation tightens and never loosens, wherever it stands
    ({"deletion_timestamp": NOW, **at(NOW + 60)}, None, Deadline(NOW + 60)),
    ({"deletion_timestamp": NOW, **at(NOW + 601)}, None, Deadline(NOW + 600, 600.0)),
    ({"deletion_timestamp": NOW}, at(NOW + 60), Deadline(NOW + 60)),
    ({"deletion_timestamp": NOW, **at(NOW + 50)}, at(NOW + 60), Deadline(NOW + 50)),
    ({"deletion_timestamp": NOW, **at(NOW - 60)}, None, Deadline(NOW - 60)),
    ({"deletion_timestamp": NOW, "labels": {"pool": "free"}, **at(NOW + 60)}, None, Deadline(NOW + 60)),
    # what we have written ourselves is where it comes from, not a manual change
    ({"deletion_timestamp": NOW, **at(NOW + 600)}, None, Deadline(NOW + 600, 600.0)),
])  # fmt: skip
def test_the_earliest_of_what_is_written_and_what_follows_counts(
    node: dict[str, Any], claim: dict[str, Any] | None, deadline: Deadline | None
) -> None:
    assert deadline_of(a_node(**node), None if claim is None else a_claim(**claim), GROUPS) == deadline


def test_a_deadline_has_whole_seconds_and_is_rounded_to_the_earlier_one() -> None:
    node = a_node(deletion_timestamp=NOW, annotations={names.TERMINATION_TIMESTAMP: "1970-01-12T13:47:00.9Z"})
    assert deadline_of(node, None, PolicySettings()) == Deadline(NOW + 20)
    assert deadline_of(a_node(deletion_timestamp=NOW + 0.9), None, GROUPS) == Deadline(NOW + 600, 600.0)


@pytest.mark.parametrize("text", [
    "", "soon", "2026-01-01", "2026-01-01 00:00:00", "900", "2026-13-01T00:00:00Z", "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59", "10000-01-01T00:00:00Z",
])  # fmt: skip
def test_an_unreadable_annotation_is_no_deadline_and_is_known_as_such(text: str) -> None:
    node = a_node(deletion_timestamp=NOW, annotations={names.TERMINATION_TIMESTAMP: text})
    assert deadline_of(node, None, PolicySettings()) is None
    assert deadline_of(node, None, GROUPS) == Deadline(NOW + 600, 600.0)
    assert invalid_deadline(node) == text


def test_a_grace_period_of_ages_ends_with_the_calendar() -> None:
    ages = a_claim(termination_grace_period="2562047h" * 40)
    assert deadline_of(a_node(deletion_timestamp=NOW), ages, GROUPS) is None  # longer than a duration can be
    longest = a_claim(termination_grace_period="2562047h", deletion_timestamp=LATEST - 1)
    assert deadline_of(a_node(deletion_timestamp=NOW), longest, GROUPS) == Deadline(LATEST, 2562047 * 3600.0)


def test_what_is_missing_or_can_be_read_is_not_unreadable() -> None:
    assert invalid_deadline(a_node()) is None
    assert invalid_deadline(a_claim(**at(NOW))) is None


def test_of_two_deadlines_the_tighter_counts_and_one_that_is_known_is_never_lost() -> None:
    early, late = Deadline(NOW), Deadline(NOW + 1, 600.0)
    assert earliest_deadline(early, late) == earliest_deadline(late, early) == early
    assert earliest_deadline(early, None) == earliest_deadline(None, early) == early
    assert earliest_deadline(None, None) is None


# -- one pod -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grace", "due", "given"), [(600, D - 600, 600), (30, D - 30, 30), (None, D - 30, 30), (-5, D - 1, 1), (0, D, 1)]
)
def test_a_pod_that_runs_is_deleted_its_grace_before_the_deadline(grace: int | None, due: float, given: int) -> None:
    pod = a_pod(grace_seconds=grace)
    assert delete_at(pod, D, NOW) == due
    assert granted(pod, D, due) == given
    assert granted(pod, D, due + 0.9) == given  # a part of a second is not taken from it


@pytest.mark.parametrize(("now", "given"), [(D - 899.5, 900), (D - 300, 300), (D - 0.2, 1), (D, 1), (D + 1000, 1)])
def test_a_pod_without_time_for_its_grace_gets_the_rest_or_a_second(now: float, given: int) -> None:
    pod = a_pod(grace_seconds=3600)
    due = delete_at(pod, D, now)
    assert due is not None
    assert due < now
    assert granted(pod, D, now) == given


def test_a_pod_that_ends_beyond_the_deadline_is_told_so_at_once() -> None:
    pod = terminating(NOW, 3600)
    due = delete_at(pod, D, NOW + 10.2)
    assert due is not None
    assert due <= NOW
    assert granted(pod, D, NOW + 10.2) == 890


def test_a_pod_that_is_deleted_early_gets_no_more_than_its_own_grace() -> None:
    """As at the beginning of a shutdown's range."""
    assert granted(a_pod(grace_seconds=30), D, NOW) == 30


def test_a_pod_that_has_been_ending_for_long_is_not_killed_for_a_deadline_that_is_far() -> None:
    """Counted from its first DELETE the 900 s that are left would be over, and a server would grant one second."""
    pod = terminating(NOW - 2000, 3600)
    assert delete_at(pod, D, NOW) == D
    assert granted(pod, D, NOW) is None
    assert granted(pod, D, D - 1) is None
    assert granted(pod, D, D) == 1


def test_until_when_a_grace_can_be_cut() -> None:
    pod = terminating(NOW, 3600)
    limit = NOW + 449.5  # 449 s from the first DELETE, 450 s to the deadline
    assert latest_shortening(pod, D) == limit
    assert granted(pod, D, limit - 0.001) == 451
    assert granted(pod, D, limit) is None
    assert delete_at(pod, D, limit) == D


@pytest.mark.parametrize("pod", [terminating(NOW, 900), terminating(NOW, 30), terminating(NOW - 5000, 30)])
def test_a_pod_that_ends_in_time_is_left_alone_until_the_deadline(pod: Pod) -> None:
    assert delete_at(pod, D, NOW) == D
    assert granted(pod, D, D - 0.001) is None
    assert granted(pod, D, D) == 1


@pytest.mark.parametrize("pod", [terminating(D + 10, 1, own=600), terminating(D - 1, 0, own=600)])
def test_nothing_is_shorter_than_a_second(pod: Pod) -> None:
    assert delete_at(pod, D, NOW) is None
    assert granted(pod, D, D + 5) is None


@pytest.mark.parametrize(("pod", "shortened", "ends"), [
    (terminating(NOW, 30), False, NOW + 30),
    (terminating(NOW, 30, own=600), False, NOW + 30),  # by hand: its own would have been over in time
    (terminating(NOW, 880, own=3600), True, D),  # by us, 20 s after its first DELETE
    (terminating(NOW, 900, own=3600), True, D),
    (terminating(NOW, 5, own=3600), True, NOW + 10),  # by hand: a grace of 5 s is not shortened after 5 s
])  # fmt: skip
def test_what_a_deletion_timestamp_says_of_a_grace_that_was_cut(pod: Pod, shortened: bool, ends: float) -> None:
    assert was_shortened(pod, D) == shortened
    assert ends_at(pod, D) == ends
    assert ends_at(pod) == pod.deletion_timestamp
    assert ends_at(a_pod(), D) is None


@given(first=st.integers(-5000, 899), grace=st.integers(0, 7200), waits=st.floats(0, 2000), runs=st.booleans())
def test_a_pod_is_due_when_a_deletion_has_an_effect(first: int, grace: int, waits: float, runs: bool) -> None:
    now = NOW + max(first, 0) + waits
    pod = a_pod(grace_seconds=grace) if runs else terminating(NOW + first, grace)
    due = delete_at(pod, D, now)
    if runs:
        assert due == D - grace
    else:
        assert (due is not None and due <= now) == (granted(pod, D, now) is not None)


# -- many pods, over time ----------------------------------------------------------------------------------------------


class Life:
    """A pod, the server that keeps it, and a kubelet whose containers use every second that they are granted.

    `strict`: the server as it is since 1.33, which grants one second instead of a grace that would be over.
    """

    def __init__(self, pod: Pod, *, strict: bool) -> None:
        self.pod = pod
        self.strict = strict
        self.killed_at = pod.deletion_timestamp if pod.deletion_timestamp is not None else math.inf
        self.deletions: list[tuple[float, int]] = []

    def delete(self, now: float, grace: int) -> None:
        self.deletions.append((now, grace))
        before, already = self.pod.deletion_timestamp, self.pod.deletion_grace_seconds
        first = math.floor(now) if before is None or already is None else before - already
        if already is not None and grace >= already:
            return
        ends = first + grace
        if self.strict and ends < now and before is not None:
            ends, grace = math.floor(now), min(grace, 1)
        self.pod = msgspec.structs.replace(self.pod, deletion_timestamp=ends, deletion_grace_seconds=grace)
        self.killed_at = min(self.killed_at, now + grace)


RUNNING = st.builds(
    lambda n, grace, daemon, protected: a_pod(
        f"pod-{n}",
        grace_seconds=grace,
        priority=2_000_000_000 if daemon else 0,
        annotations={names.DO_NOT_DISRUPT: "true"} if protected else {},
    ),
    st.integers(0, 10_000),
    st.one_of(st.none(), st.integers(-1, 3000)),
    st.booleans(),
    st.booleans(),
)
ENDING = st.builds(
    lambda n, ago, grace: a_pod(
        f"pod-{n}", grace_seconds=grace, deletion_timestamp=NOW - ago + grace, deletion_grace_seconds=grace
    ),
    st.integers(10_001, 20_000),
    st.integers(0, 2000),
    st.integers(1, 4000),
)


@given(
    pods=st.lists(st.one_of(RUNNING, ENDING), max_size=8, unique_by=lambda pod: pod.uid),
    start=st.floats(0, 1),
    period=st.integers(-10, 2000),
    late=st.floats(0, 3),
    strict=st.booleans(),
)
def test_no_pod_loses_time_without_need(pods: list[Pod], start: float, period: int, late: float, strict: bool) -> None:
    """No pod is evicted; each deletion is carried out `late` seconds after it was decided on."""
    now, deadline = NOW + start, NOW + period
    began = now
    lives = {
        pod.uid: Life(pod, strict=strict)
        for pod in pods
        if pod.deletion_timestamp is None or pod.deletion_timestamp > now
    }
    before = {uid: (life.pod, life.killed_at) for uid, life in lives.items()}
    for _ in range(100):
        view = NodeView(
            a_node(), tuple(life.pod for life in lives.values() if life.killed_at > now), budgets={},
            cordoned_at=began - 60, deadline=deadline,
        )  # fmt: skip
        decision = plan(view, now)
        assert decision.overdue == (now >= deadline)
        if decision.overdue:
            assert decision.drained
            assert all(entry.outcome in (Outcome.DELETE, Outcome.TERMINATING) for entry in decision.left)
        for entry in decision.pods:
            if entry.outcome is Outcome.DELETE:
                grace = granted(entry.pod, deadline, now + late)
                if grace is not None:
                    lives[entry.pod.uid].delete(now + late, grace)
        if decision.overdue:
            break
        assert decision.next_change is not None
        assert now < decision.next_change <= deadline
        ends = [life.killed_at for life in lives.values() if life.killed_at > now]
        now = min([decision.next_change, *ends])
    else:
        raise AssertionError("the deadline never came")
    for uid, life in lives.items():
        pod, would_end = before[uid]
        own = max(grace_of(pod), 1)
        assert life.killed_at <= max(deadline, began) + late + 1
        assert len(life.deletions) <= 3
        if pod.deletion_timestamp is not None:
            # What terminates anyway has until the deadline, if it would have had so long.
            assert life.killed_at >= min(would_end, deadline) - 1e-6
            continue
        asked_at, first_grace = life.deletions[0]
        due = max(began, deadline - grace_of(pod))
        assert due <= asked_at <= due + late + 1e-6
        if own <= deadline - asked_at:
            assert first_grace == own
        assert life.killed_at >= min(asked_at + own, deadline) - 1e-6
