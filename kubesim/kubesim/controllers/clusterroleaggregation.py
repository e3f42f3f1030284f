"""Roles that gather others: a ClusterRole with an aggregationRule gets the rules of all that its selectors match.

Which rules a user has is the API server's business and goes by what is stored; this controller writes it there.
"""

from __future__ import annotations

from kubesim.controllers.client import MERGE
from kubesim.controllers.controller import Controller
from kubesim.controllers.informers import Informers
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import CLUSTER_ROLES, path_of
from kubesim.server.api import JsonObject
from kubesim.server.selectors import SelectorError, read_selector, selects


class RoleAggregation(Controller[str]):
    """Keys: names of ClusterRoles that gather others."""

    def __init__(self, informers: Informers, pace: Pace) -> None:
        super().__init__(informers, pace, CLUSTER_ROLES)
        self._roles = informers.of(CLUSTER_ROLES)
        self._roles.subscribe(self._changed)

    def _changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        # Any role may be gathered, or no longer be, by any other; there are few.
        for role in self._roles.values():
            if role.get("aggregationRule"):
                self.queue.add(role["metadata"]["name"])

    async def reconcile(self, key: str) -> None:
        """See Controller.reconcile."""
        role = self._roles.get("", key)
        if role is None or not role.get("aggregationRule"):
            return
        try:
            rules = self._gathered(role)
        except SelectorError:
            return  # as the real one: the role stays as it is until its selector is mended
        if rules == (role.get("rules") or []):
            return
        body = {"metadata": {"resourceVersion": role["metadata"]["resourceVersion"]}, "rules": rules}
        _, written = await self.ask("PATCH", path_of(CLUSTER_ROLES, "", key), body, content_type=MERGE, allow=(404,))
        if written["kind"] == "ClusterRole":
            self._roles.remember(written)

    def _gathered(self, role: JsonObject) -> list[JsonObject]:
        others = sorted(
            (each for each in self._roles.values() if each["metadata"]["name"] != role["metadata"]["name"]),
            key=lambda each: str(each["metadata"]["name"]),
        )
        rules: list[JsonObject] = []
        for selector in role["aggregationRule"]["clusterRoleSelectors"]:
            wanted = read_selector(selector)
            for other in others:
                if selects(wanted, other["metadata"].get("labels") or {}):
                    rules += [rule for rule in other.get("rules") or () if rule not in rules]
        return rules
