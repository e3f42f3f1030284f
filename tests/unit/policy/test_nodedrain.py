"""Decisions about campaigns: which nodes take a place."""

from __future__ import annotations

import pytest

from gracectl.model.node import Node
from gracectl.model.nodedrain import Action, NodeDrain, OnUndrainable
from gracectl.policy.answers import Never
from gracectl.policy.nodedrain import CampaignNode, Forecasted, Record, decide

NEVER = Forecasted(Never(()), 0.0)


def a_drain(action: Action) -> NodeDrain:
    return NodeDrain(name="tonight", uid="u", action=action, on_undrainable=OnUndrainable.SKIP)


def a_node(name: str, record: Record, *, is_ours: bool = False, forecast: Forecasted | None = None) -> CampaignNode:
    return CampaignNode(f"{name}/{name}", record, Node(name=name, uid=name), is_ours=is_ours, forecast=forecast)


@pytest.mark.parametrize("action", [Action.DRAIN, Action.TERMINATE])
def test_a_node_that_is_skipped_takes_its_place_until_it_is_returned(action: Action) -> None:
    drain, waiting = a_drain(action), a_node("n2", Record.PENDING)
    found = decide(drain, (a_node("n1", Record.IN_PROGRESS, is_ours=True, forecast=NEVER), waiting), None, 0.0)
    assert (found.candidates, found.free, found.returns) == ((), 0, ())  # recorded first
    found = decide(drain, (a_node("n1", Record.SKIPPED, is_ours=True), waiting), None, 0.0)
    assert (found.candidates, found.free, found.returns) == ((), 0, ("n1/n1",))
    found = decide(drain, (a_node("n1", Record.SKIPPED), waiting), None, 0.0)
    assert (found.candidates, found.free, found.returns) == (("n2/n2",), 1, ())
