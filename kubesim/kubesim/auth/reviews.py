"""Access and token reviews: answered and never stored
(recording auth; groups authorization.k8s.io and authentication.k8s.io).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kubesim.auth.attributes import attempt_from
from kubesim.auth.authentication import AUDIENCES, Authentication
from kubesim.auth.rbac import Rbac
from kubesim.auth.rules import Rule
from kubesim.server.api import JsonObject
from kubesim.server.bodies import Bodies, check_kind
from kubesim.server.calls import Call, User
from kubesim.server.stamps import Stamps
from kubesim.server.status import INVALID, Cause, Kind, bad_request, invalid, invalid_value
from kubesim.types.transient import transient

ACCESS_GROUP: Final = "authorization.k8s.io"
IDENTITY_GROUP: Final = "authentication.k8s.io"
# The real server refuses reviews without saying of which kind they are.
NAMELESS: Final = Kind(ACCESS_GROUP, "", "")
TWO: Final = "cannot be specified in combination with resourceAttributes"
NONE: Final = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


class Reviews:
    """Answers every kind of review."""

    def __init__(self, rbac: Rbac, authentication: Authentication, bodies: Bodies, stamps: Stamps) -> None:
        self._rbac = rbac
        self._authentication = authentication
        self._bodies = bodies
        self._stamps = stamps
        self._answers: dict[str, Callable[[Call, JsonObject], JsonObject]] = {
            "SelfSubjectAccessReview": self._own_access,
            "SubjectAccessReview": self._access,
            "LocalSubjectAccessReview": self._access,
            "SelfSubjectRulesReview": self._rules,
            "SelfSubjectReview": self._self,
            "TokenReview": self._token,
        }

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """POST of a review. Raises Refusal (400, 422)."""
        resource = call.route.resource
        sent = check_kind(self._bodies.object(call.request, resource.kind), resource)
        body = transient((resource.group, resource.version, resource.kind), sent)
        answered = self._answers[resource.kind](call, body)
        return 201, {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {"creationTimestamp": None},
            **answered,
        }

    def _own_access(self, call: Call, body: JsonObject) -> JsonObject:
        spec: JsonObject = body.get("spec") or {}
        refuse_faults([*attribute_faults(spec), *metadata_faults(body)])
        return self._decided(call.user, spec)

    def _access(self, call: Call, body: JsonObject) -> JsonObject:
        spec: JsonObject = body.get("spec") or {}
        faults = attribute_faults(spec)
        if not spec.get("user") and not spec.get("groups"):
            faults.append(invalid_value("spec.user", "", "at least one of user or group must be specified"))
        if call.route.resource.namespaced:
            faults += local_faults(body, spec)
        else:
            faults += metadata_faults(body)
        refuse_faults(faults)
        user = User(spec.get("user") or "", spec.get("uid") or "", tuple(spec.get("groups") or ()))
        decided = self._decided(user, spec)
        if call.route.resource.namespaced:
            return {"metadata": {"namespace": call.route.namespace, "creationTimestamp": None}, **decided}
        return decided

    def _decided(self, user: User, spec: JsonObject) -> JsonObject:
        allowed, reason = self._rbac.decide(user, attempt_from(spec))
        status: JsonObject = {"allowed": allowed}
        if reason:
            status["reason"] = reason
        return {"spec": spec, "status": status}

    def _rules(self, call: Call, body: JsonObject) -> JsonObject:
        namespace = (body.get("spec") or {}).get("namespace") or ""
        if not namespace:
            raise bad_request("no namespace on request")
        rules, missing = self._rbac.rules_for(call.user, namespace)
        status: JsonObject = {
            "resourceRules": [resource_rule(rule) for rule in rules if rule.resources],
            "nonResourceRules": [
                {"verbs": list(rule.verbs), "nonResourceURLs": list(rule.urls)} for rule in rules if rule.urls
            ],
            "incomplete": False,
        }
        if missing:
            status["evaluationError"] = missing[0] if len(missing) == 1 else f"[{', '.join(missing)}]"
        return {"spec": {}, "status": status}

    def _self(self, call: Call, body: JsonObject) -> JsonObject:
        return {
            "metadata": {"creationTimestamp": self._stamps.now},
            "status": {"userInfo": user_info(call.user)},
        }

    def _token(self, call: Call, body: JsonObject) -> JsonObject:
        spec: JsonObject = body.get("spec") or {}
        if not spec.get("token"):
            raise bad_request("token is required for TokenReview in authentication")
        user, audiences, error = self._authentication.identify(spec["token"], spec.get("audiences") or AUDIENCES)
        if user is None:
            return {"spec": spec, "status": {"user": {}, "error": error}}
        status = {"authenticated": True, "user": user_info(user), "audiences": list(audiences)}
        return {"spec": spec, "status": status}


def user_info(user: User) -> JsonObject:
    """A user as reviews show one: what is empty is left out."""
    shown = {
        "username": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
    }
    return {key: value for key, value in shown.items() if value}


def resource_rule(rule: Rule) -> JsonObject:
    """A rule about resources as a rules review shows it."""
    shown: JsonObject = {
        "verbs": list(rule.verbs),
        "apiGroups": list(rule.groups),
        "resources": list(rule.resources),
        "resourceNames": list(rule.names),
    }
    return {key: value for key, value in shown.items() if value}


def attribute_faults(spec: JsonObject) -> list[Cause]:
    """Faults of what is asked about: it must be either a resource or a path."""
    paths, resources = spec.get("nonResourceAttributes"), spec.get("resourceAttributes")
    if paths is not None and resources is not None:
        shown = f'authorization.NonResourceAttributes{{Path:"{paths.get("path", "")}", Verb:"{paths.get("verb", "")}"}}'
        return [Cause(INVALID, f"Invalid value: {shown}: {TWO}", "spec.nonResourceAttributes")]
    if paths is None and resources is None:
        return [invalid_value("spec.resourceAttributes", "null", NONE)]
    return []


def metadata_faults(body: JsonObject) -> list[Cause]:
    """A review has no metadata."""
    given = {key for key, value in body["metadata"].items() if value and key != "managedFields"}
    return [Cause(INVALID, f"Invalid value: {given_words(body)}: must be empty", "metadata")] if given else []


def local_faults(body: JsonObject, spec: JsonObject) -> list[Cause]:
    """Faults of a review within a namespace: it asks about that namespace and about resources only."""
    metadata = body["metadata"]
    namespace: str = metadata.get("namespace") or ""
    faults: list[Cause] = []
    if {key for key, value in metadata.items() if value and key not in ("namespace", "managedFields")}:
        why = f"Invalid value: {given_words(body)}: must be empty except for namespace"
        faults.append(Cause(INVALID, why, "metadata"))
    resources = spec.get("resourceAttributes")
    if resources is not None and (resources.get("namespace") or "") != namespace:
        shown = resources.get("namespace") or ""
        faults.append(invalid_value("spec.resourceAttributes.namespace", shown, "must match metadata.namespace"))
    if spec.get("nonResourceAttributes") is not None:
        why = "Invalid value: authorization.NonResourceAttributes: disallowed on this kind of request"
        faults.append(Cause(INVALID, why, "spec.nonResourceAttributes"))
    return faults


def given_words(body: JsonObject) -> str:
    """Metadata about as Go prints it."""
    return f'v1.ObjectMeta{{Name:"{body["metadata"].get("name", "")}"}}'


def refuse_faults(faults: list[Cause]) -> None:
    """Raises Refusal (422) if there are any."""
    if faults:
        raise invalid(NAMELESS, "", faults)
