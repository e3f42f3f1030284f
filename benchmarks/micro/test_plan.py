"""The decision about a node: what may happen to each of its pods now, under a few budgets."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.micro import pods
from benchmarks.micro.conftest import Measure
from benchmarks.micro.covered import budget_over, decoded
from gracectl.model.node import Node
from gracectl.policy.plan import NodeView, Outcome
from gracectl.policy.planner import plan

NOW = 1_800_000_000.0


@pytest.mark.parametrize("count", [110, 500])
@pytest.mark.parametrize("deadline", [None, NOW + 1800.0], ids=["unlimited", "limited"])
def test_plan(count: int, deadline: float | None, measure: Measure) -> None:
    found = tuple(msgspec.structs.replace(pod, node_name="node-1") for pod in decoded(range(count)))
    budgets = {
        pod.uid: (budget_over(number // pods.REPLICAS),)
        for number, pod in enumerate(found)
        if number // pods.REPLICAS % 3 < 2  # a third of them has none
    }
    node = Node(name="node-1", uid="node-1", deletion_timestamp=NOW - 60)
    view = NodeView(node, found, budgets, cordoned_at=NOW - 60, deadline=deadline)
    told = {entry.outcome for entry in plan(view, NOW).pods}
    assert told == {Outcome.EVICT, Outcome.BLOCKED}

    words = "with a deadline" if deadline else "without a deadline"
    measure(f"plan of {count} pods {words}, each", count, lambda: plan(view, NOW), rounds=60)
