"""Every field of the settings by its path (`eviction.maxInFlight`), from the types; and their JSON schema.

Messages, variables, the printed form and the documentation use this one list, so that none can miss a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import inspect

from gracectl.config.settings import Settings
from gracectl.model.encoding import encode

_STEP = re.compile(r"(?:[^.\[]|\[(?:\d+|\.\.\.)\])+")


class Field(msgspec.Struct, frozen=True):
    """Field. `is_section`: a section that always exists and has no value. `default`: as in a file."""

    path: str
    kind: inspect.Type
    default: Any
    is_section: bool = False


@cache
def fields() -> Mapping[str, Field]:
    """All fields in the order of the settings, a section before its fields. An optional section (`admission.service`)
    comes before its fields."""
    defaults = msgspec.to_builtins(Settings())
    return MappingProxyType({field.path: field for field in _fields(inspect.type_info(Settings), "", defaults)})


def _fields(kind: inspect.Type, before: str, defaults: Any) -> Iterator[Field]:
    for each in members(kind).values():
        path, bare = f"{before}{each.encode_name}", without_metadata(each.type)
        default = defaults.get(each.encode_name) if isinstance(defaults, dict) else _default_of(each)
        yield Field(path, bare, default, isinstance(bare, inspect.StructType))
        yield from _fields(bare, f"{path}.", default)


def _default_of(member: inspect.Field) -> Any:
    return None if member.default is msgspec.NODEFAULT else msgspec.to_builtins(member.default)


def members(kind: inspect.Type) -> dict[str, inspect.Field]:
    """Fields of a struct, or of the struct of a union, by their names in a file; none for other types."""
    struct = next((each for each in alternatives(kind) if isinstance(each, inspect.StructType)), None)
    return {} if struct is None else {each.encode_name: each for each in struct.fields}


def alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """Types that a value may have."""
    bare = without_metadata(kind)
    return tuple(map(without_metadata, bare.types)) if isinstance(bare, inspect.UnionType) else (bare,)


def without_metadata(kind: inspect.Type) -> inspect.Type:
    """Type without its schema metadata."""
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def described(kind: inspect.Type) -> str:
    """Description in the schema; "" without one."""
    return str((kind.extra_json_schema or {}).get("description", "")) if isinstance(kind, inspect.Metadata) else ""


def kind_at(path: str) -> inspect.Type | None:
    """Type at a path as messages have it (`nodeGroups[0].drain`), with its metadata; None if unknown."""
    kind: inspect.Type | None = inspect.type_info(Settings)
    for name, indices in steps(path):
        member = None if kind is None else members(kind).get(name)
        kind = None if member is None else member.type
        for _ in indices:
            kind = None if kind is None else _item(kind)
    return kind


def steps(path: str) -> Iterator[tuple[str, list[str]]]:
    """Names of a path as messages have it, each with its indices: a number, or `...` for some key."""
    for part in _STEP.findall(path):
        name, *indices = part.split("[")
        yield name, [index.rstrip("]") for index in indices]


def _item(kind: inspect.Type) -> inspect.Type | None:
    for each in alternatives(kind):
        if isinstance(each, inspect.VarTupleType | inspect.ListType):
            return each.item_type
        if isinstance(each, inspect.DictType):
            return each.value_type
    return None


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """JSON schema of the settings file. It does not cover checks of `validation`: a file that it
    accepts may still be invalid."""
    body: dict[str, Any] = msgspec.json.decode(encode(msgspec.json.schema(Settings)))
    return {"$schema": DIALECT, "title": "Settings of gracectl", **body}
