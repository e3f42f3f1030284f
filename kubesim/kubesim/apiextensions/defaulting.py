"""Pruning and defaulting by a schema.

Invariant: the result shares unchanged parts with its source, and the source is never modified. `metadata` is read as Go
reads an ObjectMeta, in embedded objects too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from kubesim.server.api import JsonObject
from kubesim.server.goformat import decoded_as, go_syntax
from kubesim.types.canonical import Unfit, canonical
from kubesim.types.decoding import Reading
from kubesim.types.schema import MISSING, Schema

OBJECT_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
NOTHING: Final[JsonObject] = {}
OWN: Final = ("apiVersion", "kind", "metadata")
"""The fields that every object has, whatever its schema says."""


class Report:
    """What a strict reader complains about, and a fault that nothing can mend."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.repeated: list[str] = []
        self.fault = ""

    @property
    def complaints(self) -> list[str]:
        """`duplicate field "spec.a"`, then `unknown field "spec.b[0].c"`."""
        return [*self.repeated, *sorted(self.unknown)]


class Shaped(NamedTuple):
    """An object as its schema makes it, and what was wrong with it."""

    object: JsonObject
    report: Report


class Shape:
    """What one node of a schema makes of values. Its children are made when first needed."""

    def __init__(self, schema: Schema, *, root: bool = False) -> None:
        """`root`: the values are whole objects."""
        self._schema = schema
        self._whole = root or schema.embedded
        self._keeps = schema.preserves_unknown

    @cached_property
    def _fields(self) -> Mapping[str, Shape]:
        known = self._schema.properties.items()
        return {name: Shape(field) for name, field in known if not (self._whole and name in OWN)}

    @cached_property
    def _additional(self) -> Shape | None:
        return None if self._schema.additional is None else Shape(self._schema.additional)

    @cached_property
    def _items(self) -> Shape | None:
        return None if self._schema.items is None else Shape(self._schema.items)

    @cached_property
    def _defaults(self) -> Mapping[str, Any]:
        found = {name: field.default for name, field in self._schema.properties.items()}
        return {name: default for name, default in found.items() if default is not MISSING}

    @cached_property
    def _not_null(self) -> frozenset[str]:
        """Fields that drop a null: a default replaces it, or the field is removed."""
        return frozenset(name for name, field in self._schema.properties.items() if not field.nullable)

    def whole(self, object_: JsonObject) -> Shaped:
        """An object, unknown fields dropped and defaults filled in."""
        report = Report()
        return Shaped(self.defaulted(self.prune(object_, report)), report)

    def prune(self, value: Any, report: Report, known: JsonObject = NOTHING) -> Any:
        """Remove unknown fields and add them to the report. Fields shared with `known` are pruned already."""
        return self._pruned(value, "", report, known)

    def _pruned(self, value: Any, path: str, report: Report, known: JsonObject = NOTHING) -> Any:
        if isinstance(value, list):
            items = self._items
            if items is None:
                return value
            return _shared(value, [items._pruned(item, f"{path}[{index}]", report) for index, item in enumerate(value)])
        if not isinstance(value, dict):
            return value
        for name in getattr(value, "names", ()):
            report.repeated.append(f'duplicate field "{_joined(path, name)}"')
        result: JsonObject = {}
        for name in sorted(value):
            item = value[name]
            if item is known.get(name, NOTHING):
                result[name] = item
                continue
            place = _joined(path, name)
            if self._whole and name in OWN:
                result[name] = _metadata(item, place, report) if name == "metadata" else item
            elif name in self._fields:
                result[name] = self._fields[name]._pruned(item, place, report)
            elif self._additional is not None:
                result[name] = self._additional._pruned(item, place, report)
            elif self._keeps:
                result[name] = item
            else:
                report.unknown.append(f'unknown field "{place}"')
        return _shared(value, result)

    def defaulted(self, value: Any, known: JsonObject = NOTHING) -> Any:
        """Add defaults of absent fields; drop invalid nulls. Fields shared with `known` have their defaults."""
        if isinstance(value, list):
            items = self._items
            return value if items is None else _shared(value, [items.defaulted(item) for item in value])
        if not isinstance(value, dict):
            return value
        result: JsonObject = {}
        for name, item in value.items():
            if item is known.get(name, NOTHING):
                result[name] = item
                continue
            field = self._fields.get(name) or (self._additional if name not in OWN or not self._whole else None)
            if item is None and name in self._not_null:
                continue
            result[name] = item if field is None else field.defaulted(item)
        missing = [name for name in self._defaults if name not in result]
        if missing:
            for name in missing:
                default = self._defaults[name]
                result[name] = self._fields[name].defaulted(default) if name in self._fields else default
            result = dict(sorted(result.items()))
        return _shared(value, result)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shared(old: Any, new: Any) -> Any:
    """`old` itself where `new` is the same thing in the same order."""
    if len(old) != len(new):
        return new
    if isinstance(old, list):
        return old if all(one is other for one, other in zip(old, new, strict=True)) else new
    pairs = zip(old.items(), new.items(), strict=True)
    return old if all(a == b and x is y for (a, x), (b, y) in pairs) and type(old) is dict else new


def _metadata(value: Any, path: str, report: Report) -> Any:
    """Metadata as Go reads it; inside of an object the fault names the place."""
    if isinstance(value, dict):
        try:
            return without_nulls(value, canonical(OBJECT_META, value))
        except Unfit:
            reading = Reading(OBJECT_META, value)
        for each in reading.strict:
            complaints = report.unknown if each.startswith("unknown") else report.repeated
            complaints.append(each.replace('field "', f'field "{path}.'))
        fault, found = reading.fault, dict(sorted(reading.value.items()))
    else:
        wrong = f"json: cannot unmarshal {decoded_as(value)} into Go value of type v1.ObjectMeta"
        fault, found = ("" if value is None else wrong), {}
    if fault and not report.fault:
        report.fault = fault if path == "metadata" else f"{path}: Invalid value: {go_syntax(value)}: {fault}"
    return found


def without_nulls(given: JsonObject, read: JsonObject) -> JsonObject:
    """Metadata as it is kept: sorted, and without the null that stands for no creation time."""
    found = {name: read[name] for name in sorted(read) if read[name] is not None}
    return given if found == given and list(found) == list(given) else found
