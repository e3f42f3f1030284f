"""Decoding of a JSON value as Go's decoder does it, where `canonical` refuses the value.

The result fits its type, or a fault says why not, in Go's words. As in Go, only the first fault is reported; unknown
and repeated fields are collected by path, in order. (https://github.com/kubernetes-sigs/json)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import decoded_as
from kubesim.types import scalars
from kubesim.types.gotypes import SCHEMA, GoType, go_fields, go_type

_GO_KINDS: Final = {bool: "bool", int: "int64", float: "float64", str: "string", list: "slice", dict: "map"}
_SCALARS: Final = ("string", "bool", "int32", "int64", "float64")
_TEXTS: Final[dict[str, Callable[[Json], str]]] = {
    "time": scalars.time_text,
    "microTime": scalars.micro_time_text,
    "duration": scalars.duration_text,
    "quantity": scalars.quantity_text,
    "bytes": scalars.base64_text,
}
_LIMITS: Final = {"int32": 1 << 31, "int64": 1 << 63}
SCHEMA_NAME: Final = "v1.JSONSchemaProps"
_ABSENT: Final = object()
"""What null makes of a field: it stays as if it had not been there."""


class Repeated(dict[str, Any]):
    """A JSON object in which some names stood more than once; the last value holds."""

    names: tuple[str, ...] = ()


def parsed_with_repetitions(raw: bytes) -> Json:
    """JSON, with Repeated wherever names were repeated. Raises ValueError."""
    return json.loads(raw, object_pairs_hook=_paired)


def _paired(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) == len(pairs):
        return whole
    repeated = Repeated(whole)
    names = [name for name, _ in pairs]
    repeated.names = tuple(dict.fromkeys(name for name in names if names.count(name) > 1))
    return repeated


class Reading:
    """One object, read. `value` is what fits, `fault` why it does not ("" if it does), `strict` what a strict decoder
    would complain about (`unknown field "spec.foo"`)."""

    def __init__(self, struct: str, value: JsonObject) -> None:
        """`struct`: a type of the catalogue. Raises KeyError for one that it does not know."""
        self.fault = ""
        self.strict: list[str] = []
        self.value: JsonObject = self._struct(struct, value, Place(_name(struct)))

    def _struct(self, struct: str, value: JsonObject, place: Place) -> JsonObject:
        fields = {field.name: field.type for field in go_fields(struct)}
        repeated = value.names if isinstance(value, Repeated) else ()
        result: JsonObject = {}
        for name, item in value.items():
            if name in repeated:
                self.strict.append(f'duplicate field "{place.strictly(name)}"')
            if name not in fields:
                self.strict.append(f'unknown field "{place.strictly(name)}"')
                continue
            read = self._value(fields[name], item, place.field(name))
            if read is not _ABSENT:
                result[name] = read
        return result

    def _value(self, go: GoType, value: Json, place: Place) -> Any:
        kind = go.kind
        if kind == "any":
            return value
        if value is None:
            return "0" if kind == "quantity" and not go.pointer else _ABSENT
        if kind == "struct":
            if not isinstance(value, dict):
                return self._wrong(value, go.shown, place)
            return self._struct(go.struct, value, place.inside(_name(go.struct)))
        if kind == "list":
            return self._list(go, value, place)
        if kind == "map":
            return self._map(go, value, place)
        if kind.startswith("schema"):
            return self._schema(kind, value, place)
        return self._scalar(go, value, place)

    def _list(self, go: GoType, value: Json, place: Place) -> Any:
        if not isinstance(value, list):
            return self._wrong(value, go.shown, place)
        of = go_type(go.of)
        found = [self._value(of, item, place.item(index)) for index, item in enumerate(value)]
        return [_zero(of) if item is _ABSENT else item for item in found]

    def _map(self, go: GoType, value: Json, place: Place) -> Any:
        if not isinstance(value, dict):
            return self._wrong(value, go.shown, place)
        of = go_type(go.of)
        found = {name: self._value(of, item, place.entry(name)) for name, item in value.items()}
        return {name: _zero(of) if item is _ABSENT else item for name, item in found.items()}

    def _schema(self, kind: str, value: Json, place: Place) -> Any:
        if isinstance(value, dict):
            return self._struct(SCHEMA, value, place.inside(_name(SCHEMA)))
        if kind == "schemaOrBool":
            return value if isinstance(value, bool) else self._refused("boolean or JSON schema expected")
        if not isinstance(value, list):
            return _ABSENT  # Go reads nothing of what is neither
        of, right = ("string", str) if kind == "schemaOrStrings" else (SCHEMA_NAME, dict)
        for index, item in enumerate(value):
            if not isinstance(item, right):
                return self._wrong(item, of, place.item(index))
        return value if right is str else [self._schema(kind, item, place.item(i)) for i, item in enumerate(value)]

    def _scalar(self, go: GoType, value: Json, place: Place) -> Any:
        kind = go.kind
        if kind in _TEXTS:
            try:
                return _TEXTS[kind](value)
            except TypeError as error:
                return self._wrong(value, str(error), place)
            except ValueError as error:
                return self._refused(str(error))
        if kind == "intOrString":
            return value if isinstance(value, str) else self._number("int32", "int32", value, place)
        if kind in _LIMITS:
            return self._number(kind, go.shown, value, place)
        if kind == "float64":
            right = isinstance(value, (int, float)) and not isinstance(value, bool)
        else:
            right = isinstance(value, bool if kind == "bool" else str)
        return value if right else self._wrong(value, go.shown, place)

    def _number(self, kind: str, shown: str, value: Json, place: Place) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return self._wrong(value, shown, place)
        limit = _LIMITS[kind]
        if isinstance(value, int) and -limit <= value < limit:
            return value
        return self._refused(f"json: cannot unmarshal number {value} into Go struct field {place} of type {shown}")

    def _wrong(self, value: Json, shown: str, place: Place) -> object:
        found = decoded_as(value)
        return self._refused(f"json: cannot unmarshal {found} into Go struct field {place} of type {shown}")

    def _refused(self, fault: str) -> object:
        self.fault = self.fault or fault
        return _ABSENT


class Conversion(Reading):
    """A strategic patch, read from a map in memory; only the words differ (apimachinery, runtime/converter.go)."""

    def __init__(self, struct: str, value: JsonObject) -> None:
        """See Reading."""
        super().__init__(struct, value)
        self.strict.sort()

    def _wrong(self, value: Json, shown: str, place: Place) -> object:
        found = _GO_KINDS.get(type(value), "map")
        if shown.startswith("["):
            return self._refused(f"cannot restore slice from {found}")
        if shown.startswith("map["):
            return self._refused(f"cannot restore map from {found}")
        if shown in _SCALARS:
            return self._refused(f"cannot convert {found} to {shown}")
        return self._refused(f"cannot restore struct from: {found}")


class Place:
    """Where in an object a value stands: for faults (struct and fields), and for a strict decoder (with indexes)."""

    __slots__ = ("_fields", "_path", "_struct")

    def __init__(self, struct: str, fields: str = "", path: str = "") -> None:
        self._struct = struct
        self._fields = fields
        self._path = path

    def field(self, name: str) -> Place:
        """A field of the struct at this place."""
        return Place(self._struct, f"{self._fields}.{name}", self.strictly(name))

    def inside(self, struct: str) -> Place:
        """The struct that stands at this place."""
        return Place(struct, self._fields, self._path)

    def item(self, index: int) -> Place:
        """An item of the list at this place."""
        return Place(self._struct, self._fields, f"{self._path}[{index}]")

    def entry(self, name: str) -> Place:
        """An entry of the map at this place."""
        return Place(self._struct, self._fields, self.strictly(name))

    def strictly(self, name: str) -> str:
        """The path of a field at this place, as a strict decoder writes it."""
        return f"{self._path}.{name}" if self._path else name

    def __str__(self) -> str:
        return f"{self._struct}{self._fields}"


def _name(struct: str) -> str:
    return struct.rpartition(".")[2]


def _zero(go: GoType) -> Json:
    """What null is as an item of a list or an entry of a map. Structs fill themselves in when they are written."""
    zeros: dict[str, Json] = {
        "string": "",
        "bytes": "",
        "bool": False,
        "quantity": "0",
        "struct": {},
        "list": [],
        "map": {},
        "time": None,
        "microTime": None,
    }
    return zeros.get(go.kind, 0)
