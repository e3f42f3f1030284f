"""Owners of fields that were written before the first apply.

Tracking every write would double its cost. So managedFields begin with the first applied configuration, and the owners
of earlier writes come from the store's log of recent changes and authors; older fields belong to `before-first-apply`,
as on a real server. Invariant: an object whose managedFields a client removed has no history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kubesim.managedfields import updater
from kubesim.managedfields.fieldsets import NOTHING, FieldSet
from kubesim.managedfields.managers import NO_OWNERS, UPDATE, Managed, Manager
from kubesim.managedfields.pathelements import field
from kubesim.managedfields.updater import Author
from kubesim.server.api import Json, JsonObject

if TYPE_CHECKING:
    from kubesim.server.calls import Signature
    from kubesim.server.routing import Route
    from kubesim.server.store import Change
    from kubesim.types.schema import Schema

BEFORE_FIRST_APPLY = "before-first-apply"
UNKNOWN = "unknown"
"""The manager of writes without a name."""


def fields(*paths: str) -> FieldSet:
    """The set of these dotted paths."""
    return FieldSet.of(tuple(map(field, path.split("."))) for path in paths)


STATUS = fields("status")
NO_STATUS_WRITES = {
    "deployments.apps": fields("spec", "metadata.labels"),
    "pods": fields("spec", "metadata.deletionTimestamp", "metadata.ownerReferences"),
    "volumeattachments.storage.k8s.io": fields("spec", "metadata"),
}
"""What /status does not write, where that is more than the spec (the strategies' GetResetFields)."""

ADMITTED = {
    "pods": fields("spec.tolerations", "spec.priority", "spec.preemptionPolicy"),
    "persistentvolumes": fields("metadata.finalizers"),
    "persistentvolumeclaims": fields("metadata.finalizers"),
    "namespaces": fields("spec.finalizers"),
}
"""What the server itself puts into new objects, by table: it has no owner."""


def blind_to(route: Route) -> FieldSet:
    """The fields that writes on this path do not write, whatever they say."""
    if route.subresource == "status":
        return NO_STATUS_WRITES.get(route.resource.table, fields("spec"))
    return STATUS if "status" in route.resource.subresources else NOTHING


def update_author(route: Route, name: str, now: str, schema: Schema | None) -> Author:
    """The author of a POST, PUT or PATCH on this path."""
    version = route.resource.api_version
    return Author(Manager(name or UNKNOWN, UPDATE, version, route.subresource), version, now, schema, blind_to(route))


def owners_until_now(changes: Sequence[Change], live: JsonObject, author: Author) -> Managed:
    """Owners of an object without managedFields before `author` applies to it. `changes`: from the log, oldest first.
    Raises ValueError for an item without its keys."""
    if any("managedFields" in (change.previous or {}).get("metadata", {}) for change in changes):
        return _before_first_apply(live, author)
    managed = NO_OWNERS
    for place, change in enumerate(changes):
        if place == 0 and change.previous is not None:
            managed = _before_first_apply(change.previous, author)
        if change.by is not None:
            managed = updater.updated(
                managed, change.previous or zero(author.schema), change.object, _author_of(change, change.by, author)
            )
        elif change.previous is None:
            managed = _before_first_apply(change.object, author)
    return managed if changes else _before_first_apply(live, author)


def _before_first_apply(object_: JsonObject, author: Author) -> Managed:
    manager = Manager(BEFORE_FIRST_APPLY, UPDATE, author.api_version)
    return updater.updated(NO_OWNERS, zero(author.schema), object_, author._replace(manager=manager))


def _author_of(change: Change, by: Signature, author: Author) -> Author:
    found = update_author(by.route, by.manager, by.now, author.schema)
    if change.previous is None:
        return found._replace(blind=found.blind | ADMITTED.get(by.route.resource.table, NOTHING))
    return found


def zero(schema: Schema | None) -> JsonObject:
    """The zero object of a built-in type, as Go has it; {} for custom resources."""
    if schema is None or schema.embedded:
        return {}
    found: dict[str, Json] = {}
    for name, part in schema.properties.items():
        if part.default == {}:
            found[name] = zero(part)
        elif name == "creationTimestamp" or (name in schema.required and part.type in ("object", "array")):
            found[name] = None
    return found
