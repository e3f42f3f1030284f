"""What the server stores, change by change in its order, and which client has caused each.

Unlike a watch it misses nothing: it stands beside the store, so a server that forgets its history makes it no blinder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from kubesim.server.api import JsonObject
from kubesim.server.store import Change

from gracectl.kube.transport import Request
from gracectl.kube.transport.operation import operation_of
from support.inprocess import ASKING, SENDER
from support.stage import Stage


class Deed(NamedTuple):
    """One stored change: what an object was and is (None: it was, or is, not there). `at` is the server's Unix time;
    `request`: the controller's that has caused it, None if another client's has; `sender`: its process."""

    at: float
    old: JsonObject | None
    new: JsonObject | None
    request: Request | None
    sender: str = ""

    @property
    def object(self) -> JsonObject:
        """As it is, or was at last."""
        found = self.new or self.old
        assert found is not None
        return found

    def is_by(self, verb: str, resource: str) -> bool:
        """Whether a controller has requested just this: `is_by("create", "pods/eviction")`."""
        if self.request is None:
            return False
        operation = operation_of(self.request)
        return (operation.verb, operation.resource) == (verb, resource)


def follow(stage: Stage, table: str, listener: Callable[[Deed], None]) -> None:
    """Notify `listener` of each change of a table from now on, in the moment in which it is stored."""
    watched = stage.server.store.table(table)
    store = watched.record

    def record(change: Change) -> None:
        store(change)
        new = None if change.type == "DELETED" else change.object
        listener(Deed(stage.cluster.server_clock.now(), change.previous, new, ASKING.get(), SENDER.get()))

    watched.record = record  # type: ignore[method-assign]  # nothing that the server offers is told in the moment


def options_of(request: Request) -> JsonObject:
    """The DeleteOptions that a deletion carries."""
    options: JsonObject = msgspec.json.decode(request.body or b"{}")
    return options
