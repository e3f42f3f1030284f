"""Tracked object: the newest known state of a node or claim, and the conditions written to it.

Our own writes come back late through the watch: the response to a write counts until the watch has caught up with it.
That is seen by the resourceVersion, which grows with each write
(https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from gracectl.kube.cache import version_of
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.events import Subject
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node

H = TypeVar("H", bound=Node | NodeClaim)


class WrittenCondition(msgspec.Struct, frozen=True):
    """Status of a condition as last written, `at` when, and its last `transition` (Unix seconds)."""

    status: str
    at: float
    transition: float


class TrackedObject(Generic[H]):
    """A node or a claim, identified by its UID. `resource` is the version that it is written in."""

    def __init__(self, resource: Resource[H], latest: H) -> None:
        self.resource = resource
        self.latest = latest
        self.uid = latest.uid
        self.written: dict[str, WrittenCondition] = {}
        self.wanted: dict[str, ConditionUpdate] = {}  # desired conditions, written or not
        self.is_ours = True
        """Whether conditions may be written to it: nothing is written to a node that another owner drains."""
        self.next_try = 0.0  # monotonic: when to retry what could not be written

    @property
    def name(self) -> str:
        """The object's name."""
        return self.latest.name

    @property
    def cancellable(self) -> Resource[H]:
        """For writes that may be cancelled, at the deadline or on shutdown: they are idempotent, and the next reconcile
        finds out what came of them."""
        return msgspec.structs.replace(self.resource, cancellable=True)

    @property
    def subject(self) -> Subject:
        """Subject of Events about it."""
        return Subject.of(self.resource, self.latest)

    @property
    def log_keys(self) -> dict[str, str]:
        """Log attributes that name it."""
        return {self.resource.kind.lower(): self.name}

    def refresh(self, cached: H) -> None:
        """Take over the cached state unless it is older than the latest: the watch may lag behind our own writes, and
        behind earlier writes of other clients."""
        if version_of(cached) >= version_of(self.latest):
            self.latest = cached

    def is_echo(self, old: H, new: H) -> bool:
        """Whether an event of the object only shows that its conditions are as desired."""
        if new != msgspec.structs.replace(old, resource_version=new.resource_version, conditions=new.conditions):
            return False
        changed = {condition.type for condition in {*old.conditions} ^ {*new.conditions}}
        return all(type_ in self.wanted and self.wanted[type_].is_shown_by(new.conditions) for type_ in changed)

    def wrote(self, latest: H) -> None:
        """Take over the state that the server has answered a write or read with."""
        self.latest = latest


AnyTracked = TrackedObject[Any]
"""Tracked object of a node or a claim."""
