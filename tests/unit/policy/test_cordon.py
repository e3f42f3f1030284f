"""What a cordon adds to a node and an uncordon takes off: its own marks, and nothing of others."""

from __future__ import annotations

from support.builders import a_node

from gracectl.model.node import DISRUPTED_TAINT, Taint
from gracectl.policy.cordon import Mark, lacking, removals

OTHER_EFFECT = Taint(key=DISRUPTED_TAINT.key, effect="NoExecute")


def test_a_taint_of_our_key_and_another_effect_is_not_ours() -> None:
    node = a_node(taints=(OTHER_EFFECT, DISRUPTED_TAINT))
    assert Mark.TAINT not in lacking(node)
    assert removals(node, (Mark.TAINT,)) == [{"op": "remove", "path": "/spec/taints/1"}]
    assert Mark.TAINT in lacking(a_node(taints=(OTHER_EFFECT,)))
    assert removals(a_node(taints=(OTHER_EFFECT,)), (Mark.TAINT,)) == []
