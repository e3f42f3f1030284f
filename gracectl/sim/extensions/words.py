"""How Go words JSON values in its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def json_type(value: Any) -> str:
    """The JSON type of a value, as Go's validator tells it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def shown(value: Any) -> str:
    """A JSON value as Go prints it in a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def as_go(value: Any) -> str:
    """A value as Go's %#v prints it."""
    match value:
        case str():
            return f'"{value}"'
        case dict():
            inside = ", ".join(f'"{key}":{as_go(value[key])}' for key in sorted(value))
            return f"map[string]interface {{}}{{{inside}}}"
        case list():
            return f"[]interface {{}}{{{', '.join(map(as_go, value))}}}"
        case bool():
            return "true" if value else "false"
        case None:
            return "interface {}(nil)"
    return str(value)


def go_type(value: Any) -> str:
    """The Go type that JSON decoding gives a value."""
    match value:
        case bool():
            return "bool"
        case int():
            return "int64"
        case float():
            return "float64"
        case str():
            return "string"
        case list():
            return "[]interface {}"
    return "map[string]interface {}"


def go_strings(words: Sequence[str]) -> str:
    """A list of strings as Go's %#v prints it."""
    inside = ", ".join(f'"{word}"' for word in words)
    return f"[]string{{{inside}}}"
