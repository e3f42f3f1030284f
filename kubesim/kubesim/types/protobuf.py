"""Bodies in application/vnd.kubernetes.protobuf, read as JSON. kubectl creates built-in kinds with them.

A body is the prefix `k8s\\0` and a runtime.Unknown with the kind and the object; the catalog has the field numbers.
Unknown fields are skipped, as in Go. Encoded zeros stay zeros; `canonical` drops them. Responses are JSON.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import orjson

from kubesim.server.api import Json, JsonObject
from kubesim.server.status import bad_request
from kubesim.types.catalog import catalog, type_name
from kubesim.types.gotypes import SCHEMA, GoType, go_type
from kubesim.values import format_duration, format_micro_time, format_time

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
PREFIX: Final = b"k8s\x00"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Bytes that are no protobuf of the expected type; the text is Go's."""


class Envelope(NamedTuple):
    """What stands around an object: its kind, and its bytes."""

    api_version: str
    kind: str
    raw: bytes


def decoded(body: bytes, kind: str) -> JsonObject:
    """The object in a body; `kind`: the path's, for a body that names none. Raises Refusal (400)."""
    try:
        found = envelope(body)
    except WireError as error:
        shown = body.hex() or "<empty>"
        raise bad_request(f"the object provided is unrecognized (must be of type {kind}): {error} ({shown})") from None
    group, _, version = found.api_version.rpartition("/")
    name = found.kind or kind
    struct_name = type_name(group, version, name) if version else _only_type(name)
    if not struct_name:
        why = f'no kind "{name}" is registered for version "{found.api_version}" in scheme "pkg/runtime/scheme.go:110"'
        raise bad_request(f'{name} in version "{version}" cannot be handled as a {kind}: {why}')
    try:
        read = message(struct_name, found.raw)
    except (WireError, TypeError) as error:
        # TypeError: an int where bytes belong, or the other way round, in a message that is read by its numbers alone.
        why = str(error) if isinstance(error, WireError) else "proto: wrong wireType"
        raise bad_request(f'{name} in version "{version}" cannot be handled as a {kind}: {why}') from None
    named = {"kind": found.kind, "apiVersion": found.api_version}
    return {**{key: value for key, value in named.items() if value}, **read}


@cache
def _only_type(kind: str) -> str:
    """The type of a kind by its bare name, of the first group that has it."""
    return next((name for (_, _, known), name in sorted(catalog().kinds.items()) if known == kind), "")


def envelope(body: bytes) -> Envelope:
    """What stands around the object of a body. Raises WireError."""
    if not body:
        raise WireError("empty data")
    if not body.startswith(PREFIX):
        raise WireError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    if body == PREFIX:
        raise WireError("empty body")
    meta, raw = b"", b""
    for number, wired, value in wire(body[len(PREFIX) :]):
        if wired != _BYTES:
            continue
        if number == 1:
            meta = value
        elif number == 2:
            raw = value
    names = {number: value.decode(errors="replace") for number, wired, value in wire(meta) if wired == _BYTES}
    return Envelope(names.get(1, ""), names.get(2, ""), raw)


