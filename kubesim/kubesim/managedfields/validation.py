"""Shape of an applied configuration, worded as structured-merge-diff words it (typed/validate.go).

Checks unknown fields, list keys, duplicates and types. Values are validated later, with the merged object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kubesim.managedfields import pathelements
from kubesim.managedfields.forms import element_of, field_type, is_allowed
from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import go_syntax, go_text, go_type

if TYPE_CHECKING:
    from kubesim.managedfields.pathelements import Element
    from kubesim.types.schema import Schema


def faults(value: Json, schema: Schema | None) -> list[str]:
    """What is wrong, each with its path: `.spec.nodes: field not declared in schema`."""
    return list(_faults(value, schema, preserving=False))


def as_text(found: list[str]) -> str:
    """Faults as one text."""
    return found[0] if len(found) == 1 else "\n".join(["errors:", *(f"  {fault}" for fault in found)])


def _faults(value: Json, schema: Schema | None, *, preserving: bool) -> Iterator[str]:
    if schema is None or value is None:
        return
    preserving = preserving or schema.preserves_unknown
    match schema.type:
        case "object" | "":
            if isinstance(value, dict):
                yield from _map_faults(value, schema, preserving=preserving)
            elif schema.type:
                yield f": expected map, got &{{{go_text(value)}}}"
            elif isinstance(value, list):
                yield from _list_faults(value, schema, preserving=preserving)
        case "array":
            if isinstance(value, list):
                yield from _list_faults(value, schema, preserving=preserving)
            else:
                yield f": expected list, got &{{{go_text(value)}}}"
        case declared:
            yield from _scalar_faults(value, declared, schema.format)


def _scalar_faults(value: Json, declared: str, format_: str) -> Iterator[str]:
    if declared in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f": expected numeric (int or float), got {go_type(value)}"
    elif declared == "boolean":
        if not isinstance(value, bool):
            yield f": expected boolean, got &{{{go_text(value)}}}"
    elif format_ in ("", "byte"):
        if not isinstance(value, str):
            yield f": expected string, got &value.valueUnstructured{{Value:{go_syntax(value)}}}"
    elif isinstance(value, dict | list):
        yield f": expected any scalar, got &{{{go_text(value)}}}"


def _map_faults(value: JsonObject, schema: Schema, *, preserving: bool) -> Iterator[str]:
    for name, each in value.items():
        if not is_allowed(schema, name, preserving=preserving):
            yield f".{name}: field not declared in schema"
            return
        for fault in _faults(each, field_type(schema, name), preserving=preserving):
            yield f".{name}{fault}"


def _list_faults(value: list[Json], schema: Schema, *, preserving: bool) -> Iterator[str]:
    seen: set[Element] = set()
    for index, each in enumerate(value):
        if schema.list_type == "atomic":
            where = f"[{index}]"
        else:
            try:
                element = element_of(schema, each)
            except ValueError as error:
                yield f": element {index}: {error}"
                return
            where = pathelements.shown((element,))
            if element in seen:
                yield f": duplicate entries for key {where}"
            seen.add(element)
        for fault in _faults(each, schema.items, preserving=preserving):
            yield f"{where}{fault}"
