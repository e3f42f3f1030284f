"""Which fields a value speaks of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kubesim.managedfields.fieldsets import FieldSet
from kubesim.managedfields.forms import Form, element_of, field_type, form_of, is_named
from kubesim.managedfields.pathelements import Element, Path, field
from kubesim.server.api import Json, JsonObject

if TYPE_CHECKING:
    from kubesim.types.schema import Schema


def fields_of(value: Json, schema: Schema | None) -> FieldSet:
    """The set of all that a value says: its leaves, the items of its lists, the entries of its maps, and what it
    leaves empty. Fields that a type names belong to the set through what lies in them only. Raises ValueError for an
    item of a list without its keys."""
    return FieldSet.of(_paths(value, schema, ()))


def _paths(value: Json, schema: Schema | None, path: Path) -> Iterator[Path]:
    match form_of(schema, value):
        case Form.WHOLE:
            yield path
        case Form.MAP:
            yield from _map_paths(value or {}, schema, path)
        case Form.LIST if schema is not None:
            yield from _list_paths(value or [], schema, path)


def _map_paths(value: JsonObject, schema: Schema | None, path: Path) -> Iterator[Path]:
    for name, each in value.items():
        here = (*path, field(name))
        if each is None or each == {} or not is_named(schema, name):
            yield here
        yield from _paths(each, field_type(schema, name), here)


def _list_paths(value: list[Json], schema: Schema, path: Path) -> Iterator[Path]:
    for each in value:
        here = (*path, element_of(schema, each))
        yield here
        yield from _paths(each, schema.items, here)


def with_named_fields(fields: FieldSet, schema: Schema | None) -> FieldSet:
    """The set with those fields added that the type names and that hold something of the set."""
    named = (element for element in fields.children if element[0] == "f" and is_named(schema, element[2:]))
    return FieldSet(
        fields.members.union(named),
        {element: with_named_fields(below, _type_below(schema, element)) for element, below in fields.children.items()},
    )


def _type_below(schema: Schema | None, element: Element) -> Schema | None:
    if element[0] == "f":
        return field_type(schema, element[2:])
    return schema.items if schema is not None and element[0] == "k" else None
