"""Objects as webhooks see them, in the version of their rules, and back.

A scale is shown as a Scale; an Eviction or a Binding is never stored and has one version.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kubesim.kinds.scales import scale_of, scaled
from kubesim.server.api import JsonObject
from kubesim.server.calls import Write
from kubesim.server.resource import Resource
from kubesim.types.transient import SCALE, transient

OF_THE_OBJECT: Final = ("", "status", "finalize")
"""Subresources with the stored objects as their objects."""


class Objects(NamedTuple):
    """The object before and after a write."""

    new: JsonObject | None
    old: JsonObject | None


def shown(resource: Resource, write: Write, objects: Objects) -> Objects:
    """Stored objects in the form for a webhook with rules for `resource`."""
    new, old = objects
    subresource = write.call.route.subresource
    if subresource == "scale":
        return Objects(scale_of(new) if new else None, scale_of(old) if old else None)
    if subresource not in OF_THE_OBJECT:
        return Objects(completed(resource, write, new) if new else None, old)
    return Objects(
        completed(resource, write, resource.shown(new)) if new is not None else None,
        resource.shown(old) if old is not None else None,
    )


def stored(resource: Resource, write: Write, made: JsonObject, before: JsonObject) -> JsonObject:
    """The stored form of what a webhook made of an object that was stored as `before`."""
    subresource = write.call.route.subresource
    if subresource == "scale":
        return scaled(before, transient(SCALE, made))
    if subresource not in OF_THE_OBJECT or resource.view is None:
        return made
    return resource.view.to_stored(made)


def completed(resource: Resource, write: Write, object_: JsonObject) -> JsonObject:
    """An object as Go would show it: with its namespace, and creationTimestamp null if the client left it out."""
    metadata: JsonObject = dict(object_["metadata"])
    if write.call.route.namespace:
        metadata.setdefault("namespace", write.call.route.namespace)
    if not resource.strategy.untyped:
        metadata.setdefault("creationTimestamp", None)
    return {**object_, "metadata": metadata}