def wire(raw: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message: number, wire type, and an int or bytes. Raises WireError."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, wired = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"proto: illegal tag 0 (wire type {wired})")
        if wired == _VARINT:
            value, position = _varint(raw, position)
            yield number, wired, value
            continue
        size, position = _size(raw, position, wired)
        if position + size > len(raw):
            raise WireError("unexpected EOF")
        yield number, wired, raw[position : position + size]
        position += size


def _size(raw: bytes, position: int, wired: int) -> tuple[int, int]:
    if wired == _BYTES:
        return _varint(raw, position)
    if wired in (_FIXED64, _FIXED32):
        return (8 if wired == _FIXED64 else 4), position
    # The caller names the type that would have been right.
    return 0, position


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while position < len(raw):
        byte = raw[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise WireError("proto: integer overflow")
    raise WireError("unexpected EOF")


class Field(NamedTuple):
    """A field of a message: its JSON name ("" if it is inlined), its name in Go's words, its type."""

    name: str
    shown: str
    type: GoType


@cache
def fields_of(struct_name: str) -> dict[int, Field]:
    """The fields of a struct by number. Raises KeyError."""
    found: dict[int, Field] = {}
    for name, number, spelled, _ in catalog().structs[struct_name]:
        if number:
            shown = spelled.rpartition(".")[2] if not name or name == "metadata" else name[0].upper() + name[1:]
            found[number] = Field(name, shown, go_type(spelled))
    return found


def message(struct_name: str, raw: bytes) -> JsonObject:
    """A message as JSON. Raises WireError, KeyError for a type that the catalogue does not know."""
    fields = fields_of(struct_name)
    result: JsonObject = {}
    for number, wired, value in wire(raw):
        field = fields.get(number)
        if field is None:
            if wired not in (_VARINT, _FIXED64, _BYTES, _FIXED32):
                raise WireError(f"proto: illegal wireType {wired}")
            continue
        if wired != _wire_type(field.type) and not (wired == _BYTES and field.type.kind == "list"):
            raise WireError(f"proto: wrong wireType = {wired} for field {field.shown}")
        _put(result, field, value)
    return result


def _put(result: JsonObject, field: Field, value: Any) -> None:
    go = field.type
    if field.name == "":
        result.update(message(go.struct, value))
    elif go.kind == "list" and not go.wrapped:
        of = go_type(go.of)
        values = _packed(value) if isinstance(value, bytes) and _wire_type(of) == _VARINT else [value]
        result.setdefault(field.name, []).extend(_value(of, each) for each in values)
    elif go.kind == "map":
        entry = {number: item for number, _, item in wire(value)}
        of = go_type(go.of)
        empty = 0 if _wire_type(of) == _VARINT else b""
        result.setdefault(field.name, {})[_text(entry.get(1, b""))] = _value(of, entry.get(2, empty))
    else:
        result[field.name] = _value(go, value)


def _wire_type(go: GoType) -> int:
    if go.kind in ("int32", "int64", "bool"):
        return _VARINT
    if go.kind == "float64":
        return _FIXED64
    if go.kind == "list" and not go.wrapped:
        return _wire_type(go_type(go.of))
    return _BYTES


def _packed(raw: bytes) -> list[int]:
    values, position = [], 0
    while position < len(raw):
        value, position = _varint(raw, position)
        values.append(value)
    return values


def _value(go: GoType, value: Any) -> Json:
    if isinstance(value, int) is not (_wire_type(go) == _VARINT):
        raise WireError("proto: wrong wireType")
    if go.kind == "struct":
        return message(go.struct, value)
    if go.kind == "list":
        of = go_type(go.of)
        return [_value(of, item) for number, _, item in wire(value) if number == 1]
    return _READERS[go.kind](value)


def _text(raw: bytes | int) -> str:
    if isinstance(raw, int):
        raise WireError("proto: wrong wireType")
    return raw.decode(errors="replace")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _double(raw: bytes) -> float:
    found: float = struct.unpack("<d", raw)[0]
    return found


def _moment(raw: bytes) -> float | None:
    if not raw:
        return None
    parts = {number: _signed(value) for number, wired, value in wire(raw) if wired == _VARINT}
    return parts.get(1, 0) + parts.get(2, 0) / 1e9


def _written(write: Callable[[float], str], raw: bytes) -> str | None:
    moment = _moment(raw)
    try:
        return None if moment is None else write(moment)
    except ValueError:
        raise WireError(f"Timestamp: {moment} is outside of the years 1 to 9999") from None


def _number_or_text(raw: bytes) -> int | str:
    parts = {number: value for number, _, value in wire(raw)}
    if parts.get(1, 0) == 0:
        # An int32, sign-extended to 64 bits.
        return _signed(parts.get(2, 0))
    return _text(parts.get(3, b""))


def _quantity(raw: bytes) -> str:
    return next((_text(value) for number, _, value in wire(raw) if number == 1), "0")


def _duration(raw: bytes) -> str:
    return format_duration(next((_signed(value) for number, _, value in wire(raw) if number == 1), 0))


def _embedded(raw: bytes) -> Json:
    """An object or a value that travels as JSON inside a message (RawExtension, FieldsV1, JSON)."""
    text = next((value for number, _, value in wire(raw) if number == 1), b"")
    if not text:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise WireError("invalid JSON inside a message") from None


def _schema_or_bool(raw: bytes) -> Json:
    parts = {number: value for number, _, value in wire(raw)}
    return message(SCHEMA, parts[2]) if 2 in parts else bool(parts.get(1, 0))


def _schema_or_array(raw: bytes) -> Json:
    parts = [(number, value) for number, _, value in wire(raw)]
    whole = [value for number, value in parts if number == 1]
    return message(SCHEMA, whole[-1]) if whole else [message(SCHEMA, value) for _, value in parts]


def _schema_or_strings(raw: bytes) -> Json:
    parts = [(number, value) for number, _, value in wire(raw)]
    whole = [value for number, value in parts if number == 1]
    return message(SCHEMA, whole[-1]) if whole else [_text(value) for _, value in parts]


_READERS: Final[dict[str, Callable[[Any], Json]]] = {
    "string": _text,
    "bool": bool,
    "int32": _signed,
    "int64": _signed,
    "float64": _double,
    "bytes": lambda raw: base64.b64encode(raw).decode(),
    "time": lambda raw: _written(format_time, raw),
    "microTime": lambda raw: _written(format_micro_time, raw),
    "duration": _duration,
    "quantity": _quantity,
    "intOrString": _number_or_text,
    "any": _embedded,
    "schemaOrBool": _schema_or_bool,
    "schemaOrArray": _schema_or_array,
    "schemaOrStrings": _schema_or_strings,
}
