"""How many voluntary terminations there are at once, in which order, and when one has given up its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_pod, owned_by

from gracectl.model.meta import OwnerReference
from gracectl.policy.pace import (
    CREATED_WITHIN_SECONDS,
    HOLDING,
    DisruptionRank,
    DisruptionSlot,
    is_blocked,
    is_replaced,
    is_starting,
    maximum_of,
    next_to_begin,
    next_with_blocked,
    rank_of,
    validate_maximum,
)
from gracectl.policy.plan import Blocker, Outcome, Plan, PodPlan
from gracectl.policy.returning import recreating_controller
from gracectl.policy.settings import VoluntarySettings
from gracectl.policy.voluntary import Cause, Trigger

SETTINGS = VoluntarySettings()


@pytest.mark.parametrize(("value", "managed", "maximum"), [
    ("10%", 0, 1), ("10%", 1, 1), ("10%", 19, 1), ("10%", 20, 2), ("10%", 29, 2), ("100%", 7, 7), ("1%", 5000, 50),
    (1, 5000, 1), (3, 2, 3),
])  # fmt: skip
def test_the_maximum_is_rounded_down_and_at_least_one(value: int | str, managed: int, maximum: int) -> None:
    assert maximum_of(VoluntarySettings(maximum_at_once=value), managed) == maximum


@pytest.mark.parametrize("value", [0, -1, "0%", "-5%", "101%", "ten", "", "5"])
def test_a_maximum_that_lets_none_begin_or_means_nothing_is_refused(value: int | str) -> None:
    with pytest.raises(ValueError, match=r"lets no termination|more than 100%|is not an integer"):
        validate_maximum(value)


@given(st.one_of(st.integers(1, 10_000), st.integers(1, 100).map("{}%".format)), st.integers(0, 10_000))
def test_what_is_accepted_always_lets_one_begin(value: int | str, managed: int) -> None:
    validate_maximum(value)
    assert maximum_of(VoluntarySettings(maximum_at_once=value), managed) >= 1


def trigger(cause: Cause, at: float) -> Trigger:
    return Trigger(cause, at, "")


def test_health_goes_before_the_label_before_expiry_and_then_the_oldest() -> None:
    waiting = {
        "expired long ago": rank_of([trigger(Cause.EXPIRED, 5.0)], 1.0, "a"),
        "expired": rank_of([trigger(Cause.EXPIRED, 9.0)], 0.0, "b"),
        "labeled, young": rank_of([trigger(Cause.TERMINABLE, float("-inf"))], 8.0, "c"),
        "labeled, old": rank_of([trigger(Cause.TERMINABLE, float("-inf"))], 3.0, "d"),
        "ill since 7": rank_of([trigger(Cause.UNHEALTHY, 7.0)], 0.0, "e"),
        "ill since 6, and expired": rank_of([trigger(Cause.EXPIRED, 1.0), trigger(Cause.UNHEALTHY, 6.0)], 9.0, "f"),
        "refused": rank_of([trigger(Cause.UNHEALTHY, 1.0)], 0.0, "g", has_failed=True),
    }
    order = [
        *("ill since 6, and expired", "ill since 7", "labeled, old", "labeled, young"),
        *("expired long ago", "expired", "refused"),
    ]
    assert next_to_begin(waiting, 99) == order
    assert next_to_begin(waiting, 2) == order[:2]
    assert next_to_begin(waiting, 0) == []
    assert next_to_begin(waiting, -3) == []


RANKS = st.builds(
    DisruptionRank, st.booleans(), st.integers(0, 2), st.floats(0, 9), st.floats(0, 9), st.text(max_size=2)
)


@given(st.dictionaries(st.integers(), RANKS, max_size=20), st.integers(-5, 25))
def test_the_best_begin_and_no_more_than_places(waiting: dict[int, DisruptionRank], places: int) -> None:
    chosen = next_to_begin(waiting, places)
    assert len(chosen) == min(max(places, 0), len(waiting))
    left = [waiting[key] for key in waiting if key not in chosen]
    assert all(waiting[key] <= rank for key in chosen for rank in left)


@pytest.mark.parametrize(("place", "replaced", "settings", "is_taken"), [
    (DisruptionSlot(NOW, set()), True, {}, True),  # its node is there
    (DisruptionSlot(NOW, {"rs"}, NOW - 9000), True, {}, False),
    (DisruptionSlot(NOW, set(), NOW), False, {}, False),  # it had no pods that come again
    (DisruptionSlot(NOW, {"rs"}, NOW), True, {}, True),  # their controller has not had the time to make them
    (DisruptionSlot(NOW, {"rs"}, NOW - CREATED_WITHIN_SECONDS), True, {}, False),
    (DisruptionSlot(NOW, {"rs"}, NOW - CREATED_WITHIN_SECONDS), False, {}, True),
    (DisruptionSlot(NOW, {"rs"}, NOW - 299.9), False, {}, True),
    (DisruptionSlot(NOW, {"rs"}, NOW - 300), False, {}, False),  # patience is over
    (DisruptionSlot(NOW, {"rs"}, NOW - 3), False, {"pending_patience": "2s"}, False),
    (DisruptionSlot(NOW, {"rs"}, NOW), False, {"pending_patience": "0s"}, False),
    (DisruptionSlot(NOW, {"rs"}, NOW), False, {"wait_for_replacement": False}, False),
])  # fmt: skip
def test_when_a_place_is_free(place: DisruptionSlot, replaced: bool, settings: Any, is_taken: bool) -> None:
    assert place.is_taken(replaced, NOW, VoluntarySettings(**settings)) is is_taken


@given(st.floats(0, 1000), st.booleans(), st.floats(0, 600))
def test_a_place_changes_by_the_clock_only_at_instants_that_are_known(gone: float, replaced: bool, step: float) -> None:
    place, now = DisruptionSlot(0.0, {"rs"}, gone), gone + step
    at = place.next_change(now, SETTINGS)
    until = now + 10_000 if at is None else at
    between = now + (until - now) * 0.999
    assert place.is_taken(replaced, now, SETTINGS) == place.is_taken(replaced, between, SETTINGS)


@pytest.mark.parametrize(("places", "blocked", "chosen"), [
    (0, 0, []), (0, 1, ["dead"]), (0, 2, ["dead", "gone"]), (1, 0, ["ready"]), (1, 1, ["ready", "dead"]),
    (-1, 1, []),  # deletions by hand exceed the maximum
    (-1, 2, ["dead"]), (3, 0, ["ready", "dead", "gone"]),
])  # fmt: skip
def test_slots_of_blocked_drains_are_for_unready_nodes(places: int, blocked: int, chosen: list[str]) -> None:
    waiting = {name: DisruptionRank(False, 0, float(n), 0.0, name) for n, name in enumerate(("ready", "dead", "gone"))}
    assert next_with_blocked(waiting, ["gone", "dead"], places, blocked) == chosen


@pytest.mark.parametrize(("blocker", "expected"), [(each, each in HOLDING) for each in Blocker])
def test_what_blocks_a_drain_for_as_long_as_somebody_likes(blocker: Blocker, expected: bool) -> None:
    entry = PodPlan(a_pod(), Outcome.BLOCKED, 0, blocker=blocker)
    decision = Plan(pods=(entry,), drained=False, detaching=(), overdue=False, next_change=None)
    assert is_blocked(decision) is expected
    assert not is_blocked(msgspec.structs.replace(decision, overdue=True))


def test_patience_with_a_blocked_drain_counts_from_its_last_progress() -> None:
    assert DisruptionSlot(100.0, set()).blocked_from(SETTINGS) == 400.0
    assert DisruptionSlot(100.0, set(), moved_at=150.0).blocked_from(SETTINGS) == 450.0


def test_pods_that_nothing_replaces_are_not_waited_for() -> None:
    assert recreating_controller(a_pod()) is None
    assert recreating_controller(a_pod(owners=owned_by("DaemonSet"))) is None
    assert recreating_controller(a_pod(owners=owned_by("Node"))) is None
    assert recreating_controller(a_pod(owners=(OwnerReference("ReplicaSet", "a", "uid-a"),))) is None
    for owners in (owned_by("ReplicaSet", "a"), owned_by("Node", "a", group="robots.example.com")):
        owner = recreating_controller(a_pod(owners=owners))
        assert owner is not None
        assert owner.uid == "uid-a"


@pytest.mark.parametrize(("fields", "starts"), [
    ({"ready": False, "phase": "Pending"}, True), ({"ready": False, "phase": "Running"}, True),
    ({"ready": True}, False),
    ({"ready": False, "phase": "Succeeded"}, False),
    ({"ready": False, "phase": "Failed"}, False),
    ({"ready": False, "deletion_timestamp": NOW}, False),
])  # fmt: skip
def test_a_pod_that_is_to_become_ready(fields: Any, starts: bool) -> None:
    assert is_starting(a_pod(**fields)) is starts


def test_only_pods_made_since_then_are_replacements() -> None:
    since = NOW + 0.7  # the server has cut the rest of the second off
    assert is_replaced([], since)
    assert is_replaced([a_pod(created=NOW - 1)], since)
    assert not is_replaced([a_pod(created=NOW - 1), a_pod(created=NOW)], since)
