"""Turns of several nodes: how many are drained at the same time, and when the next one begins.

Invariant: a node begins only when each budget over the pods of the nodes before counts as many healthy pods as before
their drain, or as many as it expects by now. Pods without a budget do not count: all pods are never read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.inspect.forecast import DrainForecast
from gracectl.model.node import Node
from gracectl.policy.answers import Never, Window
from gracectl.policy.budgets import BudgetKey

Healthy = dict[BudgetKey, int]
"""Healthy pods that each budget counts."""


class Turns:
    """Nodes that wait for their turn, in order; at most `at_once` are drained at the same time (None: all)."""

    def __init__(self, nodes: Sequence[Node], at_once: int | None) -> None:
        self.waiting = deque(nodes)
        self._at_once = len(nodes) if at_once is None else at_once
        self._begun: dict[str, Healthy] = {}  # by UID

    def next(self, left: Collection[str], cluster: ClusterCache | None = None) -> list[Node]:
        """The nodes that begin now. `left`: UIDs of nodes that are not drained yet, waiting or not; `cluster`: with the
        pods of all nodes; None: not read yet."""
        for uid, before in tuple(self._begun.items()):
            if uid not in left and (cluster is None or _is_recovered(before, cluster)):
                del self._begun[uid]
        begun: list[Node] = []
        while self.waiting and len(self._begun) < self._at_once:
            node = self.waiting.popleft()
            self._begun[node.uid] = {} if cluster is None else _healthy(node, cluster)
            begun.append(node)
        return begun


def _healthy(node: Node, cluster: ClusterCache) -> Healthy:
    found = cluster.budgets_by_pod(cluster.pods_on(node.name))
    return {budget.key: budget.current_healthy for budgets in found.values() for budget in budgets}


def _is_recovered(before: Healthy, cluster: ClusterCache) -> bool:
    budgets = ((cluster.budgets.get(*key), count) for key, count in before.items())
    return all(
        budget is None or budget.current_healthy >= min(count, budget.expected_pods) for budget, count in budgets
    )


def quickest_first(nodes: Iterable[Node], forecast: DrainForecast | None) -> list[Node]:
    """The nodes by the latest instant at which each is drained; then unknown ones, then the ones that never are."""
    answers = {} if forecast is None else {node.name: node.forecast.drained for node in forecast.nodes}

    def rank(node: Node) -> tuple[int, float]:
        match answers.get(node.name):
            case Window(latest=latest):
                return 0, latest
            case Never():
                return 2, 0.0
        return 1, 0.0

    return sorted(nodes, key=rank)
