"""Discovery: version, groups, resources, health (recording discovery).

A core-group resource list has no apiVersion; unserved groups and paths are 404 in plain text. New clients use
aggregated discovery, older ones one list per group.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Final

from kubesim.kinds.subresources import SUBRESOURCES
from kubesim.server.api import JSON_HEADERS, JsonObject, Request, Response
from kubesim.server.resource import Registry, Resource

VERSION = {
    "major": "1",
    "minor": "33",
    "emulationMajor": "1",
    "emulationMinor": "33",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "32",
    "gitVersion": "v1.33.4",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2025-08-13T14:52:17Z",
    "goVersion": "go1.24.5",
    "compiler": "gc",
    "platform": "linux/amd64",
}
"""The version that is answered where versions differ from the recordings."""

HEALTH = ("/healthz", "/readyz", "/livez")
ALL_AT_ONCE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TEXT = {"content-type": "text/plain; charset=utf-8"}


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
        if path in HEALTH:
            return Response(status=200, headers=TEXT, body="ok")
        if path in ("/api", "/apis") and wants_all_at_once(request.headers.get("accept", "")):
            return Response(status=200, headers={"content-type": ALL_AT_ONCE, "vary": "Accept"}, body=self._all(path))
        body = self._body(path)
        return None if body is None else Response(status=200, headers=JSON_HEADERS, body=body)

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

    def _all(self, path: str) -> JsonObject:
        """Every group below a path with all its resources."""
        items: list[JsonObject] = []
        for group in [""] if path == "/api" else self._groups():
            found: dict[str, list[Resource]] = {}
            for resource in self._registry:
                if resource.group == group:
                    found.setdefault(resource.version, []).append(resource)
            versions = [
                {
                    "version": version,
                    "resources": [described(each) for each in sorted(resources, key=lambda each: each.plural)],
                    "freshness": "Current",
                }
                for version, resources in found.items()
            ]
            named: JsonObject = {"name": group} if group else {}
            items.append({"metadata": {**named, "creationTimestamp": None}, "versions": versions})
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }

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


def wants_all_at_once(accept: str) -> bool:
    """Whether a client would rather have all groups with their resources than a plain list."""
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media in ("application/json", "*/*"):
            wanted = {"g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"}
            if not parameters or wanted == set(parameters):
                return bool(parameters)
    return False


def described(resource: Resource) -> JsonObject:
    """A resource and its subresources, as aggregated discovery shows them."""
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": {"group": "", "version": "", "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular or resource.kind.lower(),
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [_described(resource, name) for name in resource.subresources]
    return entry


def _described(resource: Resource, name: str) -> JsonObject:
    origin, kind, verbs = SUBRESOURCES[name]
    group, _, version = origin.partition("/")
    response = {"group": group, "version": version, "kind": kind or resource.kind}
    return {"subresource": name, "responseKind": response, "verbs": list(verbs)}


def entries(resource: Resource) -> list[JsonObject]:
    """A resource and its subresources, as a resource list shows them."""
    scope = {"singularName": resource.singular or resource.kind.lower(), "namespaced": resource.namespaced}
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
    "poddisruptionbudgets.policy": "EVWiDmWqyJw=",
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
