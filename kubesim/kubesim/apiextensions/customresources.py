"""Custom resources: what a write does to an object, and how each version shows the stored object.

There is no conversion: versions differ in apiVersion, pruning and defaults. Objects are stored in the shape of the
storage version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from kubesim.apiextensions.celrules import Rules, rules_of
from kubesim.apiextensions.columns import columns_of
from kubesim.apiextensions.defaulting import Shape
from kubesim.apiextensions.definition import Definition, Version
from kubesim.apiextensions.uniqueness import duplicates, has_identities
from kubesim.apiextensions.values import NO_PLACE, TOO_LONG, TOO_MANY, TYPE_INVALID, SchemaValidator
from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Field, Occasion, Resource, Strategy, View, fields, keep_from
from kubesim.server.status import NOT_SUPPORTED, REQUIRED, Cause, required
from kubesim.types.schema import Schema

VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
BLOCKING: Final = (NOT_SUPPORTED, REQUIRED, TOO_LONG, TOO_MANY, TYPE_INVALID)
"""With such faults rules are not run: they might look at what is not there."""

BLOCKED: Final = Cause(
    "FieldValueInvalid",
    'Invalid value: "null": some validation rules were not checked because the object was invalid; correct the '
    "existing errors to complete validation",
    NO_PLACE,
)


class CustomStrategy(Strategy):
    """Objects of one version of a definition."""

    untyped = True
    unconditional_update = False
    status_writes_metadata = False
    empty: Mapping[str, Json] = {}

    def __init__(self, definition: Definition, version: Version, stored: Shape, *, as_stored: bool) -> None:
        """`stored`: how objects are stored; `as_stored`: this version shows them just so."""
        self.definition = definition
        self.as_stored = as_stored
        self.version = version
        self.shape = Shape(version.schema, root=True)
        self._stored = stored
        self._conformity = SchemaValidator(version.schema)
        self._api_version = f"{definition.group}/{version.name}"

    @cached_property
    def _rules(self) -> Rules | None:
        return rules_of(self.version.schema, root=True)

    @cached_property
    def _status_conformity(self) -> SchemaValidator | None:
        status = self.version.schema.properties.get("status")
        return None if status is None else SchemaValidator(status)

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = self._stored.defaulted(new)
        if self.version.has_status and "status" in new:
            new = {key: value for key, value in new.items() if key != "status"}
        return {**new, "metadata": {**new["metadata"], "generation": 1}}

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        if occasion.subresource == "status":
            return keep_from({**old, "metadata": new["metadata"]}, self._stored.defaulted(new, old), ("status",))
        new = self._stored.defaulted(new, old)
        if self.version.has_status:
            new = keep_from(new, old, ("status",))
        if not self.as_stored:
            old = self._stored.defaulted(old)  # a default that came after the object is no change of it
        if all(new.get(key) == old.get(key) for key in new.keys() | old.keys() if key != "metadata"):
            return new
        return {**new, "metadata": {**new["metadata"], "generation": old["metadata"].get("generation", 0) + 1}}

    def seen(self, object_: JsonObject) -> JsonObject:
        """A stored object as this version shows it."""
        if self.as_stored:
            return object_
        return {**self.shape.whole(object_).object, "apiVersion": self._api_version}

    def validate(self, new: JsonObject) -> list[Cause]:
        new = self.seen(new)
        faults = [*self._conformity.faults(new), *embedded_faults(self.version.schema, new), *self._duplicates(new)]
        return self._with_rules(faults, new)

    def faults_of_change(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> list[Cause]:
        new, old = self.seen(new), self.seen(old)
        schema, is_status = self.version.schema, occasion.subresource == "status"
        faults = self._status_faults(new, old) if is_status else self._conformity.faults(new, "", old)
        faults += () if is_status else embedded_faults(schema, new, old=old)
        repeated = self._duplicates(new)
        if repeated and not self._duplicates(old):
            faults += repeated
        return self._with_rules(faults, new, old)

    @cached_property
    def _has_identities(self) -> bool:
        return has_identities(self.version.schema)

    def _duplicates(self, object_: JsonObject) -> list[Cause]:
        return list(duplicates(self.version.schema, object_)) if self._has_identities else []

    def _status_faults(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        """A status is looked at by itself: its faults are worded as if it were the whole object."""
        if self._status_conformity is None or "status" not in new:
            return []
        before = old.get("status")
        found = self._status_conformity.faults(new["status"], "", *(() if before is None else (before,)))
        return [
            Cause(each.reason, each.message, "status" if each.field == NO_PLACE else f"status.{each.field}")
            for each in found
        ]

    def _with_rules(self, faults: list[Cause], new: JsonObject, old: JsonObject | None = None) -> list[Cause]:
        rules = self._rules
        if rules is None:
            return faults
        if any(fault.reason in BLOCKING for fault in faults):
            return [*faults, BLOCKED]
        return [*faults, *(rules.faults(new) if old is None else rules.faults(new, old))]


def embedded_faults(schema: Schema, value: Any, path: str = "", old: Any = None) -> Iterator[Cause]:
    """Whole objects inside of an object must say what they are. What is shared with `old` was looked at before."""
    if value is old:
        return
    known = old if isinstance(old, dict) else {}
    if isinstance(value, dict):
        if schema.embedded:
            for name in ("apiVersion", "kind"):
                if not value.get(name):
                    yield required(f"{path}.{name}", "must not be empty")
        for name, item in value.items():
            if name in schema.properties:
                place = f"{path}.{name}" if path else name
                yield from embedded_faults(schema.properties[name], item, place, known.get(name))
            elif schema.additional is not None:
                yield from embedded_faults(schema.additional, item, f"{path}[{name}]")
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from embedded_faults(schema.items, item, f"{path}[{index}]")


def resources_of(definition: Definition, *, as_stored: bool) -> list[Resource]:
    """Where a definition's versions are served. `as_stored`: the schema of the storage version is the one by which all
    its objects were written, so that it shows them as they are."""
    stored = Shape(definition.storage.schema, root=True)
    return [_resource(definition, version, stored, as_stored=as_stored) for version in definition.served]


def _resource(definition: Definition, version: Version, stored: Shape, *, as_stored: bool) -> Resource:
    names, storage = definition.names, definition.storage
    stored_as = f"{definition.group}/{storage.name}"
    strategy = CustomStrategy(definition, version, stored, as_stored=version is storage and as_stored)

    def to_stored(object_: JsonObject) -> JsonObject:
        return {**stored.whole(object_).object, "apiVersion": stored_as}

    return Resource(
        group=definition.group,
        version=version.name,
        plural=names["plural"],
        kind=names["kind"],
        list_kind=names.get("listKind", ""),
        singular=names.get("singular", ""),
        namespaced=definition.namespaced,
        strategy=strategy,
        verbs=VERBS,
        subresources=("status",) if version.has_status else (),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        selectable=selectable_fields(version),
        unselectable="field label not supported: {field}",
        columns=columns_of(version.columns),
        view=None if strategy.as_stored else View(strategy.seen, to_stored),
        schema=version.schema,
        storage_version=storage.name,
        warning=deprecation(definition, version),
    )


def selectable_fields(version: Version) -> dict[str, Field]:
    """The fields by which objects may be selected."""
    return fields(*(path.removeprefix(".") for path in version.selectable))


def deprecation(definition: Definition, version: Version) -> str:
    """What users of a deprecated version are warned of, "" if it is not."""
    if not version.deprecated:
        return ""
    if version.warning is not None:
        return version.warning
    kind = definition.names["kind"]
    newer = [each for each in definition.served if not each.deprecated]
    instead = f"; use {definition.group}/{newer[0].name} {kind}" if newer else ""
    return f"{definition.group}/{version.name} {kind} is deprecated{instead}"


def custom_type(resource: Resource) -> Schema | None:
    """The schema of a custom resource; None for built-in kinds."""
    strategy = resource.strategy
    return strategy.version.schema if isinstance(strategy, CustomStrategy) else None
