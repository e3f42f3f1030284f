"""Names of the managed nodes, counted once for all controllers of voluntary terminations."""

from __future__ import annotations

from gracectl.controllers.termination.context import StepContext
from gracectl.model.node import Node


class ManagedNames:
    """Names of the managed nodes.

    Invariant: a subscriber of nodes that subscribes later finds the change of each notification here.
    """

    def __init__(self, context: StepContext) -> None:
        self._manages = context.manages
        self._names: set[str] = set()
        context.cluster.nodes.subscribe(self._node_changed, replay=True)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None and self._manages(new):
            self._names.add(new.name)
        elif (node := new or old) is not None:
            self._names.discard(node.name)
