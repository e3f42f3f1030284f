"""Interfaces of the server's core: admission, field ownership, checks of bodies.

Invariant: a write that concerns no webhook never awaits between reading an object and storing it.
"""

from __future__ import annotations

from typing import Protocol

from kubesim.server.api import JsonObject
from kubesim.server.calls import Call, Operation, Write
from kubesim.server.resource import Resource
from kubesim.server.strategic import Layout


class Admission(Protocol):
    """Admission: called before something is written or deleted."""

    def concerns(self, call: Call, operation: Operation) -> bool:
        """Whether admission may be needed. Must be fast: called for every write."""
        ...

    async def mutate(self, write: Write, new: JsonObject | None, old: JsonObject | None) -> JsonObject | None:
        """The object as the mutating webhooks leave it (`new` itself if they change nothing). Raises Refusal."""
        ...

    async def validate(self, write: Write, new: JsonObject | None, old: JsonObject | None) -> None:
        """Ask the validating webhooks. Raises Refusal."""
        ...


class Ownership(Protocol):
    """Keeps metadata.managedFields."""

    def created(self, call: Call, new: JsonObject) -> JsonObject:
        """A new object, with its creator's fields recorded."""
        ...

    def updated(self, call: Call, new: JsonObject, old: JsonObject) -> JsonObject:
        """The object with its changed fields moved to the new owner; `new` itself if nothing changes."""
        ...

    def applied(self, call: Call, configuration: JsonObject, live: JsonObject | None) -> JsonObject:
        """Apply a configuration to the live object (None: there is none). Raises Refusal (409, 422)."""
        ...


class BodyCheck(Protocol):
    """Reads bodies as Go would decode them: unknown fields go (and are reported as asked), wrong types are refused."""

    def sent(self, call: Call, body: JsonObject) -> JsonObject:
        """The object of a POST or PUT, of which the caller keeps nothing. Raises Refusal (400)."""
        ...

    def patched(self, call: Call, patched: JsonObject, old: JsonObject) -> JsonObject:
        """The patched object; parts shared with `old` are not checked again. Raises Refusal (400, 422)."""
        ...

    def layout(self, resource: Resource) -> Layout | None:
        """How a strategic merge merges objects of the resource, or None if they know no strategic merge."""
        ...


class Permission(Protocol):
    """Looks at what is written, where the right to write at all is not enough."""

    def check(self, call: Call, new: JsonObject, old: JsonObject | None) -> None:
        """Check that `new` may replace `old` (None: nothing). Runs at every write. Raises Refusal (403)."""
        ...


class Subresource(Protocol):
    """Answers requests to a subresource, or to a kind that is never stored (reviews)."""

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """The status code and the body. Raises Refusal."""
        ...
