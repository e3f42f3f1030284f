"""Attributes of a request as authorization sees them, and the words of its refusal (recording auth).

Read from method, path and query alone: nothing need exist, not even the resource, so a 403 comes before any 404.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kubesim.server.api import JsonObject, Request
from kubesim.server.calls import User
from kubesim.server.options import is_true
from kubesim.server.status import Kind, Refusal, forbidden

VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "GET": "get", "HEAD": "get", "DELETE": "delete"}
NAMESPACE_SUBRESOURCES: Final = ("status", "finalize")


class Attempt(NamedTuple):
    """A verb on a resource, or (where `path` is not empty) on a path that is no resource's."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """The resource with its subresource: `pods/eviction`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def attempt_of(request: Request) -> Attempt:
    """What a request tries."""
    parts = request.path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return Attempt(request.method.lower(), path=request.path)
    verb = VERBS.get(request.method, "")
    if rest[0] == "watch" and len(rest) > 1:
        verb, rest = "watch", rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        # A namespace itself is asked for "in" the namespace of its name.
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    name, subresource = (*rest[1:3], "", "")[:2]
    if not name:
        verb, name = _of_collection(verb, request)
    return Attempt(verb, group, rest[0], subresource, namespace, name)


def _of_collection(verb: str, request: Request) -> tuple[str, str]:
    """The verb on a collection, and the one name that a field selector may narrow it to."""
    if verb == "delete":
        return "deletecollection", ""
    if verb != "get":
        return verb, ""
    verb = "watch" if is_true(request.query, "watch") else "list"
    for term in request.query.get("fieldSelector", "").split(","):
        field, _, value = term.partition("=")
        if field == "metadata.name" and value:
            return verb, value.removeprefix("=")
    return verb, ""


def attempt_from(spec: JsonObject) -> Attempt:
    """What a review asks about: its resourceAttributes, else its nonResourceAttributes."""
    wanted: JsonObject | None = spec.get("resourceAttributes")
    if wanted is None:
        wanted = spec.get("nonResourceAttributes") or {}
        return Attempt(wanted.get("verb") or "", path=wanted.get("path") or "")
    words = ("verb", "group", "resource", "subresource", "namespace", "name")
    return Attempt(*(wanted.get(word) or "" for word in words))


def denied(attempt: Attempt, user: User, reason: str = "") -> Refusal:
    """403. `reason`: what access control adds of its own (bindings to roles that are not there)."""
    added = f": {reason}" if reason else ""
    if attempt.path:
        message = f'forbidden: User "{user.name}" cannot {attempt.verb} path "{attempt.path}"{added}'
        return Refusal(403, "Forbidden", message, details={})
    scope = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    why = (
        f'User "{user.name}" cannot {attempt.verb} resource "{attempt.full_resource}" in API group "{attempt.group}" '
        f"{scope}{added}"
    )
    return forbidden(Kind(attempt.group, attempt.resource, ""), attempt.name, why)
