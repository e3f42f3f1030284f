"""The arithmetic of node disruption budgets: the examples of its design, Kubernetes' rounding, and brute force."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, READY, a_node

from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.policy.budgets import Allowance
from gracectl.policy.nodebudgets import (
    ADMITTED_SECONDS,
    UNOBSERVED_NODE_SECONDS,
    NodeCounts,
    count_nodes,
    current_disruptions,
    disruption_verdict,
    invalid_reason,
    is_admitted,
    is_available,
    may_unblock,
    remedy_of,
    selects_node,
)

POOL = {"pool": "a"}
UNREADY = (Condition("Ready", "False"),)


def a_budget(**fields: Any) -> NodeDisruptionBudget:
    fields.setdefault("selector", LabelSelector(POOL))
    return NodeDisruptionBudget(name="pool-a", uid="uid-pool-a", **fields)


def a_member(name: str = "n1", **fields: Any) -> Node:
    fields.setdefault("conditions", READY)
    fields.setdefault("created", NOW - 1000)
    return a_node(name, labels=POOL, **fields)


def members(count: int, available: int) -> list[Node]:
    return [a_member(f"n{n}", conditions=READY if n < available else UNREADY) for n in range(count)]


@pytest.mark.parametrize(("bound", "expected", "available", "allowed"), [
    # from the design: 80 % of ten, 100 % and 0 forbid everything, 5 %
    ({"min_available": "80%"}, 10, 10, 2), ({"min_available": "80%"}, 10, 9, 1), ({"min_available": "80%"}, 10, 8, 0),
    ({"min_available": "80%"}, 9, 9, 1),  # 7.2 are 8
    ({"min_available": "100%"}, 10, 10, 0), ({"min_available": "100%"}, 1, 1, 0), ({"max_unavailable": 0}, 10, 10, 0),
    ({"max_unavailable": "0%"}, 10, 10, 0),
    ({"max_unavailable": "5%"}, 10, 10, 1),  # 0.5 is 1
    ({"max_unavailable": "5%"}, 20, 20, 1), ({"max_unavailable": "5%"}, 21, 21, 2),
    ({"max_unavailable": "5%"}, 10, 9, 0), ({"max_unavailable": "100%"}, 3, 3, 3),
    ({"max_unavailable": 2}, 10, 10, 2), ({"max_unavailable": 99}, 10, 4, 4), ({"min_available": 0}, 3, 2, 2),
    ({"min_available": 4}, 3, 3, 0), ({"min_available": 0}, 0, 0, 0),
])  # fmt: skip
def test_what_a_budget_allows(bound: dict[str, Any], expected: int, available: int, allowed: int) -> None:
    budget = a_budget(**bound)
    counted = count_nodes(budget, [*members(expected, available), a_node("another", conditions=READY)], NOW)
    assert (counted.expected, counted.available, counted.allowed) == (expected, available, allowed)


bounds = st.one_of(
    st.fixed_dictionaries({"min_available": st.integers(0, 12) | st.integers(0, 100).map(lambda n: f"{n}%")}),
    st.fixed_dictionaries({"max_unavailable": st.integers(0, 12) | st.integers(0, 100).map(lambda n: f"{n}%")}),
)


def is_kept(bound: dict[str, Any], expected: int, available: int) -> bool:
    """The rule of the design, over exact fractions."""
    [(field, value)] = bound.items()
    least = ceil(Fraction(int(value[:-1]), 100) * expected) if isinstance(value, str) else value
    return available >= least if field == "min_available" else expected - available <= least


@given(bound=bounds, health=st.lists(st.booleans(), max_size=14))
def test_as_many_may_end_as_one_finds_by_ending_one_after_the_other(bound: dict[str, Any], health: list[bool]) -> None:
    nodes = [a_member(f"n{n}", conditions=READY if ready else UNREADY) for n, ready in enumerate(health)]
    budget = a_budget(**bound)
    ended = 0
    left = [node for node in nodes if is_available(node)]
    while left and is_kept(bound, len(nodes), len(left) - 1):
        left.pop()
        ended += 1
    counted = count_nodes(budget, nodes, NOW)
    assert counted.allowed == ended
    # Ending them one by one, and counting anew each time, comes to the same.
    for _ in range(ended):
        assert count_nodes(budget, nodes, NOW).allowed >= 1
        victim = next(node for node in nodes if is_available(node))
        nodes[nodes.index(victim)] = msgspec.structs.replace(victim, deletion_timestamp=NOW)
    assert count_nodes(budget, nodes, NOW).allowed == 0


@pytest.mark.parametrize(("fields", "is_counted"), [
    ({}, True), ({"conditions": UNREADY}, False),
    ({"conditions": (Condition("Ready", "Unknown"),)}, False),
    ({"conditions": ()}, False), ({"deletion_timestamp": NOW}, False), ({"unschedulable": True}, True),
])  # fmt: skip
def test_a_node_is_available_while_it_is_ready_and_not_deleted(fields: dict[str, Any], is_counted: bool) -> None:
    assert is_available(a_member(**fields)) is is_counted


@pytest.mark.parametrize(("selector", "selects"), [
    (None, False), (LabelSelector(), False), (LabelSelector(POOL), True), (LabelSelector({"pool": "b"}), False),
    (LabelSelector({}, (Requirement("pool", "Exists"),)), True),
    (LabelSelector({}, (Requirement("zone", "DoesNotExist"),)), True),
])  # fmt: skip
def test_no_selector_and_an_empty_one_select_nothing(selector: LabelSelector | None, selects: bool) -> None:
    assert selects_node(a_budget(selector=selector, min_available=1), a_member()) is selects


@pytest.mark.parametrize(("fields", "words"), [
    ({}, "spec: minAvailable and maxUnavailable are missing; set one of them"),
    ({"min_available": 1, "max_unavailable": 1},
     "spec: minAvailable and maxUnavailable are both set; remove one of them"),
    ({"min_available": "three"}, "spec.minAvailable: 'three' is not an integer or a percentage such as 25%"),
    ({"max_unavailable": "3"}, "spec.maxUnavailable: '3' is not an integer or a percentage such as 25%"),
    ({"max_unavailable": -1}, "spec.maxUnavailable: -1 is negative; give 0 or more"),
    ({"max_unavailable": "-0%"}, "spec.maxUnavailable: '-0%' is negative; give 0 or more"),
    ({"min_available": 1, "selector": None, "selector_error": "no such"}, "spec.selector: no such"),
    ({"min_available": "50%"}, None), ({"max_unavailable": 0}, None),
])  # fmt: skip
def test_what_cannot_be_counted_allows_nothing_and_says_why(fields: dict[str, Any], words: str | None) -> None:
    budget = a_budget(disruptions_allowed=5, **fields)
    assert invalid_reason(budget) == words
    if words is not None:
        assert count_nodes(budget, members(10, 10), NOW).allowed == 0
        verdict = disruption_verdict(budget, a_member(), NOW)
        assert verdict.allowance is Allowance.NOT_COUNTABLE
        assert verdict.reason.endswith(words)
        assert remedy_of(budget, verdict.allowance) == "fix or delete the budget"


def test_a_node_is_counted_once_until_it_is_seen_to_go_or_too_much_time_has_passed() -> None:
    budget = a_budget(max_unavailable=2, disruptions_allowed=1, disrupted_nodes={"n1": NOW})
    nodes = members(5, 5)
    assert count_nodes(budget, nodes, NOW) == NodeCounts(5, 4, 3)
    assert disruption_verdict(budget, nodes[1], NOW + 1).allowance is Allowance.UNCHARGED
    assert disruption_verdict(budget, nodes[2], NOW + 1).allowance is Allowance.ALLOWED
    assert count_nodes(budget, nodes, NOW + ADMITTED_SECONDS) == NodeCounts(5, 5, 3)
    assert disruption_verdict(budget, nodes[1], NOW + ADMITTED_SECONDS).allowance is Allowance.ALLOWED


def test_another_node_of_the_same_name_is_another_node() -> None:
    budget = a_budget(max_unavailable=2, disrupted_nodes={"n1": NOW})
    assert not is_admitted(budget, a_member("n1", created=NOW + 1), NOW + 2)
    assert is_admitted(budget, a_member("n1", created=NOW), NOW + 2)


def test_which_admitted_nodes_still_count() -> None:
    budget = a_budget(max_unavailable=9, disrupted_nodes={f"n{n}": NOW for n in range(6)})
    nodes = {
        "n0": a_member("n0"),
        "n1": a_member("n1", deletion_timestamp=NOW + 1),
        "n2": a_member("n2", conditions=UNREADY),
        "n3": a_member("n3", created=NOW + 1),
        "n4": a_node("n4", created=NOW - 9),  # its label is gone, which may come back
    }
    assert set(current_disruptions(budget, nodes, NOW + 2)) == {"n0", "n2", "n4", "n5"}
    assert set(current_disruptions(budget, nodes, NOW + UNOBSERVED_NODE_SECONDS)) == {"n0", "n2", "n4"}
    assert set(current_disruptions(budget, nodes, NOW + ADMITTED_SECONDS)) == set()


@pytest.mark.parametrize(("budget", "node", "leave", "words"), [
    (a_budget(min_available=1, generation=2, observed_generation=1, disruptions_allowed=3), a_member(),
     "NOT_OBSERVED", ""),
    (a_budget(min_available=1), a_member(conditions=UNREADY), "UNCHARGED", ""),
    (a_budget(min_available=1), a_member(deletion_timestamp=NOW), "UNCHARGED", ""),
    (a_budget(min_available="80%", expected_nodes=10, current_available=8, desired_available=8), a_member(),
     "EXHAUSTED",
     "node disruption budget pool-a allows no termination now (8 of 10 available, 8 required by minAvailable " "80%)"),
])  # fmt: skip
def test_what_the_record_says_of_one_node(budget: NodeDisruptionBudget, node: Node, leave: str, words: str) -> None:
    verdict = disruption_verdict(budget, node, NOW)
    assert verdict.allowance is Allowance[leave]
    if words:
        assert verdict.reason == words


def test_who_is_told_what_would_help() -> None:
    shut = a_budget(max_unavailable=0, expected_nodes=3, current_available=3, desired_available=3)
    assert remedy_of(shut, Allowance.EXHAUSTED) == "change or delete the budget, which never allows a termination"
    spent = a_budget(max_unavailable=1, expected_nodes=3, current_available=2, desired_available=2)
    assert remedy_of(spent, Allowance.EXHAUSTED) == "wait until more of its nodes are Ready, or change the budget"
    assert "try again" in remedy_of(spent, Allowance.NOT_OBSERVED)


def test_a_waiting_node_is_woken_by_what_may_admit_it() -> None:
    spent, free = a_budget(max_unavailable=1), a_budget(max_unavailable=1, disruptions_allowed=1)
    assert may_unblock(spent, free)
    assert may_unblock(spent, None)
    assert may_unblock(spent, a_budget(max_unavailable=1, selector=None))
    assert not may_unblock(spent, a_budget(max_unavailable=1, current_available=4))
    assert not may_unblock(None, free)
