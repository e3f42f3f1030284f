"""Outcomes of pods from one plan to the next, whatever comes first, the watch event or the response."""

from __future__ import annotations

from collections import Counter

import pytest
from support.builders import a_node, a_pod

from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.eviction.pod_outcomes import PodOutcome, PodOutcomeTracker
from gracectl.policy.plan import NodeView, Plan
from gracectl.policy.planner import plan

NOW = 1_767_225_600.0


class Desk:
    """Outcomes of one node; `evicting` and `deleting` are the pods with a request in flight."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.evicting: set[str] = set()
        self.deleting: set[str] = set()
        self.departures = PodOutcomeTracker(self.counts, lambda uid: (uid in self.evicting, uid in self.deleting))

    def see(self, *names: str, node: str = "n1") -> None:
        """A plan with these pods."""
        self.departures.note(node, planned(*names))

    def evicted(self, name: str) -> None:
        self.departures.evicted(EvictionCandidate("shop", name, name, "n1", (), NOW))

    def deleted(self, name: str) -> None:
        self.departures.deleted(Deletion(ScheduledDeletion("shop", name, name, "n1", NOW), 5, 30, None, 0.0))

    @property
    def left(self) -> dict[str, int]:
        return {str(outcome): number for (outcome,), number in self.counts.items()}


def planned(*names: str) -> Plan:
    pods = tuple(a_pod(name, uid=name) for name in names)
    return plan(NodeView(node=a_node(), pods=pods, budgets={}, cordoned_at=NOW - 60), NOW)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_pod_that_is_gone_has_the_outcome_that_was_requested(desk: Desk) -> None:
    desk.see("a", "b", "c", "d")
    assert desk.left == {}
    desk.evicted("a")
    desk.deleted("b")
    desk.evicted("c")
    desk.deleted("c")
    desk.see("a", "b", "c", "d")
    assert desk.left == {}, "they are on their way"
    desk.see()
    assert desk.left == {"evicted": 1, "deleted": 2, "left": 1}
    assert len(desk.departures) == 0


def test_news_may_be_faster_than_the_answer(desk: Desk) -> None:
    desk.see("a", "b")
    desk.evicting, desk.deleting = {"a"}, {"b"}
    desk.see()
    assert desk.left == {"evicted": 1, "deleted": 1}
    desk.evicted("a")
    desk.deleted("b")
    assert len(desk.departures) == 0, "nothing is remembered of a pod that is gone"
    desk.see()
    assert desk.left == {"evicted": 1, "deleted": 1}


@pytest.mark.parametrize(("is_over", "left"), [(True, {"abandoned": 2}), (False, {})])
def test_a_pod_that_outlives_the_termination_was_abandoned(desk: Desk, is_over: bool, left: dict[str, int]) -> None:
    desk.see("a", "b")
    desk.evicted("a")
    desk.departures.close("n1", is_over=is_over)
    assert desk.left == left
    assert len(desk.departures) == 0
    desk.see("c")
    assert desk.left == left, "a namesake begins anew"


def test_nodes_do_not_mix(desk: Desk) -> None:
    desk.see("a")
    desk.see("b", node="n2")
    desk.see(node="n2")
    assert desk.left == {PodOutcome.LEFT.value: 1}
