"""Who asks: bearer tokens (recording auth). Without tokens configured everybody may do everything.

With tokens, nobody is anonymous but the reader of discovery and health: no token is 403 as system:anonymous, a token
that nobody knows is 401 everywhere. A known token may do everything; roles are for later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gracectl.sim.server.api import JsonObject, Request
from gracectl.sim.server.bodies import Bodies
from gracectl.sim.server.calls import ADMINISTRATOR, Call, User
from gracectl.sim.server.status import Kind, Refusal, forbidden, unauthorized

ANONYMOUS = "system:anonymous"
REVIEWS_GROUP = "authorization.k8s.io"
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

    @property
    def full_resource(self) -> str:
        """The resource with its subresource: `pods/eviction`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Grant(msgspec.Struct, frozen=True):
    """What a user may do, as a rule of a role says it; `*` is anything. A subresource is named `pods/eviction`."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    groups: tuple[str, ...] = ("",)

    def covers(self, attempt: Attempt) -> bool:
        """Whether the grant is enough for an attempt."""
        return all(
            "*" in granted or wanted in granted
            for granted, wanted in (
                (self.verbs, attempt.verb),
                (self.groups, attempt.group),
                (self.resources, attempt.full_resource),
            )
        )


class Reviews:
    """Answers SelfSubjectAccessReviews."""

    def __init__(self, access: Access, bodies: Bodies) -> None:
        self._access = access
        self._bodies = bodies

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """POST of a review. Raises Refusal (400)."""
        body = self._bodies.object(call.request, call.route.resource.kind)
        return 201, self._access.review(call.request, body)


class Access:
    """Decides who may do what."""

    def __init__(self, tokens: Mapping[str, str] | None, grants: Mapping[str, Sequence[Grant]] | None = None) -> None:
        """`tokens`: user names by bearer token; None lets everybody in. `grants`: by user name; a known user whom it
        does not name may do everything."""
        self._tokens = tokens
        self._grants = grants or {}

    def check(self, request: Request) -> User:
        """Who asks. Raises Refusal (401, 403) unless the request may go on."""
        if self._tokens is None:
            return ADMINISTRATOR
        user = self._user(request)
        attempt = attempt_of(request)
        if user == ANONYMOUS:
            allowed = request.path.rstrip("/") in OPEN_PATHS
        else:
            allowed = attempt is None or attempt.group == REVIEWS_GROUP or self._allows(user, attempt)
        if not allowed:
            raise denied(attempt, request, user)
        return User(user, groups=("system:authenticated",))

    def review(self, request: Request, body: JsonObject) -> JsonObject:
        """The answer to a SelfSubjectAccessReview."""
        spec: JsonObject = body.get("spec") or {}
        wanted: JsonObject = spec.get("resourceAttributes") or {}
        words = ("verb", "group", "resource", "subresource", "namespace", "name")
        attempt = Attempt(*(wanted.get(word, "") for word in words))
        allowed = self._tokens is None or self._allows(self._user(request), attempt)
        return {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": f"{REVIEWS_GROUP}/v1",
            "metadata": {"creationTimestamp": None},
            "spec": spec,
            "status": {"allowed": allowed},
        }

    def _allows(self, user: str, attempt: Attempt) -> bool:
        grants = self._grants.get(user)
        return grants is None or any(grant.covers(attempt) for grant in grants)

    def _user(self, request: Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS
        user = (self._tokens or {}).get(token.strip())
        if user is None:
            raise unauthorized()
        return user


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
    scope = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    why = (
        f'User "{user}" cannot {attempt.verb} resource "{attempt.full_resource}" in API group "{attempt.group}" {scope}'
    )
    return forbidden(Kind(attempt.group, attempt.resource, ""), attempt.name, why)
