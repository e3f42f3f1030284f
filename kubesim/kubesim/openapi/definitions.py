"""Schemas of a document: the kinds of one group and version, and their references.

Built-in kinds come from the catalog, custom resources from their definition plus the fields of every object, under a
name that reads the group backwards (`sh.karpenter.v1.NodeClaim`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from kubesim.server.api import JsonObject
from kubesim.server.resource import Resource
from kubesim.types.catalog import KINDS, PREFIX, catalog, type_name
from kubesim.types.schema import Node

META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
CONVENTIONS: Final = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
SHARED: Final = tuple(f"{META}.{name}" for name in ("APIResourceList", "DeleteOptions", "Patch", "Status"))
"""Types that every group speaks of."""


def kind_of(resource: Resource) -> JsonObject:
    """The group, version and kind of a resource, as documents name them."""
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def schema_name(resource: Resource, *, of_list: bool = False) -> str:
    """The name of the schema of a resource's kind, or of its list."""
    kind = resource.list_name if of_list else resource.kind
    known = type_name(resource.group, resource.version, kind)
    if not known:
        return f"{'.'.join(reversed(resource.group.split('.')))}.{resource.version}.{kind}"
    # A version that is served no longer elsewhere has the fields, not the name, of the one that is.
    head, _, tail = known.rpartition(".")
    return f"{head.rpartition('.')[0]}.{resource.version}.{tail}" if resource.group else known


def definitions(resources: Iterable[Resource], others: Iterable[str]) -> dict[str, Node]:
    """Schemas of the resources, their lists and `others` (types of the catalog), with their references, by name."""
    found: dict[str, Node] = {}
    waiting = [*SHARED, *others]
    for resource in resources:
        for name, node in _own(resource):
            found[name] = node
            waiting += references(node)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = catalog().schemas[name]
            waiting += references_of(name)
    return dict(sorted(found.items()))


def _own(resource: Resource) -> Iterator[tuple[str, Node]]:
    """The schemas that a resource is the reason for."""
    known = type_name(resource.group, resource.version, resource.kind)
    name, list_name = schema_name(resource), schema_name(resource, of_list=True)
    if known:
        yield name, _named_for(resource, catalog().schemas[known], resource.kind)
    else:
        yield name, custom(resource)
    known_list = type_name(resource.group, resource.version, resource.list_name)
    if known_list:
        yield list_name, _named_for(resource, catalog().schemas[known_list], resource.list_name)
    elif "list" in resource.verbs:
        yield list_name, custom_list(resource, name)


def _named_for(resource: Resource, node: Node, kind: str) -> Node:
    group_version_kind = {**kind_of(resource), "kind": kind}
    return node if group_version_kind in node.get(KINDS, ()) else {**node, KINDS: [group_version_kind]}


def custom(resource: Resource) -> Node:
    """The schema of a custom resource, with what every object has."""
    raw: Mapping[str, Any] = resource.schema.raw if resource.schema is not None else {"type": "object"}
    fields = {**(raw.get("properties") or {}), **_of_every_object()}
    return {**raw, "properties": fields, "type": "object", KINDS: [kind_of(resource)]}


def custom_list(resource: Resource, item: str) -> Node:
    """The schema of a list of custom resources."""
    every = _of_every_object()
    described = f"List of {resource.plural}. More info: {CONVENTIONS}"
    return {
        "description": f"{resource.list_name} is a list of {resource.kind}",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": every["apiVersion"],
            "items": {"description": described, "type": "array", "items": {"$ref": f"{PREFIX}{item}"}},
            "kind": every["kind"],
            "metadata": catalog().schemas["io.k8s.api.core.v1.PodList"]["properties"]["metadata"],
        },
        KINDS: [{**kind_of(resource), "kind": resource.list_name}],
    }


@cache
def _of_every_object() -> dict[str, Any]:
    fields = catalog().schemas["io.k8s.api.core.v1.Pod"]["properties"]
    return {name: fields[name] for name in ("apiVersion", "kind", "metadata")}


@cache
def references_of(name: str) -> tuple[str, ...]:
    """The types that a type of the catalogue refers to, by name."""
    return tuple(references(catalog().schemas[name]))


def references(node: Any) -> Iterator[str]:
    """The names that a schema refers to."""
    if isinstance(node, Mapping):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith(PREFIX):
            name = reference.removeprefix(PREFIX)
            if name in catalog().schemas:
                yield name
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)
