"""Index of the stored webhooks: can any of them concern a write?

Invariant: the index reflects the store. It is rebuilt when the sum of its tables' positions has changed; until then an
answer is one dict lookup.
"""

from __future__ import annotations

from kubesim.admission.configurations import GROUP, MUTATING, VALIDATING
from kubesim.admission.webhooks import Place, Webhook, webhooks_of
from kubesim.server.routing import Route
from kubesim.server.store import Store, Table


class Index:
    """The webhooks of a server."""

    def __init__(self, store: Store) -> None:
        self._mutating_table = store.table(f"{MUTATING}.{GROUP}")
        self._validating_table = store.table(f"{VALIDATING}.{GROUP}")
        self._seen = -1
        self._mutating: tuple[Webhook, ...] = ()
        self._validating: tuple[Webhook, ...] = ()
        self._concerned: dict[tuple[str, str, str, str, str], bool] = {}

    def concerns(self, route: Route, operation: str) -> bool:
        """Whether some webhook may have to be asked about an operation there. Never true of webhook configurations."""
        # Asked for every write there is: no call that can be spared.
        if self._mutating_table.position + self._validating_table.position != self._seen:
            self._refresh()
        if not self._mutating and not self._validating:
            return False
        resource = route.resource
        key = (operation, resource.group, resource.version, resource.plural, route.subresource)
        concerned = self._concerned.get(key)
        if concerned is None:
            concerned = self._concerned[key] = self._look(operation, Place(*key[1:]))
        return concerned

    @property
    def mutating(self) -> tuple[Webhook, ...]:
        """Mutating webhooks in the order in which they are asked: by the configurations' names, then as written."""
        self._refresh()
        return self._mutating

    @property
    def validating(self) -> tuple[Webhook, ...]:
        """Validating webhooks, in the same order."""
        self._refresh()
        return self._validating

    def _look(self, operation: str, place: Place) -> bool:
        if place.group == GROUP:
            return False
        return any(webhook.may_concern(operation, place) for webhook in (*self._mutating, *self._validating))

    def _refresh(self) -> None:
        position = self._mutating_table.position + self._validating_table.position
        if position != self._seen:
            self._seen = position
            self._mutating, self._validating = _read(self._mutating_table), _read(self._validating_table)
            self._concerned = {}


def _read(table: Table) -> tuple[Webhook, ...]:
    return tuple(webhook for configuration in table.listed(None) for webhook in webhooks_of(configuration))
