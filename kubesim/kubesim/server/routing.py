"""Routing: from a path to a resource, namespace, object and subresource.

An unknown resource of a served group is a 404 Status; an unknown path is a 404 in plain text (recording discovery).
"""

from __future__ import annotations

from typing import NamedTuple

from kubesim.server.resource import Registry, Resource
from kubesim.server.status import no_such_resource, not_here


class Route(NamedTuple):
    """Target of a request. `namespace` None: all, or a cluster-scoped kind; `name` "": the collection."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str
    watch: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The object's key in its table."""
        return self.namespace or "", self.name


def find_route(registry: Registry, path: str) -> Route | None:
    """The route of a resource path, or None if the path is not one. Raises Refusal (404; 501 for what is absent)."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if not registry.serves(group, version):
        return None
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) > 2 and registry.find(group, version, rest[2]):
        namespace, rest = rest[1], rest[2:]
    resource = registry.find(group, version, rest[0])
    if resource is None and registry.is_untyped(group, version):
        return None  # an unknown group: plain text, as for groups that are not served
    if resource is None or len(rest) > 3:
        raise no_such_resource()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    # A namespaced object has no path without its namespace; a cluster-scoped one has none with.
    if (namespace is None and resource.namespaced and name) or (namespace is not None and not resource.namespaced):
        raise no_such_resource()
    if subresource in resource.absent:
        raise not_here(resource.absent[subresource])
    if subresource and (watch or subresource not in resource.subresources):
        raise no_such_resource()
    return Route(resource, namespace, name, subresource, watch)
