"""The budgets as the server has them by all we know: what the watch has shown, or a later answer to ourselves.

Invariant: every write names the version that it was decided by, so that of two who decide by the same one only the
first is heard.
"""

from __future__ import annotations

from typing import Any

from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.nodebudget import NodeDisruptionBudget


class BudgetStore:
    """One for each process: whoever has written last knows it, before the watch shows it."""

    def __init__(self, client: KubeClient, budgets: Cache[NodeDisruptionBudget]) -> None:
        self._client = client
        self._budgets = budgets
        self._answered: dict[str, NodeDisruptionBudget] = {}
        budgets.subscribe(self._changed)

    def budget(self, name: str) -> NodeDisruptionBudget | None:
        """The newest state of the budget that is known; None if there is no such budget."""
        return self._answered.get(name) or self._budgets.get("", name)

    def budgets(self) -> tuple[NodeDisruptionBudget, ...]:
        """All of them, each in its newest state that is known."""
        return tuple(self._answered.get(budget.name, budget) for budget in self._budgets.values())

    async def look_up(self, name: str) -> NodeDisruptionBudget | None:
        """The state of the budget at the server; None if it is gone. Raises ApiError."""
        try:
            found = await self._client.get(NODE_BUDGETS, ("", name))
        except NotFound:
            self._answered.pop(name, None)
            return None
        self._note(found)
        return found

    async def write(
        self, budget: NodeDisruptionBudget, status: dict[str, Any], client: KubeClient | None = None
    ) -> NodeDisruptionBudget:
        """Merge this into the budget's status, unless it has changed since; raises Conflict then, and other ApiErrors.

        `client`: who asks, if not this process for itself.
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
        return written

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
