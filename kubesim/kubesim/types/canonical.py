"""Objects as Go would write them after reading them: nothing unknown, nothing null, zero values omitted or filled in.

A real server decodes an object into a Go struct and encodes it again: an empty list vanishes, and a container always
has `resources`. msgspec does both in C, with struct types made from the catalog. `decoding` explains what it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from types import GenericAlias
from typing import Annotated, Any, Final

import msgspec

from kubesim.server.api import Json, JsonObject
from kubesim.types import scalars
from kubesim.types.gotypes import SCHEMA, GoField, GoType, go_fields, go_type

Unfit = msgspec.ValidationError
"""Raised for a value that Go would not take, or not take without dropping something."""

_LIMITS: Final = {
    "int32": msgspec.Meta(ge=-(1 << 31), lt=1 << 31),
    "int64": msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1),
}


class _Made(type):
    """Pseudo-type of plain JSON values: msgspec reads and writes them unchanged."""

    def __instancecheck__(cls, value: object) -> bool:
        return True


_READERS: Final[dict[type, Callable[[Any], Json]]] = {}


def _made(name: str, read: Callable[[Any], Json]) -> Any:
    made = _Made(name, (), {})
    _READERS[made] = read
    return made


def _read(type_: type, value: Any) -> Json:
    return _READERS[type_](value)


def _schema(value: Json) -> Json:
    if not isinstance(value, dict):
        raise ValueError("no object")
    return canonical(SCHEMA, value)


def _schema_or_other(value: Json) -> Json:
    if isinstance(value, list):
        return [item if isinstance(item, str) else _schema(item) for item in value]
    return _schema(value)


def _schema_or_bool(value: Json) -> Json:
    return value if isinstance(value, bool) else _schema(value)


_SCHEMA: Final = _made("JSONSchemaProps", _schema)
_MADE: Final = {
    # One instant stands in many places: in every condition of a pod, in every pod of a rollout.
    "time": _made("Time", lru_cache(maxsize=4096)(scalars.time_text)),
    "microTime": _made("MicroTime", scalars.micro_time_text),
    "duration": _made("Duration", scalars.duration_text),
    "quantity": _made("Quantity", scalars.quantity_text),
    "bytes": _made("Bytes", scalars.base64_text),
    "schemaOrBool": _made("SchemaOrBool", _schema_or_bool),
    **dict.fromkeys(("schemaOrArray", "schemaOrStrings"), _made("SchemaOrOther", _schema_or_other)),
}
_PLAIN: Final[dict[str, Any]] = {"string": str, "bool": bool, "float64": float, "intOrString": int | str}


def canonical(struct: str, value: JsonObject) -> JsonObject:
    """A fresh copy of the value as Go would write it. `struct`: a type of the catalogue. Raises Unfit, KeyError."""
    result: JsonObject = msgspec.to_builtins(msgspec.convert(value, struct_type(struct), dec_hook=_read))
    return result


class Parts:
    """A struct of which only some parts may have changed: what a write did not touch stays shared."""

    def __init__(self, struct: str) -> None:
        """`struct`: a type of the catalogue. Raises KeyError."""
        self._type = struct_type(struct)
        self._structs = {field.name: field.type.struct for field in go_fields(struct) if field.type.struct != SCHEMA}
        self._zeros = canonical(struct, {})

    def canonical(self, new: JsonObject, old: JsonObject) -> JsonObject:
        """`new` as Go would write it, if `old` is already. Raises Unfit."""
        result: JsonObject = {}
        changed: JsonObject = {}
        for name, value in new.items():
            before = old.get(name)
            if before is value:
                result[name] = value
            elif type(value) is dict and type(before) is dict and (struct := self._structs.get(name)):
                result[name] = parts(struct).canonical(value, before)
            else:
                changed[name] = value
        if changed:
            written = msgspec.to_builtins(msgspec.convert(changed, self._type, dec_hook=_read))
            for name in changed:
                if name in written:
                    result[name] = written[name]
        for name, zero in self._zeros.items():
            if name not in result:
                result[name] = zero
        return result


@cache
def parts(struct: str) -> Parts:
    """The parts of a struct. Raises KeyError."""
    return Parts(struct)


@cache
def struct_type(struct: str) -> Any:
    """The msgspec type of a struct. Raises KeyError."""
    return _defined(struct.rpartition(".")[2], go_fields(struct))


def _defined(struct: str, fields: Iterable[GoField]) -> Any:
    defined = []
    for position, field in enumerate(fields):
        type_, default = _defaulted(field)
        # What a field is called in JSON need be no name in Python: `from`, `continue`, `$ref`.
        defined.append((f"field_{position}", type_, msgspec.field(name=field.name, **default)))
    return msgspec.defstruct(struct, defined, forbid_unknown_fields=True, omit_defaults=True, gc=False)


def _defaulted(field: GoField) -> tuple[Any, dict[str, Any]]:
    """The type of a field, and what it is when it is absent. A default made by a factory is written, others are not."""
    type_, go = _type(field.type), field.type
    kind = go.kind
    if go.pointer or kind in ("any", "schemaOrBool", "schemaOrArray", "schemaOrStrings"):
        omitted = field.omitted and (go.pointer or kind != "any")
        return type_ | None, {"default": None} if omitted else {"default_factory": lambda: None}
    if kind == "struct":
        return type_, {"default_factory": type_}
    if kind in ("time", "microTime"):
        return type_ | None, {"default_factory": lambda: None}
    if kind in ("list", "map"):
        empty = list if kind == "list" else dict
        return (
            (type_, {"default_factory": empty}) if field.omitted else (type_ | None, {"default_factory": lambda: None})
        )
    zero: Any = {"string": "", "bytes": "", "bool": False, "quantity": "0", "duration": "0s"}.get(kind, 0)
    if field.omitted and kind not in ("quantity", "duration", "intOrString"):
        return type_, {"default": zero}
    return type_, {"default_factory": lambda: zero}


def _element(go: GoType) -> Any:
    """What a list or a map holds; no instant is written as null there, too."""
    return _type(go) | None if go.kind in ("time", "microTime") else _type(go)


def _type(go: GoType) -> Any:
    kind = go.kind
    if kind in _MADE:
        return _MADE[kind]
    if kind in _LIMITS:
        return Annotated[int, _LIMITS[kind]]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "list":
        return GenericAlias(list, (_element(go_type(go.of)),))
    if kind == "map":
        return GenericAlias(dict, (str, _element(go_type(go.of))))
    if kind == "struct":
        return _SCHEMA if go.struct == SCHEMA else struct_type(go.struct)
    return Any
