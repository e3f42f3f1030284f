"""Forecasts of many nodes that drain together, with pods of all of them under the same budgets."""

from __future__ import annotations

from collections import defaultdict

import pytest

from benchmarks.micro import pods
from benchmarks.micro.conftest import Measure
from benchmarks.micro.covered import budget_over, decoded
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.answers import Window
from gracectl.policy.eviction_queues import EvictionRate
from gracectl.policy.forecast import Assumptions, forecast
from gracectl.policy.plan import NodeView
from gracectl.policy.scenario import DrainingNode

NOW = 1_800_000_000.0
READY = (Condition("Ready", "True"),)
ASSUMPTIONS = Assumptions(rate=EvictionRate(qps=100.0, burst=100))


def draining(count: int) -> list[DrainingNode]:
    """Nodes with 30 pods each; a budget lets one pod of each of two thirds of the workloads go at a time."""
    by_node: dict[str, list[Pod]] = defaultdict(list)
    for pod in decoded(range(count * pods.PODS_OF_A_NODE)):
        by_node[pod.node_name].append(pod)
    budgets = {workload: (budget_over(workload),) for workload in range(count) if workload % 3 < 2}
    nodes = []
    for name, found in by_node.items():
        node = Node(name=name, uid=name, deletion_timestamp=NOW, conditions=READY)
        of = {pod.uid: of for pod in found if (of := budgets.get(int(pod.name.split("-")[1])))}
        nodes.append(DrainingNode(NodeView(node, tuple(found), of, cordoned_at=NOW), NOW))
    return nodes


@pytest.mark.parametrize("count", [50, 500])
def test_forecast(count: int, measure: Measure) -> None:
    nodes = draining(count)
    assert len(nodes) == count
    assert all(isinstance(node.drained, Window) for node in forecast(nodes, NOW, ASSUMPTIONS).nodes)

    of = count * pods.PODS_OF_A_NODE
    measure(f"forecast of {count} nodes, each of their pods", of, lambda: forecast(nodes, NOW, ASSUMPTIONS), rounds=7)
