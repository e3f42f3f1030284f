"""Validation of CustomResourceDefinitions, in the words and the order of a real server.

What all versions share is checked once, under its name from the time when definitions had one version
(`spec.validation`, `spec.subresources`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from kubesim.apiextensions.schemachecks import schema_faults
from kubesim.apiextensions.structural import go_value
from kubesim.server.api import JsonObject
from kubesim.server.goformat import go_strings
from kubesim.server.names import LABEL_1035_RULE, SUBDOMAIN_RULE, is_label_1035, is_subdomain
from kubesim.server.status import Cause, forbidden_value, invalid_value, not_supported, required

COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
APPROVAL: Final = "api-approved.kubernetes.io"
SHARED: Final = {
    "schema": "validation",
    "subresources": "subresources",
    "additionalPrinterColumns": "additionalPrinterColumns",
}
"""What versions may have in common, and what it is called then."""


def definition_faults(raw: JsonObject) -> list[Cause]:
    """Everything wrong with a definition but its metadata."""
    annotations = raw["metadata"].get("annotations")
    return list(_faults_of(msgspec.json.encode({**raw, "metadata": {"annotations": annotations}})))


@lru_cache(maxsize=16)
def _faults_of(encoded: bytes) -> tuple[Cause, ...]:
    """Remembered: tests put the same definitions into each of many clusters, and an update repeats the check."""
    return tuple(_Definition(msgspec.json.decode(encoded)).faults())


def name_faults(raw: JsonObject) -> list[Cause]:
    """A new definition must be named after what it defines."""
    spec, name = raw["spec"], raw["metadata"].get("name", "")
    if name == f"{(spec.get('names') or {}).get('plural', '')}.{spec.get('group', '')}":
        return []
    return [invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')]


def change_faults(new: JsonObject, old: JsonObject, *, established: bool) -> Iterator[Cause]:
    """What may not change: the group and the plural ever, the kind and the scope once it is served."""
    paths = ["group", "names.plural"]
    for path in [*(["scope", "names.kind"] if established else []), *paths]:
        before, after = _at(old["spec"], path), _at(new["spec"], path)
        if before != after:
            yield invalid_value(f"spec.{path}", after, "field is immutable")


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name, "") if isinstance(value, Mapping) else ""
    return value


class _Definition:
    def __init__(self, raw: JsonObject) -> None:
        self._raw = raw
        self._spec: JsonObject = raw.get("spec") or {}
        self._names: JsonObject = self._spec.get("names") or {}
        self._versions: list[JsonObject] = self._spec.get("versions") or []
        self._shared = {
            key: self._versions[0][key]
            for key in SHARED
            if self._versions and all(each.get(key) == self._versions[0].get(key) for each in self._versions)
            if self._versions[0].get(key)
        }

    def faults(self) -> Iterator[Cause]:
        names, group = self._names, self._spec.get("group", "")
        yield from self._group(group)
        yield from self._scope()
        yield from self._schemas_required()
        yield from self._each_version()
        yield from self._version_list()
        for key in ("plural", "singular", "kind", "listKind"):
            if not names.get(key):
                yield required(f"spec.names.{key}")
        yield from names_faults(names, "spec.names")
        yield from self._parts(self._shared, "spec", SHARED)
        yield from self._conversion()
        if not any(version.get("storage") for version in self._versions):
            why = "must have at least one stored version"
            yield go_value("status.storedVersions", "[]string(nil)", why)
        else:
            yield from self._stored_versions()
        yield from self._approval(group)
        if self._spec.get("preserveUnknownFields"):
            instead = "set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
            why = f"cannot set to true, {instead}"
            yield go_value("spec.preserveUnknownFields", "true", why)

    @staticmethod
    def _group(group: str) -> Iterator[Cause]:
        if not group:
            yield required("spec.group")
        elif not is_subdomain(group):
            yield invalid_value("spec.group", group, SUBDOMAIN_RULE)
        elif "." not in group:
            yield invalid_value("spec.group", group, "should be a domain with at least one dot")

    def _scope(self) -> Iterator[Cause]:
        scope = self._spec.get("scope", "")
        if not scope:
            yield required("spec.scope")
        elif scope not in ("Cluster", "Namespaced"):
            yield not_supported("spec.scope", f'"{scope}"', ("Cluster", "Namespaced"))

    def _schemas_required(self) -> Iterator[Cause]:
        for index, version in enumerate(self._versions):
            if not (version.get("schema") or {}).get("openAPIV3Schema"):
                yield required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required")

    def _each_version(self) -> Iterator[Cause]:
        for index, version in enumerate(self._versions):
            path = f"spec.versions[{index}]"
            if not is_label_1035(version.get("name", "")):
                yield invalid_value(f"{path}.name", version.get("name", ""), LABEL_1035_RULE)
            warning = version.get("deprecationWarning")
            if warning is not None and not version.get("deprecated"):
                yield invalid_value(f"{path}.deprecationWarning", warning, "can only be set for deprecated versions")
            elif warning is not None and len(warning) > 256:
                yield invalid_value(f"{path}.deprecationWarning", warning, "must be <= 256 characters long")
            elif warning == "":
                yield invalid_value(f"{path}.deprecationWarning", warning, "must not be an empty string")
            own = {key: value for key, value in version.items() if key not in self._shared}
            yield from self._parts(own, path, {key: key for key in SHARED}, version)

    def _parts(
        self, parts: Mapping[str, Any], path: str, words: Mapping[str, str], version: Mapping[str, Any] | None = None
    ) -> Iterator[Cause]:
        """Schema and columns, of one version or of all."""
        whole = version or (self._versions[0] if self._versions else {})
        schema = (whole.get("schema") or {}).get("openAPIV3Schema")
        if parts.get("schema") and schema:
            yield from schema_faults(schema, f"{path}.{words['schema']}.openAPIV3Schema")
        for index, column in enumerate(parts.get("additionalPrinterColumns") or ()):
            yield from column_faults(column, f"{path}.{words['additionalPrinterColumns']}[{index}]")

    def _version_list(self) -> Iterator[Cause]:
        shown = "[]apiextensions.CustomResourceDefinitionVersion{…}"
        names = [version.get("name", "") for version in self._versions]
        if len(set(names)) < len(names):
            yield go_value("spec.versions", shown, "must contain unique version names")
        if sum(bool(version.get("storage")) for version in self._versions) != 1:
            yield go_value("spec.versions", shown, "must have exactly one version marked as storage version")
        if names and not is_label_1035(names[0]):
            yield invalid_value("spec.version", names[0], LABEL_1035_RULE)

    def _stored_versions(self) -> Iterator[Cause]:
        known = {version.get("name") for version in self._versions}
        stored = (self._raw.get("status") or {}).get("storedVersions") or []
        for version in self._versions:
            if version.get("storage") and version.get("name") not in stored:
                why = f"must have the storage version {version.get('name')}"
                yield go_value("status.storedVersions", go_strings(stored), why)
        for index, name in enumerate(stored):
            if name not in known:
                why = (
                    f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                    f"spec.versions until a storage migration ensures no data remains persisted in {name} and removes "
                    f"{name} from status.storedVersions"
                )
                yield invalid_value(f"status.storedVersions[{index}]", name, why)

    def _conversion(self) -> Iterator[Cause]:
        conversion: JsonObject = self._spec.get("conversion") or {"strategy": "None"}
        strategy, path = conversion.get("strategy", ""), "spec.conversion"
        if not strategy:
            yield required(f"{path}.strategy")
        elif strategy not in ("None", "Webhook"):
            yield not_supported(f"{path}.strategy", f'"{strategy}"', ("None", "Webhook"))
        webhook = conversion.get("webhook") or {}
        if strategy != "Webhook":
            if conversion.get("webhook") is not None:
                why = "should not be set when strategy is not set to Webhook"
                yield forbidden_value(f"{path}.webhookClientConfig", why)
            return
        found = []
        if not webhook.get("clientConfig"):
            found.append(required(f"{path}.webhookClientConfig", "required when strategy is set to Webhook"))
        if not webhook.get("conversionReviewVersions"):
            found.append(required(f"{path}.conversionReviewVersions"))
        yield from found
        if not found:
            yield forbidden_value(f"{path}.strategy", "this server runs no conversion webhooks; None is supported")

    def _approval(self, group: str) -> Iterator[Cause]:
        protected = group.endswith((".k8s.io", ".kubernetes.io")) or group in ("k8s.io", "kubernetes.io")
        if protected and not (self._raw["metadata"].get("annotations") or {}).get(APPROVAL):
            why = (
                f'protected groups must have approval annotation "{APPROVAL}", see '
                "https://github.com/kubernetes/enhancements/pull/1111"
            )
            yield required(f"metadata.annotations[{APPROVAL}]", why)


def names_faults(names: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """Faults of a definition's names, as far as they are given."""
    for key in ("plural", "singular"):
        if names.get(key) and not is_label_1035(names[key]):
            yield invalid_value(f"{path}.{key}", names[key], LABEL_1035_RULE)
    for key in ("kind", "listKind"):
        if names.get(key) and not is_label_1035(names[key].lower()):
            why = f"may have mixed case, but should otherwise match: {LABEL_1035_RULE}"
            yield invalid_value(f"{path}.{key}", names[key], why)
    for index, name in enumerate(names.get("shortNames") or ()):
        if not is_label_1035(name):
            yield invalid_value(f"{path}.shortNames[{index}]", name, LABEL_1035_RULE)
    if names.get("kind") and names["kind"] == names.get("listKind"):
        yield invalid_value(f"{path}.listKind", names["listKind"], "kind and listKind may not be the same")
    for index, name in enumerate(names.get("categories") or ()):
        if not is_label_1035(name):
            yield invalid_value(f"{path}.categories[{index}]", name, LABEL_1035_RULE)


def column_faults(column: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """Faults of a printer column."""
    words = f"must be one of {','.join(COLUMN_TYPES)}"
    type_, format_, json_path = column.get("type", ""), column.get("format", ""), column.get("jsonPath", "")
    if not column.get("name"):
        yield required(f"{path}.name")
    if not type_:
        yield required(f"{path}.type", words)
    elif type_ not in COLUMN_TYPES:
        yield invalid_value(f"{path}.type", type_, words)
    if format_ and format_ not in COLUMN_FORMATS:
        yield invalid_value(f"{path}.format", format_, f"must be one of {','.join(COLUMN_FORMATS)}")
    if not json_path:
        yield required(f"{path}.JSONPath")
    elif json_path[0] != ".":
        yield invalid_value(f"{path}.JSONPath", json_path, "must be a simple json path starting with .")
