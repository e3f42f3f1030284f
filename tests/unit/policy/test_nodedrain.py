"""Decision about a campaign."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import a_budget, a_node

from gracectl.model.nodedrain import Action, NodeDrain, NodeState, OnTimeout, OnUndrainable, Order
from gracectl.policy.answers import Never, NeverCause, NeverKind, Unknown, Window
from gracectl.policy.disruption import Hold, HoldReason
from gracectl.policy.nodedrain import (
    DONE,
    UNFINISHED,
    CampaignDecision,
    CampaignNode,
    Forecasted,
    Record,
    beats,
    decide,
    is_whole,
    maximum_of,
)

NOW = 1_000_000.0
NEVER = Never((NeverCause(NeverKind.BUDGET_ALLOWS_NOTHING, "budget shop/web allows nothing", "shop/web-0"),))


def a_drain(**fields: Any) -> NodeDrain:
    defaults: dict[str, Any] = {"name": "c", "uid": "u", "action": Action.TERMINATE, "start_time": NOW - 600}
    return NodeDrain(**{**defaults, **fields})


def a_view(name: str, record: Record = Record.PENDING, **fields: Any) -> CampaignNode:
    fields.setdefault("node", a_node(name))
    return CampaignNode(f"{name}/uid-{name}", record, **fields)


def begun(name: str, **fields: Any) -> CampaignNode:
    """A node that is being drained."""
    return a_view(
        name,
        Record.IN_PROGRESS,
        **{"is_ours": True, "since": NOW - 60, "awaited": ("shop/web-1 to become Ready",), **fields},
    )


def takes(seconds: float, now: float = NOW) -> Forecasted:
    return Forecasted(Window(now, now + seconds), now)


UNDRAINABLE = Forecasted(NEVER, NOW)


def names_of(references: tuple[str, ...]) -> list[str]:
    return [each.partition("/")[0] for each in references]


def records(decision: CampaignDecision) -> dict[str, str]:
    return {each.node.name: each.record.value for each in decision.nodes}


# -- who begins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("maximum", "total", "most"), [
    (1, 10, 1), (3, 10, 3), ("10%", 200, 20), ("10%", 19, 1), ("10%", 3, 1), ("100%", 7, 7), ("nonsense", 7, 1),
])  # fmt: skip
def test_the_maximum(maximum: int | str, total: int, most: int) -> None:
    assert maximum_of(a_drain(max_concurrent=maximum), total) == most


def test_a_node_that_settles_keeps_its_slot() -> None:
    drain = a_drain(max_concurrent=2)
    nodes = [
        a_view("a", Record.IN_PROGRESS, node=None, awaited=("budget shop/web (2 of 3 healthy)",)),
        begun("b"),
        a_view("c"),
    ]
    decision = decide(drain, nodes, None, NOW)
    assert (decision.free, decision.candidates) == (0, ())
    settled = [msgspec.structs.replace(nodes[0], awaited=()), *nodes[1:]]
    decision = decide(drain, settled, None, NOW)
    assert (decision.free, names_of(decision.candidates)) == (1, ["c"])
    assert records(decision) == {"a": "terminated", "b": "in_progress", "c": "pending"}


def test_a_hold_keeps_all_from_beginning_and_names_the_instant() -> None:
    hold = Hold(HoldReason.FROZEN, "frozen", NOW + 60)
    decision = decide(a_drain(), [a_view("a"), begun("b", is_drained=True)], hold, NOW)
    assert decision.candidates == ()
    assert names_of(decision.deletions) == ["b"]
    assert decision.next_change == NOW + 60


ORDERED = [
    a_view("n10", forecast=takes(60), node=a_node("n10", created=3.0)),
    a_view("n2", forecast=UNDRAINABLE, node=a_node("n2", created=2.0)),
    a_view("n1", forecast=Forecasted(Unknown(("x",)), NOW), node=a_node("n1", created=1.0)),
    a_view("n3", forecast=takes(10), node=a_node("n3", created=4.0)),
]


@pytest.mark.parametrize(("order", "names"), [
    (Order.BY_FORECAST, ["n3", "n10", "n1", "n2"]),
    (Order.BY_NAME, ["n1", "n2", "n3", "n10"]),
    (Order.OLDEST_FIRST, ["n1", "n2", "n10", "n3"]),
])  # fmt: skip
def test_the_order(order: Order, names: list[str]) -> None:
    assert names_of(decide(a_drain(order=order), ORDERED, None, NOW).candidates) == names


@pytest.mark.parametrize("fields", [
    {"rival": "other"}, {"wait": "later"}, {"gates": ("backup",)}, {"obstacle": "not managed"},
])  # fmt: skip
def test_what_keeps_a_node_keeps_no_other(fields: dict[str, Any]) -> None:
    decision = decide(a_drain(), [a_view("a", **fields), a_view("b")], None, NOW)
    assert names_of(decision.candidates) == ["b"]


# -- undrainable nodes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "record", "state"), [
    (OnUndrainable.WAIT, Record.IN_PROGRESS, NodeState.DRAINING),
    (OnUndrainable.SKIP, Record.SKIPPED, NodeState.SKIPPED),
    (OnUndrainable.FAIL, Record.FAILED, NodeState.FAILED),
])  # fmt: skip
def test_a_node_that_is_never_drained(policy: OnUndrainable, record: Record, state: NodeState) -> None:
    decision = decide(a_drain(on_undrainable=policy), [begun("a", forecast=UNDRAINABLE), a_view("b")], None, NOW)
    (each, _) = decision.nodes
    assert (each.record, each.state) == (record, state)
    assert each.message == "never drained: pod shop/web-0: budget shop/web allows nothing"


def test_it_is_returned_only_when_that_is_recorded() -> None:
    drain = a_drain(on_undrainable=OnUndrainable.SKIP)
    assert decide(drain, [begun("a", forecast=UNDRAINABLE)], None, NOW).returns == ()
    recorded = a_view("a", Record.SKIPPED, is_ours=True)
    assert names_of(decide(drain, [recorded], None, NOW).returns) == ["a"]


@pytest.mark.parametrize("action", [Action.DRAIN, Action.TERMINATE])
def test_a_node_that_is_skipped_takes_its_place_until_it_is_returned(action: Action) -> None:
    drain, waiting = a_drain(action=action, on_undrainable=OnUndrainable.SKIP), a_view("b")
    leaving = [begun("a", forecast=UNDRAINABLE), a_view("a", Record.SKIPPED, is_ours=True)]
    for skipped in leaving:
        decision = decide(drain, [skipped, waiting], None, NOW)
        assert (decision.candidates, decision.free) == ((), 0)
    decision = decide(drain, [a_view("a", Record.SKIPPED), waiting], None, NOW)
    assert (names_of(decision.candidates), decision.free) == (["b"], 1)


def test_a_skipped_node_tries_once_more_when_all_others_are_finished() -> None:
    drain = a_drain(on_undrainable=OnUndrainable.SKIP)
    skipped = a_view("a", Record.SKIPPED)
    assert decide(drain, [skipped, begun("b")], None, NOW).retried == ()
    decision = decide(drain, [skipped, a_view("b", Record.TERMINATED, node=None)], None, NOW)
    assert (names_of(decision.retried), decision.is_finished) == (["a"], False)
    again = msgspec.structs.replace(skipped, was_retried=True)
    decision = decide(drain, [again, a_view("b", Record.TERMINATED, node=None)], None, NOW)
    assert (decision.retried, decision.is_finished) == ((), True)


def test_after_a_failure_the_others_are_left() -> None:
    drain = a_drain(on_undrainable=OnUndrainable.FAIL)
    decision = decide(drain, [a_view("a", Record.FAILED), begun("b"), a_view("c")], None, NOW)
    assert records(decision) == {"a": "failed", "b": "in_progress", "c": "canceled"}
    assert decision.candidates == ()


@pytest.mark.parametrize("on_timeout", list(OnTimeout))
def test_a_drain_that_takes_too_long(on_timeout: OnTimeout) -> None:
    drain = a_drain(action=Action.DRAIN, timeout=60.0, on_timeout=on_timeout)
    early = decide(drain, [begun("a", since=NOW - 59)], None, NOW)
    assert (records(early), early.next_change) == ({"a": "in_progress"}, NOW + 1)
    assert records(decide(drain, [begun("a", since=NOW - 60)], None, NOW)) == {"a": "failed"}
    late = decide(drain, [a_view("a", Record.FAILED, is_ours=True)], None, NOW)
    is_kept = on_timeout is OnTimeout.KEEP_CORDONED
    assert (names_of(late.stops), names_of(late.returns)) == ((["a"], []) if is_kept else ([], ["a"]))


# -- cancellation ------------------------------------------------------------------------------------------------------


def test_canceled() -> None:
    drain = a_drain(action=Action.DRAIN, deletion_timestamp=NOW)
    nodes = [
        a_view("pending"),
        begun("draining"),
        a_view("drained", Record.DRAINED, is_ours=True),
        begun("ending", is_ending=True),
        a_view("skipped", Record.SKIPPED),
    ]
    decision = decide(drain, nodes, None, NOW)
    assert records(decision) == {
        "pending": "canceled",
        "draining": "canceled",
        "drained": "canceled",
        "ending": "terminated",
        "skipped": "skipped",
    }
    assert names_of(decision.returns) == ["draining", "drained"]
    assert not decision.is_finished
    returned = [msgspec.structs.replace(each, is_ours=False) for each in nodes]
    assert decide(drain, returned, None, NOW).is_finished


def test_a_finished_campaign_returns_nothing_when_it_is_deleted() -> None:
    drain = a_drain(action=Action.DRAIN, deletion_timestamp=NOW, completion_time=NOW - 1)
    assert decide(drain, [a_view("a", Record.DRAINED, is_ours=True)], None, NOW).returns == ()


# -- others ------------------------------------------------------------------------------------------------------------


def test_terminate_beats_drain_and_then_the_older_wins() -> None:
    old, new = a_drain(name="old", created=1.0), a_drain(name="new", created=2.0)
    drain = a_drain(name="drain", action=Action.DRAIN, created=0.0)
    assert beats(old, new)
    assert not beats(new, old)
    assert beats(new, drain)
    assert not beats(drain, old)


@pytest.mark.parametrize(("fields", "allowed", "whole"), [
    ({"current_healthy": 3, "expected_pods": 3, "disruptions_allowed": 0}, 1, True),
    ({"current_healthy": 2, "expected_pods": 3, "disruptions_allowed": 0}, 1, False),
    ({"current_healthy": 2, "expected_pods": 3, "disruptions_allowed": 1}, 1, True),
    ({"current_healthy": 2, "expected_pods": 3, "disruptions_allowed": 0}, 0, True),
    ({"current_healthy": 2, "expected_pods": 3, "disruptions_allowed": 0}, None, False),
    ({"current_healthy": 2, "expected_pods": 3, "disruptions_allowed": 1}, None, True),
])  # fmt: skip
def test_whole_budgets(fields: dict[str, Any], allowed: int | None, whole: bool) -> None:
    assert is_whole(a_budget(**fields), allowed) is whole


VIEWS = st.builds(
    CampaignNode,
    st.uuids().map(lambda uid: f"n/{uid}"),
    st.sampled_from(Record),
    node=st.sampled_from([None, a_node("n")]),
    is_ours=st.booleans(),
    is_ending=st.booleans(),
    is_drained=st.booleans(),
    awaited=st.sampled_from([(), ("budget shop/web (2 of 3 healthy)",)]),
    since=st.sampled_from([NOW - 600.0, NOW]),
    forecast=st.sampled_from([None, UNDRAINABLE, takes(10)]),
    obstacle=st.sampled_from(["", "not managed"]),
    rival=st.sampled_from(["", "other"]),
    gates=st.sampled_from([(), ("backup",)]),
    gated_since=st.sampled_from([None, NOW - 600.0]),
    was_retried=st.booleans(),
)
DRAINS = st.builds(
    a_drain,
    action=st.sampled_from(Action),
    max_concurrent=st.sampled_from([1, 3, "50%"]),
    on_undrainable=st.sampled_from(OnUndrainable),
    timeout=st.sampled_from([None, 300.0]),
    deletion_timestamp=st.sampled_from([None, NOW]),
)


@given(DRAINS, st.lists(VIEWS, max_size=6, unique_by=lambda each: each.reference))
def test_what_always_holds(drain: NodeDrain, nodes: list[CampaignNode]) -> None:
    decision = decide(drain, nodes, None, NOW)
    by_reference = {each.node.reference: each for each in decision.nodes}
    assert sum(msgspec.structs.astuple(decision.counts())[2:]) == len(nodes)
    assert decision.in_progress + min(decision.free, len(decision.candidates)) <= max(
        decision.in_progress, maximum_of(drain, len(nodes))
    )
    for reference in decision.candidates:
        assert by_reference[reference].record is Record.PENDING
        assert by_reference[reference].node.node is not None
    for reference in decision.deletions:
        assert drain.action is Action.TERMINATE
        assert by_reference[reference].node.is_drained
        assert by_reference[reference].node.is_ours
    for reference in (*decision.returns, *decision.stops):
        each = by_reference[reference]
        assert each.node.is_ours
        assert not each.node.is_ending
        assert drain.deletion_timestamp is not None or each.record is each.node.record
    for each in decision.nodes:
        is_untouched = each.node.record in DONE and drain.deletion_timestamp is None
        assert not is_untouched or each.record is each.node.record
    if decision.is_finished:
        assert not any(each.record in UNFINISHED for each in decision.nodes)
        assert (decision.candidates, decision.returns, decision.stops) == ((), (), ())
