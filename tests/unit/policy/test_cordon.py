"""What a cordon adds to a node and an uncordon takes off: its own marks, and nothing of others."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import a_node

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.node import DISRUPTED_TAINT, Taint
from gracectl.policy.cordon import OPEN_TO_DAEMON_SETS, Mark, is_drain_begun, missing_marks, removals

OTHER_EFFECT = Taint(key=DISRUPTED_TAINT.key, effect="NoExecute")


def test_a_taint_of_our_key_and_another_effect_is_not_ours() -> None:
    node = a_node(taints=(OTHER_EFFECT, DISRUPTED_TAINT))
    assert Mark.TAINT not in missing_marks(node)
    assert removals(node, (Mark.TAINT,)) == [{"op": "remove", "path": "/spec/taints/1"}]
    assert Mark.TAINT in missing_marks(a_node(taints=(OTHER_EFFECT,)))
    assert removals(a_node(taints=(OTHER_EFFECT,)), (Mark.TAINT,)) == []


LABELLED: dict[str, Any] = {"labels": {names.EXCLUDE_FROM_LOAD_BALANCERS: ""}}


def test_a_cordon_that_is_open_to_daemon_sets_needs_no_taint() -> None:
    node = a_node(unschedulable=True, **LABELLED)
    assert missing_marks(node, OPEN_TO_DAEMON_SETS) == {}
    assert set(missing_marks(node)) == {Mark.TAINT}
    assert set(missing_marks(a_node(), OPEN_TO_DAEMON_SETS)) == {Mark.LABEL, Mark.UNSCHEDULABLE}


@pytest.mark.parametrize(("fields", "is_begun"), [
    ({}, False), ({"unschedulable": True}, False), (LABELLED, False), ({"unschedulable": True, **LABELLED}, True),
    ({"taints": (DISRUPTED_TAINT,)}, True),
    # A webhook strips the rest.
    ({"unschedulable": True, "conditions": (Condition(names.DRAINED, "False", "Draining"),)}, True),
    ({"unschedulable": True, "conditions": (Condition(names.DRAINED, "False", names.STEP_FAILING),)}, False),
    ({"conditions": (Condition(names.DRAINED, "False", "Draining"),)}, False),
])  # fmt: skip
def test_the_cordon_of_an_operator_is_not_that_of_a_drain(fields: dict[str, Any], is_begun: bool) -> None:
    assert is_drain_begun(a_node(**fields)) is is_begun
