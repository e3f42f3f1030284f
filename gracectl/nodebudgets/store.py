"""Store of node disruption budgets: the newest state known, from the watch or from the response to a write.

Invariant: every write names the version that it was decided by, so of two writes decided by the same version only the
first succeeds.
"""

from __future__ import annotations

from typing import Any

from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.budget import NodeDisruptionBudget


class BudgetStore:
    """Newest known budgets; one for each process, which knows its own writes before the watch shows them."""

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
