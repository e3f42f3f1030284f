"""Every field of the settings by its path (`eviction.maxInFlight`), as the types have them.

Messages, variables, the printed form and the documentation go by this one list, so that none of them can miss a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import inspect

from gracectl.config.settings import Settings

_STEP = re.compile(r"(?:[^.\[]|\[(?:\d+|\.\.\.)\])+")


class Field(msgspec.Struct, frozen=True):
    """`is_section`: it is always there, and is nothing but its own fields; so it has no value of its own. `default`: as
    a file would say it."""

    path: str
    kind: inspect.Type
    default: Any
    is_section: bool = False


@cache
def fields() -> Mapping[str, Field]:
    """All of them in the order of the settings, a section before its fields. A field that may be left out as a whole
    (`admission.service`) comes before those that it has when it is there."""
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
    """The fields of a struct, or of the struct that this may be, by their names in a file; of all else none."""
    struct = next((each for each in alternatives(kind) if isinstance(each, inspect.StructType)), None)
    return {} if struct is None else {each.encode_name: each for each in struct.fields}


def alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """What a value may be."""
    bare = without_metadata(kind)
    return tuple(map(without_metadata, bare.types)) if isinstance(bare, inspect.UnionType) else (bare,)


def without_metadata(kind: inspect.Type) -> inspect.Type:
    """The type itself, without what a schema says of it besides."""
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def described(kind: inspect.Type) -> str:
    """What a schema says of it; empty if that is nothing."""
    return str((kind.extra_json_schema or {}).get("description", "")) if isinstance(kind, inspect.Metadata) else ""


def kind_at(path: str) -> inspect.Type | None:
    """What belongs at a path as messages have it (`nodeGroups[0].drain`), with its metadata; None: nobody knows."""
    kind: inspect.Type | None = inspect.type_info(Settings)
    for name, indices in steps(path):
        member = None if kind is None else members(kind).get(name)
        kind = None if member is None else member.type
        for _ in indices:
            kind = None if kind is None else _item(kind)
    return kind


def steps(path: str) -> Iterator[tuple[str, list[str]]]:
    """A path as messages have it, name by name with the indices behind it: a number, or `...` for some key."""
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
