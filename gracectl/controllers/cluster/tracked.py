"""An object that is being ended, as fresh as we know it, and what we have told people on it.

Our own writes come back late through the watch: the answer to a write counts until the watch has caught up with it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from gracectl.kube.events import Subject
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node

H = TypeVar("H", bound=Node | NodeClaim)


class WrittenCondition(msgspec.Struct, frozen=True):
    """The status of a condition as we wrote it last, `at` when, and when it `transition` to that (Unix seconds)."""

    status: str
    at: float
    transition: float


class TrackedObject(Generic[H]):
    """A node or a claim, identified by its uid: a namesake is another one. `resource` is where it is written to."""

    def __init__(self, resource: Resource[H], latest: H) -> None:
        self.resource = resource
        self.latest = latest
        self.uid = latest.uid
        self.written: dict[str, WrittenCondition] = {}
        self.next_try = 0.0  # before this instant (monotonic) what could not be written is let be
        self._replaced: set[str] = set()

    @property
    def name(self) -> str:
        """The object's name."""
        return self.latest.name

    @property
    def cancellable(self) -> Resource[H]:
        """For writes that nobody misses when they are abandoned, at the deadline or on the way out: the next walk finds
        out what came of them, and one that is repeated changes nothing."""
        return msgspec.structs.replace(self.resource, cancellable=True)

    @property
    def subject(self) -> Subject:
        """What an Event on it is about."""
        return Subject.of(self.resource, self.latest)

    @property
    def log_keys(self) -> dict[str, str]:
        """How lines of the log name it."""
        return {self.resource.kind.lower(): self.name}

    def refresh(self, cached: H) -> None:
        """Take over what the cache shows, unless it is a state that our own writes have replaced since.

        Somebody else may have written in between. But a deletion is never taken back, and what is being deleted gets no
        finalizers: a state that shows otherwise is older than ours.
        """
        if cached.resource_version in self._replaced or _is_before(cached, self.latest):
            return
        self._replaced.clear()
        self.latest = cached

    def wrote(self, latest: H) -> None:
        """The server has answered our write, or our question, with this state."""
        if latest.resource_version != self.latest.resource_version:
            self._replaced.add(self.latest.resource_version)
        self.latest = latest


def _is_before(cached: Node | NodeClaim, known: Node | NodeClaim) -> bool:
    if known.deletion_timestamp is None:
        return False
    return cached.deletion_timestamp is None or not set(cached.finalizers) <= set(known.finalizers)


AnyTracked = TrackedObject[Any]
"""A node's or a claim's."""
