"""How many of the managed nodes are unhealthy just now, counted as the watch tells of them.

Invariant: the figures are those of the nodes in the cache; a change of one node costs the same however many there are.
"""

from __future__ import annotations

from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector
from gracectl.policy.health import Tally, is_unhealthy
from gracectl.policy.settings import HealthSettings


class Brake:
    """See the module; `note` is to be told every change of a node."""

    def __init__(self, selector: LabelSelector, settings: HealthSettings) -> None:
        self._selector = selector
        self._settings = settings
        self._managed: set[str] = set()
        self._unhealthy: set[str] = set()

    @property
    def tally(self) -> Tally:
        """The figures."""
        return Tally(
            unhealthy=len(self._unhealthy), managed=len(self._managed), maximum=self._settings.maximum_unhealthy
        )

    def note(self, old: Node | None, new: Node | None) -> None:
        """A node has changed, come (no `old`) or gone (no `new`)."""
        if new is None:
            if old is not None:
                self._managed.discard(old.name)
                self._unhealthy.discard(old.name)
            return
        is_managed = self._selector.matches(new.labels)
        _put(self._managed, new.name, is_managed)
        _put(self._unhealthy, new.name, is_managed and is_unhealthy(new, self._settings))


def _put(names: set[str], name: str, is_in: bool) -> None:
    if is_in:
        names.add(name)
    else:
        names.discard(name)
