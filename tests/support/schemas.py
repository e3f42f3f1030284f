"""As much of JSON Schema (2020-12) as msgspec makes: whether a document fits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list, tuple),
    "object": (dict,),
}
KNOWN = {
    *("$ref", "$defs", "$schema", "title", "description", "default", "type", "anyOf", "enum", "properties", "required"),
    *("additionalProperties", "items", "pattern", "minLength", "minimum", "maximum", "exclusiveMinimum"),
    "exclusiveMaximum",
}


def names_in(value: Any) -> set[str]:
    """The names of all fields of a JSON value and of the objects in it."""
    if isinstance(value, Mapping):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list | tuple) else set()


def fits(value: Any, schema: JsonObject, root: JsonObject) -> bool:
    """Whether `value` is as this part of the schema `root` wants it."""
    assert schema.keys() <= KNOWN, f"not understood: {schema.keys() - KNOWN}"
    if (reference := schema.get("$ref")) and not fits(value, root["$defs"][reference.removeprefix("#/$defs/")], root):
        return False
    if "anyOf" in schema and not any(fits(value, each, root) for each in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    return _is_of_type(value, schema) and _is_in_bounds(value, schema) and _has_fields(value, schema, root)


def _is_of_type(value: Any, schema: JsonObject) -> bool:
    if "type" not in schema:
        return True
    is_number = schema["type"] in ("integer", "number")
    return isinstance(value, _TYPES[schema["type"]]) and not (is_number and isinstance(value, bool))


def _is_in_bounds(value: Any, schema: JsonObject) -> bool:
    if isinstance(value, str):
        return len(value) >= schema.get("minLength", 0) and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    above, below = schema.get("exclusiveMinimum", value - 1), schema.get("exclusiveMaximum", value + 1)
    return bool(least <= value <= most and above < value < below)


def _has_fields(value: Any, schema: JsonObject, root: JsonObject) -> bool:
    if isinstance(value, list | tuple):
        return all(fits(each, schema.get("items", {}), root) for each in value)
    if not isinstance(value, dict):
        return True
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if not value.keys() >= set(schema.get("required", ())):
        return False
    for name, each in value.items():
        if name in known:
            if not fits(each, known[name], root):
                return False
        elif others is False or (others is not True and not fits(each, others, root)):
            return False
    return True
