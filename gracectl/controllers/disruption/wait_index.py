"""Who is kept by which pods, so that whoever lets them go wakes those that waited for it, and nobody else.

A unit waits for the pods of its nodes, and for the budgets of the namespaces in which some of those pods are; or for
the budget of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.controllers.disruption.candidate import CandidateKey


class WaitIndex:
    """Finds the units that wait for the pods of a node, for the budgets of a namespace, or for one of nodes."""

    def __init__(self) -> None:
        self._of: dict[CandidateKey, tuple[tuple[str, str], ...]] = {}
        self._at: dict[tuple[str, str], dict[CandidateKey, None]] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._of)

    def put(
        self,
        key: CandidateKey,
        nodes: Iterable[str] = (),
        namespaces: Iterable[str] = (),
        node_budgets: Iterable[str] = (),
    ) -> None:
        """From now on the unit waits for these, and for nothing it waited for before."""
        self.drop(key)
        kinds = {"node": nodes, "namespace": namespaces, "node budget": node_budgets}
        places = tuple((kind, name) for kind, those in kinds.items() for name in those)
        self._of[key] = places
        for place in places:
            self._at.setdefault(place, {})[key] = None

    def drop(self, key: CandidateKey) -> None:
        """It waits for nothing any more."""
        for place in self._of.pop(key, ()):
            found = self._at[place]
            del found[key]
            if not found:
                del self._at[place]

    def on_node(self, node: str) -> tuple[CandidateKey, ...]:
        """Those that wait for the pods of a node."""
        return tuple(self._at.get(("node", node), ()))

    def in_namespace(self, namespace: str) -> tuple[CandidateKey, ...]:
        """Those that wait for budgets of a namespace."""
        return tuple(self._at.get(("namespace", namespace), ()))

    def for_node_budget(self, name: str) -> tuple[CandidateKey, ...]:
        """Those that wait for a node disruption budget; who waits longest comes first."""
        return tuple(self._at.get(("node budget", name), ()))

    def for_node_budgets(self) -> int:
        """How many wait for budgets for nodes."""
        return sum(any(kind == "node budget" for kind, _ in places) for places in self._of.values())
