"""POST serviceaccounts/NAME/token: a token for a ServiceAccount (`kubectl create token`, projected volumes).

Expiry counts on the server's clock. A token bound to a pod, a Secret or a node ends with that object.
"""

from __future__ import annotations

from typing import Final

from kubesim.auth.authentication import AUDIENCES
from kubesim.auth.serviceaccounts import ACCOUNTS, BINDABLE, AccountTokens, Bound
from kubesim.server.api import JsonObject
from kubesim.server.bodies import Bodies, check_kind
from kubesim.server.calls import Call
from kubesim.server.resource import Resource
from kubesim.server.stamps import Stamps
from kubesim.server.status import Cause, Kind, Refusal, bad_request, conflict, invalid, invalid_value, not_found
from kubesim.server.store import Store
from kubesim.types.transient import transient
from kubesim.values import format_time

REQUEST: Final = Resource(
    group="authentication.k8s.io", version="v1", plural="", kind="TokenRequest", namespaced=True, verbs=("create",)
)
HOUR: Final = 3600
SHORTEST: Final = 600
LONGEST: Final = 1 << 32
LIFE: Final = "spec.expirationSeconds"


class TokenRequests:
    """Gives ServiceAccounts tokens."""

    def __init__(self, store: Store, stamps: Stamps, tokens: AccountTokens, bodies: Bodies) -> None:
        self._store = store
        self._stamps = stamps
        self._tokens = tokens
        self._bodies = bodies

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """The request with its token. Raises Refusal: 400, 404, 409 (the bound object is another one), 422."""
        route = call.route
        sent = check_kind(self._bodies.object(call.request, REQUEST.kind), REQUEST)
        body = transient((REQUEST.group, REQUEST.version, REQUEST.kind), sent)
        refuse_other_names(body, route.namespace or "", route.name)
        account = self._store.table(ACCOUNTS).get(*route.key)
        if account is None:
            raise not_found(route.resource.words, route.name)
        spec: JsonObject = body.get("spec") or {}
        seconds = expiration(spec)
        audiences = spec.get("audiences") or list(AUDIENCES)
        reference: JsonObject | None = spec.get("boundObjectRef")
        bound = self._bound(reference, account) if reference else []
        token = self._tokens.issue(account, audiences, seconds, bound)
        return 201, {
            "kind": REQUEST.kind,
            "apiVersion": REQUEST.api_version,
            "metadata": {"name": route.name, "namespace": route.namespace, "creationTimestamp": self._stamps.now},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
            "status": {"token": token, "expirationTimestamp": format_time(int(self._stamps.seconds) + seconds)},
        }

    def _bound(self, reference: JsonObject, account: JsonObject) -> list[Bound]:
        kind, api_version = reference.get("kind") or "", reference.get("apiVersion") or ""
        claim, name, wanted = kind.lower(), reference.get("name") or "", reference.get("uid") or ""
        if "/" in api_version or claim not in BINDABLE or kind != claim.capitalize():
            group, _, version = api_version.rpartition("/")
            raise bad_request(f"cannot bind token to object of type {group}/{version}, Kind={kind}")
        plural = BINDABLE[claim]
        home = "" if claim == "node" else account["metadata"]["namespace"]
        found = self._store.table(plural).get(home, name)
        if found is None:
            raise not_found(Kind("", plural, kind), name)
        if claim == "pod" and found["spec"].get("serviceAccountName", "") != account["metadata"]["name"]:
            mine = account["metadata"]["name"]
            why = f'cannot bind token for serviceaccount "{mine}" to pod running with different serviceaccount name.'
            raise bad_request(why)
        uid = found["metadata"]["uid"]
        if wanted and wanted != uid:
            raise other_object(kind, name, wanted)
        bound = [Bound(claim, name, uid)]
        node_name = found["spec"].get("nodeName") if claim == "pod" else None
        if node_name:
            node = self._store.table("nodes").get("", node_name)
            bound.append(Bound("node", node_name, node["metadata"]["uid"] if node else ""))
        return bound


def expiration(spec: JsonObject) -> int:
    """For how many seconds a token is asked. Raises Refusal (422)."""
    seconds: int | None = spec.get("expirationSeconds")
    if seconds is None:
        return HOUR
    if seconds < SHORTEST:
        raise refused("", invalid_value(LIFE, seconds, "may not specify a duration less than 10 minutes"))
    if seconds > LONGEST:
        raise refused("", invalid_value(LIFE, seconds, "may not specify a duration larger than 2^32 seconds"))
    return seconds


def refuse_other_names(body: JsonObject, namespace: str, name: str) -> None:
    """Raises Refusal (422) if the request names an account that is not the one of its path."""
    for field, wanted in (("name", name), ("namespace", namespace)):
        given = body["metadata"].get(field)
        if given and given != wanted:
            why = f"must match the service account {field} if specified"
            raise refused(name, invalid_value(f"metadata.{field}", given, why))


def refused(name: str, cause: Cause) -> Refusal:
    """422 of a request."""
    return invalid(Kind(REQUEST.group, "", REQUEST.kind), name, [cause])


def other_object(kind: str, name: str, uid: str) -> Refusal:
    """409: the object of that name is not the one that was meant."""
    why = (
        f"the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been "
        "deleted and then recreated"
    )
    return conflict(Kind("", kind, kind), name, why)
