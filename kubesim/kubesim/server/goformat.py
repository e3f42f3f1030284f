"""JSON values as Go prints them in messages.

A server in Go prints what it found by `%v`, `%#v`, `%T` and `%q` of whatever JSON was decoded into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

import orjson

from kubesim.server.api import Json


def decoded_as(value: Json) -> str:
    """What encoding/json calls a value that it cannot decode: `json: cannot unmarshal array into …`."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def go_type(value: Json) -> str:
    """The Go type that JSON decoding gives a value, as `%T` prints it."""
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


def go_text(value: Json) -> str:
    """A value as `%v` prints it: `map[data:map[a:1] items:[x y]]`."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case float():
            return _float(value)
        case dict():
            return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
        case list():
            return f"[{' '.join(map(go_text, value))}]"
    return str(value)


def go_syntax(value: Json) -> str:
    """A value as `%#v` prints it: `map[string]interface {}{"a":"b"}`."""
    match value:
        case None:
            return "interface {}(nil)"
        case str():
            return quoted(value)
        case dict():
            inside = ", ".join(f"{quoted(key)}:{go_syntax(value[key])}" for key in sorted(value))
            return f"map[string]interface {{}}{{{inside}}}"
        case list():
            return f"[]interface {{}}{{{', '.join(map(go_syntax, value))}}}"
    return go_text(value)


def go_strings(words: Iterable[str], go_type: str = "[]string") -> str:
    """A list of strings (of a type of its own) as `%#v` prints it: `[]string{"a", "b"}`."""
    return f"{go_type}{{{', '.join(map(quoted, words))}}}"


def go_string_map(words: Mapping[str, str] | None) -> str:
    """A map of strings as `%#v` prints it: `map[string]string{"a":"b"}`; of an empty one, as of one that is nil."""
    if not words:
        return "map[string]string(nil)"
    pairs = ", ".join(f"{quoted(key)}:{quoted(words[key])}" for key in sorted(words))
    return f"map[string]string{{{pairs}}}"


def quoted(text: str) -> str:
    """A text as `%q` prints it."""
    return orjson.dumps(text).decode()


def quoted_words(words: Iterable[str]) -> str:
    """A list of strings as `%q` prints it: `["get" "list"]`."""
    return f"[{' '.join(map(quoted, words))}]"


def _float(value: float) -> str:
    shortest = Decimal(repr(value)).normalize()
    exponent = shortest.adjusted()
    if not value or -4 <= exponent < 6:
        return f"{shortest:f}"
    return f"{shortest.scaleb(-exponent):f}e{exponent:+03d}"
