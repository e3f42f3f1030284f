"""AdmissionReviews as webhooks receive them (recordings admission, finalizer-race).

A review combines the write and the object in the version of the webhook's rules. Reviews of v1 and v1beta1 differ only
in the apiVersion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kubesim.admission.failures import CallFailed
from kubesim.admission.shapes import Objects
from kubesim.admission.webhooks import NAMESPACES, Webhook
from kubesim.server.api import JsonObject
from kubesim.server.calls import User, Write
from kubesim.server.resource import Resource

GROUP: Final = "admission.k8s.io"
META: Final = "meta.k8s.io/v1"
OPTION_KINDS: Final = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
QUERY_OPTIONS: Final = ("fieldManager", "fieldValidation")
DELETE_OPTIONS: Final = ("gracePeriodSeconds", "preconditions", "orphanDependents", "propagationPolicy")
SUBRESOURCE_KINDS: Final[Mapping[tuple[str, str], tuple[str, str, str]]] = {
    ("pods", "eviction"): ("policy", "v1", "Eviction"),
    ("pods", "binding"): ("", "v1", "Binding"),
    ("serviceaccounts", "token"): ("authentication.k8s.io", "v1", "TokenRequest"),
}
SCALE: Final = ("autoscaling", "v1", "Scale")


class Match(NamedTuple):
    """A webhook to call, and the resource as its rules name it (an equivalent of the requested one)."""

    webhook: Webhook
    resource: Resource


def review(match: Match, write: Write, objects: Objects, uid: str) -> JsonObject:
    """The AdmissionReview to send. Raises CallFailed if the webhook reads no version that there is."""
    version = next((each for each in match.webhook.review_versions if each in ("v1", "v1beta1")), None)
    if version is None:
        raise CallFailed(
            "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
        )
    route = write.call.route
    request: JsonObject = {
        "uid": uid,
        "kind": _kind(match.resource, route.subresource),
        "resource": _resource(match.resource),
        "subResource": route.subresource,
        "requestKind": _kind(route.resource, route.subresource),
        "requestResource": _resource(route.resource),
        "requestSubResource": route.subresource,
        "name": name_of(write, objects.new),
        "namespace": namespace_of(write, objects.new),
        "operation": write.operation,
        "userInfo": user_info(write.call.user),
        "object": objects.new,
        "oldObject": objects.old,
        "dryRun": write.dry_run,
        "options": options_of(write, objects.old),
    }
    for key in ("subResource", "requestSubResource", "name", "namespace"):
        if not request[key]:
            del request[key]
    return {"kind": "AdmissionReview", "apiVersion": f"{GROUP}/{version}", "request": request}


def name_of(write: Write, new: JsonObject | None) -> str:
    """The name that a review gives: that of the path, or of the object that is created. (A collection has none.)"""
    if write.call.route.name or write.operation != "CREATE" or new is None:
        return write.call.route.name
    name: str = new["metadata"].get("name", "")
    return name


def namespace_of(write: Write, new: JsonObject | None) -> str:
    """The namespace that a review gives: of a namespace, its own name."""
    resource = write.call.route.resource
    if (resource.group, resource.plural) == (NAMESPACES.group, NAMESPACES.plural):
        return name_of(write, new)
    return write.call.route.namespace or ""


def user_info(user: User) -> JsonObject:
    """The user of the request."""
    info: JsonObject = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


def options_of(write: Write, old: JsonObject | None) -> JsonObject:
    """Options of the operation; a PATCH has UpdateOptions."""
    options: JsonObject = {"kind": OPTION_KINDS[write.operation], "apiVersion": META}
    names = DELETE_OPTIONS if write.operation == "DELETE" else QUERY_OPTIONS
    options.update({name: write.options[name] for name in names if write.options.get(name) not in (None, "")})
    if write.operation == "DELETE" and old is not None and old["kind"] == "Namespace":
        # The registry of namespaces never deletes but the one it has seen.
        options["preconditions"] = {"uid": old["metadata"]["uid"], **options.get("preconditions", {})}
    if write.dry_run:
        options["dryRun"] = ["All"]
    return options


def _kind(resource: Resource, subresource: str) -> JsonObject:
    own = (resource.group, resource.version, resource.kind)
    default = SCALE if subresource == "scale" else own
    group, version, kind = SUBRESOURCE_KINDS.get((resource.plural, subresource), default)
    return {"group": group, "version": version, "kind": kind}


def _resource(resource: Resource) -> JsonObject:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}
