"""Members: the nodes that each budget selects and how many of them are available, updated with every change.

Invariant: after every notification of either cache they are what a count over all nodes would find.
"""

from __future__ import annotations

from collections.abc import Iterator

from gracectl.kube.cache import Cache
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.node import Node
from gracectl.policy.nodebudgets import NodeCounts, count_nodes, desired_of, is_admitted, is_available, selects_node


class Members:
    """Index of nodes by budget, which follows both caches."""

    def __init__(self, nodes: Cache[Node], budgets: Cache[NodeDisruptionBudget]) -> None:
        self._nodes = nodes
        self._budgets = budgets
        self._members: dict[str, set[str]] = {}  # by budget, the names of the nodes that it selects
        self._available: dict[str, set[str]] = {}  # likewise, those that are available
        budgets.subscribe(self._budget_changed, replay=True)
        nodes.subscribe(self._node_changed, replay=True)

    def count_nodes(self, budget: NodeDisruptionBudget, now: float) -> NodeCounts:
        """Count by this state of the budget, which may be newer than the one in the cache."""
        known = self._budgets.get("", budget.name)
        if known is None or known.selector != budget.selector:
            return count_nodes(budget, self._nodes.values(), now)
        available = self._available[budget.name]
        admitted = sum(
            1 for name in budget.disrupted_nodes if name in available and self._is_admitted(budget, name, now)
        )
        expected = len(self._members[budget.name])
        return NodeCounts(expected, len(available) - admitted, desired_of(budget, expected))

    def budgets_over(self, *nodes: Node | None) -> Iterator[str]:
        """Names of the budgets that select any of these nodes, possibly repeated."""
        for budget in self._budgets.values():
            for node in nodes:
                if node is not None and selects_node(budget, node):
                    yield budget.name

    def _is_admitted(self, budget: NodeDisruptionBudget, name: str, now: float) -> bool:
        node = self._nodes.get("", name)
        return node is not None and is_admitted(budget, node, now)

    def _budget_changed(self, old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> None:
        if new is None:
            assert old is not None
            del self._members[old.name], self._available[old.name]
        elif old is None or old.selector != new.selector:
            selected = [node for node in self._nodes.values() if selects_node(new, node)]
            self._members[new.name] = {node.name for node in selected}
            self._available[new.name] = {node.name for node in selected if is_available(node)}

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and state_of(old) == state_of(new):
            return
        for name in self.budgets_over(old):
            assert old is not None
            self._members[name].discard(old.name)
            self._available[name].discard(old.name)
        for name in self.budgets_over(new):
            assert new is not None
            self._members[name].add(new.name)
            if is_available(new):
                self._available[name].add(new.name)


def state_of(node: Node) -> tuple[object, ...]:
    """What a budget reads of a node; heartbeats do not change it."""
    return (node.labels, is_available(node))
