"""Who asks: bearer tokens (recording auth). Without tokens configured everybody may do everything.

With tokens, nobody is anonymous but the reader of discovery and health: no token is 403 as system:anonymous, a token
that nobody knows is 401 everywhere. A known token may do everything; roles are for later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gracectl.sim.api import Request
from gracectl.sim.status import Kind, Refusal, forbidden, unauthorized

ANONYMOUS = "system:anonymous"
OPEN_PATHS = ("/version", "/healthz", "/livez", "/readyz")
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Attempt(NamedTuple):
    """What a request tries, as access control words it. Read from the path alone: nothing need exist."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str


class Access:
    """Decides who may ask."""

    def __init__(self, tokens: Mapping[str, str] | None) -> None:
        """`tokens`: user names by bearer token; None lets everybody in."""
        self._tokens = tokens

    def check(self, request: Request) -> None:
        """Raises Refusal (401, 403) unless the request may go on."""
        if self._tokens is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            if token.strip() not in self._tokens:
                raise unauthorized()
            return
        if request.path.rstrip("/") not in OPEN_PATHS:
            raise denied(attempt_of(request), request, ANONYMOUS)


def attempt_of(request: Request) -> Attempt | None:
    """What a request to a resource tries, or None if its path is not a resource's."""
    parts = request.path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    name, subresource = (*rest[1:3], "", "")[:2]
    verb = VERBS.get(request.method, "")
    if request.method == "GET":
        verb = "get" if name else "list"
        if request.query.get("watch") in ("1", "true"):
            verb = "watch"
    elif request.method == "DELETE":
        verb = "delete" if name else "deletecollection"
    return Attempt(verb, group, rest[0], subresource, namespace, name)


def denied(attempt: Attempt | None, request: Request, user: str) -> Refusal:
    """403 for a user who may not do what was attempted."""
    if attempt is None:
        message = f'forbidden: User "{user}" cannot {request.method.lower()} path "{request.path}"'
        return Refusal(403, "Forbidden", message, details={})
    resource = f"{attempt.resource}/{attempt.subresource}" if attempt.subresource else attempt.resource
    scope = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    why = f'User "{user}" cannot {attempt.verb} resource "{resource}" in API group "{attempt.group}" {scope}'
    return forbidden(Kind(attempt.group, attempt.resource, ""), attempt.name, why)
