"""The types that expressions are checked against, and how a schema becomes one.

A schema's type also converts JSON to the values of expressions (a date-time string to a timestamp). A value that needs
no conversion is used as it is, without a copy.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubesim.cel.syntax import RESERVED
from kubesim.cel.values import Duration, Timestamp, UnorderedList
from kubesim.types.schema import Schema
from kubesim.values import parse_duration, parse_time

Convert = Callable[[Any], Any]


class Type:
    """A type. `parameters` are the items of a list, the keys and values of a map, what is optional."""

    __slots__ = ("name", "parameters")

    def __init__(self, name: str, *parameters: Type) -> None:
        self.name = name
        self.parameters = parameters

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Type) and (self.name, self.parameters) == (other.name, other.parameters)

    def __hash__(self) -> int:
        return hash((self.name, self.parameters))

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    __repr__ = __str__

    @property
    def is_variable(self) -> bool:
        """Whether it stands for any one type in a function's signature."""
        return len(self.name) == 1


class Fields(Type):
    """The type of an object with named fields: by the name that expressions use, the real name and the type."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, tuple[str, Type]]) -> None:
        super().__init__("object")
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


DYN, ERROR, NULL, TYPE = Type("dyn"), Type("*error*"), Type("null"), Type("type")
BOOL, INT, DOUBLE = Type("bool"), Type("int"), Type("double")
STRING, BYTES = Type("string"), Type("bytes")
DURATION, TIMESTAMP = Type("google.protobuf.Duration"), Type("google.protobuf.Timestamp")


def list_of(item: Type) -> Type:
    """The type of a list."""
    return Type("list", item)


def map_of(key: Type, value: Type) -> Type:
    """The type of a map."""
    return Type("map", key, value)


def maybe(value: Type) -> Type:
    """The type of an optional value."""
    return Type("optional_type", value)


def assignable(wanted: Type, given: Type, bound: dict[str, Type]) -> bool:
    """Whether a value of type `given` may stand where `wanted` is; type variables are bound on the way."""
    if wanted.is_variable:
        known = bound.get(wanted.name)
        if known is None or known == DYN or (known.parameters and DYN in known.parameters):
            bound[wanted.name] = given
            return known is None or assignable(known, given, bound)
        return assignable(known, given, bound)
    if DYN in (wanted, given) or ERROR in (wanted, given):
        return True
    if NULL in (wanted, given) and wanted != given:
        other = given if wanted == NULL else wanted
        return isinstance(other, Fields) or other in (DURATION, TIMESTAMP) or other.name == "optional_type"
    if isinstance(wanted, Fields) or isinstance(given, Fields):
        return wanted is given
    if wanted.name != given.name or len(wanted.parameters) != len(given.parameters):
        return False
    return all(assignable(one, other, bound) for one, other in zip(wanted.parameters, given.parameters, strict=True))


def bound_type(pattern: Type, bound: Mapping[str, Type]) -> Type:
    """A signature's type with its variables filled in."""
    if pattern.is_variable:
        return bound.get(pattern.name, DYN)
    if not pattern.parameters:
        return pattern
    return Type(pattern.name, *(bound_type(each, bound) for each in pattern.parameters))


def joined(one: Type, other: Type) -> Type:
    """The type of what may be either."""
    if assignable(one, other, {}):
        return one if other == DYN or one != NULL else other
    return other if assignable(other, one, {}) else DYN


_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL: Final = re.compile(r"__|[.\-/]")
_ESCAPES: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}


def escaped(name: str) -> str:
    """The name of a property as expressions write it, or "" if they cannot."""
    if name in RESERVED:
        return f"__{name}__"
    plain = _SPECIAL.sub(lambda found: _ESCAPES[found.group()], name)
    return plain if _IDENTIFIER.fullmatch(plain) else ""


class Exposed:
    """How expressions see the values of a schema: their type, and how to get there if it is not the JSON itself."""

    def __init__(self, type_: Type, convert: Convert | None = None) -> None:
        self.type = type_
        self.convert = convert

    def value(self, json: Any) -> Any:
        """What expressions see of a value."""
        return json if self.convert is None or json is None else self.convert(json)


ROOT_META: Final = {
    "kind": {"type": "string"},
    "apiVersion": {"type": "string"},
    "metadata": {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}},
}


def exposed(schema: Schema, *, root: bool = False) -> Exposed | None:
    """What expressions see of a schema's values; None if nothing. `root`: they are whole Kubernetes objects."""
    if schema.int_or_string:
        return Exposed(DYN)
    if root or schema.embedded:
        properties = {**schema.raw.get("properties", {}), **ROOT_META}
        schema = Schema({**schema.raw, "type": "object", "properties": properties})
    match schema.type:
        case "array":
            return _array(schema)
        case "object":
            return _object(schema)
        case "string":
            return _string(schema.format)
        case "boolean":
            return Exposed(BOOL)
        case "number":
            return Exposed(DOUBLE, float)
        case "integer":
            return Exposed(INT, lambda value: int(value) if isinstance(value, float) else value)
    return None


def _string(format_: str) -> Exposed:
    match format_:
        case "byte":
            return Exposed(BYTES)
        case "duration":
            return Exposed(DURATION, lambda text: Duration(parse_duration(text.replace(" ", ""))))
        case "date":
            return Exposed(TIMESTAMP, lambda text: Timestamp(int(parse_time(f"{text}T00:00:00Z") * 10**9)))
        case "date-time":
            return Exposed(TIMESTAMP, lambda text: Timestamp(round(parse_time(text) * 10**6) * 1000))
    return Exposed(STRING)


def _array(schema: Schema) -> Exposed | None:
    items = exposed(schema.items) if schema.items is not None else None
    if items is None:
        return None
    keys, unordered, convert = schema.list_keys, schema.list_type != "atomic", items.convert
    if not unordered and convert is None:
        return Exposed(list_of(items.type))

    def converted(values: list[Any]) -> list[Any]:
        found = UnorderedList(values) if convert is None else UnorderedList(map(items.value, values))
        found.keys = keys
        return found if unordered else list(found)

    return Exposed(list_of(items.type), converted)


def _object(schema: Schema) -> Exposed | None:
    if schema.additional is not None and not schema.properties:
        values = exposed(schema.additional)
        if values is None:
            return None
        type_ = map_of(STRING, values.type)
        if values.convert is None:
            return Exposed(type_)
        return Exposed(type_, lambda json: {key: values.value(value) for key, value in json.items()})
    known = {name: found for name, field in schema.properties.items() if (found := exposed(field)) is not None}
    fields = {word: (name, found.type) for name, found in known.items() if (word := escaped(name))}
    # A reserved word is understood without its underscores, too.
    fields |= {name: (name, known[name].type) for name in known.keys() & RESERVED - {"in", "true", "false", "null"}}
    converts = {name: found for name, found in known.items() if found.convert is not None}
    if not converts:
        return Exposed(Fields(fields))

    def converted(json: dict[str, Any]) -> dict[str, Any]:
        return {**json, **{name: found.value(json[name]) for name, found in converts.items() if name in json}}

    return Exposed(Fields(fields), converted)
