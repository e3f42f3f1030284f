"""A CustomResourceDefinition as data: what it serves, version by version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from kubesim.server.api import JsonObject
from kubesim.types.schema import Schema

GROUP: Final = "apiextensions.k8s.io"
PLURAL: Final = "customresourcedefinitions"
TABLE: Final = f"{PLURAL}.{GROUP}"
CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
"""Finalizer of a definition: its objects are deleted first."""

ANYTHING: Final[Mapping[str, Any]] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_VERSION: Final = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


class Version:
    """One version of a custom resource."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.name: str = raw["name"]
        self.served: bool = raw["served"]
        self.storage: bool = raw["storage"]
        self.deprecated = bool(raw.get("deprecated"))
        self.warning: str | None = raw.get("deprecationWarning")
        self.columns: list[JsonObject] = raw.get("additionalPrinterColumns") or []
        self.selectable = tuple(each["jsonPath"] for each in raw.get("selectableFields") or ())
        self.has_status = (raw.get("subresources") or {}).get("status") is not None

    @cached_property
    def schema(self) -> Schema:
        """What its objects may hold."""
        return Schema((self._raw.get("schema") or {}).get("openAPIV3Schema") or ANYTHING)


class Definition:
    """A definition that was found right."""

    def __init__(self, raw: JsonObject) -> None:
        """`raw`: the stored CustomResourceDefinition."""
        spec = raw["spec"]
        self.name: str = raw["metadata"]["name"]
        self.group: str = spec["group"]
        self.namespaced = spec["scope"] == "Namespaced"
        self.names: JsonObject = raw["status"]["acceptedNames"]
        self.versions = sorted((Version(each) for each in spec["versions"]), key=lambda version: priority(version.name))
        self.is_terminating = condition(raw, "Terminating").get("status") == "True"

    @property
    def storage(self) -> Version:
        """The version in which objects are stored."""
        return next(version for version in self.versions if version.storage)

    @property
    def served(self) -> list[Version]:
        """The versions served, the preferred one first."""
        return [version for version in self.versions if version.served]


def priority(name: str) -> tuple[int, int, int, str]:
    """A key that sorts versions as clients prefer them: v2, v1, v1beta1, v1alpha1, then names that are no versions."""
    found = _VERSION.fullmatch(name)
    if found is None:
        return (3, 0, 0, name)
    major, stage, minor = found.groups()
    return ({None: 0, "beta": 1, "alpha": 2}[stage], -int(major), -int(minor or 0), "")


def condition(raw: JsonObject, type_: str) -> JsonObject:
    """A condition of a definition, {} if it has none of the type."""
    found = (each for each in raw["status"].get("conditions") or () if each["type"] == type_)
    return next(found, {})


def with_condition(raw: JsonObject, now: str, type_: str, **said: str) -> JsonObject:
    """The definition with a condition set: `status`, `reason`, `message`. The time changes with the status only."""
    old = condition(raw, type_)
    since = old["lastTransitionTime"] if old.get("status") == said["status"] else now
    new = {"type": type_, "status": said["status"], "lastTransitionTime": since, "reason": said["reason"]}
    new["message"] = said["message"]
    conditions = list(raw["status"].get("conditions") or ())
    place = next((index for index, each in enumerate(conditions) if each["type"] == type_), len(conditions))
    return with_status(raw, conditions=[*conditions[:place], new, *conditions[place + 1 :]])


def with_status(raw: JsonObject, **changes: Any) -> JsonObject:
    """The definition with some of its status changed."""
    return {**raw, "status": {**raw["status"], **changes}}
