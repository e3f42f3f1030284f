"""Paths to one field: those of rules (`.spec.a`, `['a b'].c`), and the plain dotted ones of scales and selectors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kubesim.server.api import JsonObject
from kubesim.types.schema import Schema

_STEP: Final = re.compile(r"\.([^.\[\]']+)|\['((?:[^'\\]|\\.)*)'\]")


class FieldPathError(ValueError):
    """It leads nowhere."""


def field_at(schema: Schema, path: str, *, brackets: bool = True) -> Schema:
    """The schema of the field that a path leads to. Raises FieldPathError, worded as the real server words it."""
    for name in _steps(path, brackets=brackets):
        if schema.properties:
            if name not in schema.properties:
                raise FieldPathError("does not refer to a valid field")
            schema = schema.properties[name]
        elif schema.additional is not None:
            schema = schema.additional
        else:
            raise FieldPathError("does not refer to a valid field")
    return schema


def _steps(path: str, *, brackets: bool) -> Iterator[str]:
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            if path[position] not in ".[":
                raise FieldPathError(f"expected [ or . but got: {path[position:]}")
            raise FieldPathError("unexpected end of JSON path")
        if step[2] is not None and not brackets:
            raise FieldPathError("array notation is not allowed")
        yield step[1] if step[2] is None else re.sub(r"\\(.)", r"\1", step[2])
        position = step.end()


def value_at(object_: JsonObject, path: str) -> Any:
    """What stands at a dotted path (`.spec.replicas`), None if nothing does. Raises TypeError where the path leads
    through something that is no object."""
    value: Any = object_
    for name in path.removeprefix(".").split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(value)
        value = value.get(name)
    return value


def with_value_at(object_: JsonObject, path: str, value: Any) -> JsonObject:
    """The object with something else at a dotted path."""
    name, _, rest = path.removeprefix(".").partition(".")
    inner = object_.get(name)
    return {**object_, name: with_value_at(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}
