"""Operation of a request, in Kubernetes' words: a verb on a resource.

Derived from method and path alone, so that errors, logs and statistics use the same name as RBAC.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from gracectl.kube.transport import Request

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VERBS_OF_COLLECTIONS = {"GET": "list", "DELETE": "deletecollection"}


class Operation(msgspec.Struct, frozen=True):
    """A verb (get, list, watch, create, update, patch, delete, deletecollection) on a resource, as RBAC writes them."""

    verb: str
    group: str
    plural: str
    subresource: str
    namespace: str
    name: str

    @property
    def resource(self) -> str:
        """Resource in the form of an RBAC rule: `pods/eviction`."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    @property
    def qualified(self) -> str:
        """The resource with its group: `nodeclaims.karpenter.sh`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def target(self) -> str:
        """The object or collection, for messages: `pods/eviction shop/web-1`, `nodes worker-1`, `pods in shop`."""
        if not self.name:
            return f"{self.qualified} in {self.namespace}" if self.namespace else self.qualified
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.qualified} {place}"

    def __str__(self) -> str:
        return f"{self.verb} {self.target}"


def operation_of(request: Request) -> Operation:
    """Read the operation off a request; a path outside the API (`/healthz`) is a `get` on itself."""
    watches = request.method == "GET" and dict(request.query).get("watch") in {"1", "true"}
    return _operation(request.method, request.path, watches)


@lru_cache(maxsize=1024)  # called several times per request: for statistics, limits, errors and traces
def _operation(method: str, path: str, watches: bool) -> Operation:
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, rest = "", parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, rest = parts[1], parts[3:]
    else:
        return Operation(_VERBS.get(method, method.lower()), "", path, "", "", "")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    if name or method not in _VERBS_OF_COLLECTIONS:
        verb = _VERBS.get(method, method.lower())
    else:
        verb = "watch" if watches else _VERBS_OF_COLLECTIONS[method]
    return Operation(verb, group, plural, subresource, namespace, name)
