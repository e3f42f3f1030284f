"""Node disruption budgets in their newest known states, and the nodes that each selects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.node import Node
from gracectl.policy.nodebudgets import NodeCounts, count_nodes, desired_of, is_admitted, is_available, selects_node


class Members:
    """Index of nodes by budget, which follows both caches.

    Invariant: after every notification of either cache it is what a count over all nodes would find.
    """

    def __init__(self, nodes: Cache[Node], budgets: Cache[NodeDisruptionBudget]) -> None:
        self._nodes = nodes
        self._budgets = budgets
        self._members: dict[str, set[str]] = {}  # by budget, the names of the nodes that it selects
        self._available: dict[str, set[str]] = {}  # the available ones, by budget
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
    """Fields of a node that a budget reads; heartbeats do not change them."""
    return (node.labels, is_available(node))


class BudgetStore:
    """Newest known budgets; one for each process, which knows its own writes before the watch shows them.

    Invariant: every write names the version that it was decided by, so of two writes decided by the same version only
    the first succeeds.
    """

    def __init__(self, client: KubeClient, budgets: Cache[NodeDisruptionBudget]) -> None:
        self._client = client
        self._budgets = budgets
        self._answered: dict[str, NodeDisruptionBudget] = {}
        budgets.subscribe(self._changed)

    def budget(self, name: str) -> NodeDisruptionBudget | None:
        """The newest known state of the budget; None if there is none."""
        return self._answered.get(name) or self._budgets.get("", name)

    def budgets(self) -> tuple[NodeDisruptionBudget, ...]:
        """All budgets in their newest known states."""
        return tuple(self._answered.get(budget.name, budget) for budget in self._budgets.values())

    async def look_up(self, name: str) -> NodeDisruptionBudget | None:
        """Read the budget from the server; None if it is gone. Raises ApiError."""
        try:
            found = await self._client.get(NODE_BUDGETS, ("", name))
        except NotFound:
            self._answered.pop(name, None)
            return None
        self._note(found)
        return found

    async def write(
        self, budget: NodeDisruptionBudget, status: dict[str, Any], client: KubeClient | None = None
    ) -> None:
        """Merge this into the budget's status, unless it has changed since; raises Conflict then, and other ApiErrors.

        `client`: another client than the process's own.
        """
        written = await (client or self._client).patch(
            NODE_BUDGETS,
            budget.key,
            MergePatch({"status": status}),
            subresource="status",
            uid=budget.uid,
            resource_version=budget.resource_version,
        )
        self._note(written)

    def _note(self, budget: NodeDisruptionBudget) -> None:
        seen = self._budgets.get("", budget.name)
        if seen is not None and _version(seen) < _version(budget):
            self._answered[budget.name] = budget

    def _changed(self, old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> None:
        budget = new or old
        if budget is None:
            return
        answered = self._answered.get(budget.name)
        if answered is not None and (new is None or _version(answered) <= _version(new)):
            del self._answered[budget.name]


def _version(budget: NodeDisruptionBudget) -> int:
    # Versions of one kind are numbers that grow
    # (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
    return int(budget.resource_version)
