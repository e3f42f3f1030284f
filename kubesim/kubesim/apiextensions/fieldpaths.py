"""The field paths of validation rules: `.spec.a`, `['a b'].c`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kubesim.types.schema import Schema

_STEP: Final = re.compile(r"\.([^.\[\]']+)|\['((?:[^'\\]|\\.)*)'\]")


class FieldPathError(ValueError):
    """It leads nowhere."""


def field_at(schema: Schema, path: str) -> Schema:
    """The schema of the field that a path leads to. Raises FieldPathError, worded as the real server words it."""
    for name in _steps(path):
        if schema.properties:
            if name not in schema.properties:
                raise FieldPathError("does not refer to a valid field")
            schema = schema.properties[name]
        elif schema.additional is not None:
            schema = schema.additional
        else:
            raise FieldPathError("does not refer to a valid field")
    return schema


def _steps(path: str) -> Iterator[str]:
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            if path[position] not in ".[":
                raise FieldPathError(f"expected [ or . but got: {path[position:]}")
            raise FieldPathError("unexpected end of JSON path")
        yield step[1] if step[2] is None else re.sub(r"\\(.)", r"\1", step[2])
        position = step.end()
