"""What a client reads before it speaks: version, groups, resources, health (recording discovery).

A core-group resource list carries no apiVersion; groups and paths that nobody serves are 404 in plain text. There is no
aggregated discovery (clients fall back to the plain lists) and no OpenAPI v3 yet.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Final

import orjson

from gracectl.sim.server.api import JsonObject, Request, Response
from gracectl.sim.server.resource import Registry, Resource

VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2024-12-11T18:05:36Z",
    "goVersion": "go1.23.3",
    "compiler": "gc",
    "platform": "linux/amd64",
}
HEALTH = ("/healthz", "/readyz", "/livez")
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain; charset=utf-8"}
SUBRESOURCES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "binding": ("", "Binding", ("create",)),
    "eviction": ("policy/v1", "Eviction", ("create",)),
    "finalize": ("", "", ("update",)),
    "scale": ("autoscaling/v1", "Scale", ("get", "patch", "update")),
    "status": ("", "", ("get", "patch", "update")),
    "token": ("authentication.k8s.io/v1", "TokenRequest", ("create",)),
}


GROUP_ORDER: Final = (
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
)
"""The order in which a real server lists its groups; custom ones follow by name."""


class Discovery:
    """Answers about the server itself."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def answer(self, request: Request) -> Response | None:
        """The answer for a path of discovery or health, or None if it is not one."""
        path = request.path.rstrip("/")
        if request.method != "GET":
            return None
        if path == "/openapi/v2":
            return openapi(request)
        if path in HEALTH:
            return Response(status=200, headers=TEXT, body="ok")
        body = self._body(path)
        return None if body is None else Response(status=200, headers=JSON, body=body)

    def _body(self, path: str) -> JsonObject | None:
        match path.strip("/").split("/"):
            case ["version"]:
                return dict(VERSION)
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                groups = [self._group(name) for name in self._groups()]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["apis", group] if group in self._groups():
                return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)}
            case ["api", version] if self._registry.serves("", version):
                return {"kind": "APIResourceList", **self._resources("", version)}
            case ["apis", group, version] if self._registry.serves(group, version):
                return {"kind": "APIResourceList", "apiVersion": "v1", **self._resources(group, version)}
        return None

    def _groups(self) -> Iterable[str]:
        served = dict.fromkeys(resource.group for resource in self._registry if resource.group)
        known = {group: place for place, group in enumerate(GROUP_ORDER)}
        return sorted(served, key=lambda group: (known.get(group, len(known)), group))

    def _group(self, name: str) -> JsonObject:
        versions = list(dict.fromkeys(resource.version for resource in self._registry if resource.group == name))
        named = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
        return {"name": name, "versions": named, "preferredVersion": named[0]}

    def _resources(self, group: str, version: str) -> JsonObject:
        served = sorted(
            (each for each in self._registry if each.group == group and each.version == version),
            key=lambda each: each.plural,
        )
        listed = [entry for resource in served for entry in entries(resource)]
        return {"groupVersion": f"{group}/{version}" if group else version, "resources": listed}


def openapi(request: Request) -> Response:
    """An OpenAPI document that describes nothing: clients then validate nothing. Empty protobuf is empty, too."""
    if "protobuf" in request.headers.get("accept", ""):
        return Response(status=200, headers={"content-type": "application/octet-stream"}, body=b"")
    document = {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": {},
        "definitions": {},
    }
    return Response(status=200, headers=TEXT, body=orjson.dumps(document))


def entries(resource: Resource) -> list[JsonObject]:
    """A resource and its subresources, as a resource list shows them."""
    scope = {"singularName": resource.singular, "namespaced": resource.namespaced}
    entry: JsonObject = {"name": resource.plural, **scope, "kind": resource.kind, "verbs": list(resource.verbs)}
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.verbs != ("create",):
        entry["storageVersionHash"] = storage_hash(resource)
    found = [entry]
    for name in resource.subresources:
        origin, kind, verbs = SUBRESOURCES[name]
        group, _, version = origin.partition("/")
        foreign = {"group": group, "version": version} if origin else {}
        found.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                **foreign,
                "kind": kind or resource.kind,
                "verbs": list(verbs),
            }
        )
    return found


STORAGE_HASHES = {
    "events": "r2yiGXH7wu8=",
    "namespaces": "Q3oi5N2YM8M=",
    "nodes": "XwShjMxG9Fs=",
    "persistentvolumeclaims": "QWTyNDq0dC4=",
    "persistentvolumes": "HN/zwEC+JgM=",
    "pods": "xPOwRZ+Yhw8=",
    "poddisruptionbudgets.policy": "6BGBu0kpHtk=",
    "leases.coordination.k8s.io": "gqkMMb/YqFM=",
    "customresourcedefinitions.apiextensions.k8s.io": "jfWCUB31mvA=",
}


def storage_hash(resource: Resource) -> str:
    """A short hash that stands for the stored version. Opaque to clients: any text does where none is recorded."""
    if resource.table in STORAGE_HASHES:
        return STORAGE_HASHES[resource.table]
    if resource.storage_version:
        stored = f"{resource.group}/{resource.storage_version}/{resource.kind}"
        return base64.b64encode(hashlib.sha256(stored.encode()).digest()[:8]).decode()
    return hashlib.sha256(f"{resource.table}/{resource.kind}".encode()).hexdigest()[:12]
