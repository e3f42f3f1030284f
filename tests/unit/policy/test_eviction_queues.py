"""Queues of a budget over several nodes, and the position of each pod."""

from __future__ import annotations

from support.builders import NOW, a_budget, a_node, a_pod

from gracectl.model.pod import Pod
from gracectl.policy.eviction_queues import QueuePosition, positions_of, queues_of
from gracectl.policy.plan import NodeView, Plan
from gracectl.policy.planner import plan


def begun(node: str, *pods: Pod, since: float = NOW, deadline: float | None = None) -> tuple[float, str, Plan]:
    """A node that ends since then, with pods under one budget that allows nothing."""
    budget = a_budget(disruptions_allowed=0)
    view = NodeView(a_node(node), pods, {pod.uid: (budget,) for pod in pods}, deadline=deadline)
    return (since, node, plan(view, NOW))


def places(*plans: tuple[float, str, Plan]) -> dict[str, QueuePosition]:
    """By name of the pod."""
    [lane] = queues_of(plans).values()
    positions = positions_of(lane)
    return {waiting.entry.pod.name: positions[waiting.entry.pod.uid] for waiting in lane}


def test_the_positions_of_a_queue_are_numbered_and_each_knows_those_before() -> None:
    positions = places(begun("n1", a_pod("b"), a_pod("a"), since=NOW), begun("n2", a_pod("c"), since=NOW - 60))
    assert [(name, place.number, place.of) for name, place in positions.items()] == [
        ("c", 1, 3),
        ("a", 2, 3),
        ("b", 3, 3),
    ]
    assert [place.ahead and place.ahead.entry.pod.name for place in positions.values()] == [None, "c", "a"]
    assert [place.ahead and place.ahead.node for place in positions.values()] == [None, "n2", "n1"]
    assert not any(place.is_undecided for place in positions.values())


def test_the_order_of_pods_whose_nodes_were_deleted_together_is_unknown() -> None:
    positions = places(begun("n1", a_pod("a")), begun("n2", a_pod("b")), begun("n3", a_pod("c"), since=NOW - 60))
    assert {name: place.is_undecided for name, place in positions.items()} == {"c": False, "a": True, "b": True}


def test_an_earlier_deadline_goes_first_and_is_no_matter_of_chance() -> None:
    older = begun("n1", a_pod("a"), deadline=NOW + 900, since=NOW - 60)
    positions = places(older, begun("n2", a_pod("b"), deadline=NOW + 600))
    assert [(name, place.is_undecided) for name, place in positions.items()] == [("b", False), ("a", False)]
