"""Who is kept by which pods, so that whoever lets them go wakes those that waited for it, and nobody else.

A unit waits for the pods of its nodes, and for the budgets of the namespaces in which some of those pods are.
"""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.termination.unit import UnitKey


class Waiting:
    """Finds the units that wait for the pods of a node, or for the budgets of a namespace."""

    def __init__(self) -> None:
        self._of: dict[UnitKey, tuple[tuple[str, str], ...]] = {}
        self._at: dict[tuple[str, str], set[UnitKey]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def put(self, key: UnitKey, nodes: Iterable[str], namespaces: Iterable[str]) -> None:
        """From now on the unit waits for these, and for nothing it waited for before."""
        self.drop(key)
        places = (*(("node", node) for node in nodes), *(("namespace", namespace) for namespace in namespaces))
        self._of[key] = places
        for place in places:
            self._at.setdefault(place, set()).add(key)

    def drop(self, key: UnitKey) -> None:
        """It waits for nothing any more."""
        for place in self._of.pop(key, ()):
            found = self._at[place]
            found.discard(key)
            if not found:
                del self._at[place]

    def on_node(self, node: str) -> tuple[UnitKey, ...]:
        """Those that wait for the pods of a node."""
        return tuple(self._at.get(("node", node), ()))

    def in_namespace(self, namespace: str) -> tuple[UnitKey, ...]:
        """Those that wait for budgets of a namespace."""
        return tuple(self._at.get(("namespace", namespace), ()))
