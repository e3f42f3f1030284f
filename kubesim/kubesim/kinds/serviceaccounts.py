"""Pods and their ServiceAccounts: the admission plug-in of that name, which is optional.

A pod gets the account `default` if it names none; the account must exist. No token volume is added.
"""

from __future__ import annotations

from typing import Final

from kubesim.kinds.pods import WORDS, PodStrategy
from kubesim.server.api import JsonObject
from kubesim.server.resource import Occasion
from kubesim.server.status import forbidden
from kubesim.server.store import Table

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotates what a kubelet shows of a static pod: it has no account."""


class AccountedPods(PodStrategy):
    """Pods that have a ServiceAccount."""

    def __init__(self, priority_classes: Table, accounts: Table) -> None:
        super().__init__(priority_classes)
        self._accounts = accounts

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = super().prepare_create(new, occasion)
        if MIRROR in (new["metadata"].get("annotations") or {}):
            return new
        name = new["spec"].get("serviceAccountName") or "default"
        if self._accounts.get(occasion.namespace, name) is None:
            why = f'error looking up service account {occasion.namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden(WORDS, new["metadata"].get("name", ""), why)
        return {**new, "spec": {**new["spec"], "serviceAccountName": name, "serviceAccount": name}}
