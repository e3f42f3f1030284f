"""One step of a path into an object, spelled as FieldsV1 spells it.

`f:name` is a field, `k:{"type":"Ready"}` the item of a list with these keys, `v:"a"` the item of a set, `i:0` an index.
Invariant: an element is text in its one canonical spelling, so that equal elements are equal strings; and elements
have one order (fields, keys, values, indexes), in which managedFields are written. The order and the spelling are those
of https://github.com/kubernetes-sigs/structured-merge-diff (fieldpath/element.go, serialize-pe.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from kubesim.server.api import Json

Element = str
Path = tuple[Element, ...]
"""The way to a field from the root of an object; () is the object itself, which has no owner."""

SELF = "."
"""In FieldsV1: the thing itself, beside the things below it."""

KINDS = "fkvi"
# Go's JSON escapes what HTML might misread, and so these stand in the text of keys and values.
ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def field(name: str) -> Element:
    """A field of an object or a map."""
    return "f:" + name


def item_with(keys: Mapping[str, Json]) -> Element:
    """The item of a list that has these values in its key fields."""
    return "k:" + _text({name: keys[name] for name in sorted(keys)})


def item(value: Json) -> Element:
    """The item of a set."""
    return "v:" + _text(value)


def _text(value: Json) -> str:
    return orjson.dumps(_plain(value)).decode().translate(ESCAPED)


def _plain(value: Json) -> Json:
    """The value with whole floats as integers: 1 and 1.0 are one element."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def read(text: str) -> Element | None:
    """An element that a client wrote, in its canonical spelling; None for a kind that is not known (yet).

    Raises ValueError.
    """
    kind, colon, rest = text[:1], text[1:2], text[2:]
    if colon != ":":
        raise ValueError(f"missing colon: {text}")
    if kind not in KINDS:
        return None
    if kind == "i":
        return f"i:{int(rest)}"
    if kind == "f":
        return text
    value = orjson.loads(rest)
    if kind == "v":
        return item(value)
    if not isinstance(value, dict):
        raise ValueError(f"no keys: {text}")
    return item_with(value)


@lru_cache(maxsize=65536)
def rank(element: Element) -> tuple[Any, ...]:
    """What elements are sorted by."""
    kind, rest = KINDS.index(element[0]), element[2:]
    match element[0]:
        case "f":
            return kind, rest
        case "k":
            return kind, tuple((name, _value_rank(value)) for name, value in orjson.loads(rest).items())
        case "v":
            return kind, _value_rank(orjson.loads(rest))
    return kind, int(rest)


def _value_rank(value: Json) -> tuple[Any, ...]:
    match value:
        case bool():
            return 2, value
        case int() | float():
            return 0, value
        case str():
            return 1, value
        case list():
            return 3, tuple(map(_value_rank, value))
        case dict():
            return 4, tuple((name, _value_rank(value[name])) for name in sorted(value))
    return (5,)


def in_order(elements: Iterable[Element]) -> list[Element]:
    """The elements, sorted."""
    return sorted(elements, key=rank)


def shown(path: Path) -> str:
    """A path as refusals write it: `.spec.containers[name="web"].image`."""
    return "".join(map(_shown, path))


def _shown(element: Element) -> str:
    rest = element[2:]
    match element[0]:
        case "f":
            return "." + rest
        case "k":
            pairs = (f"{name}={_value_shown(value)}" for name, value in orjson.loads(rest).items())
            return f"[{','.join(pairs)}]"
        case "v":
            return f"[={_value_shown(orjson.loads(rest))}]"
    return f"[{rest}]"


def _value_shown(value: Json) -> str:
    return orjson.dumps(value).decode()
