"""One step of a path into an object, spelled as FieldsV1 spells it.

`f:name` is a field, `k:{"type":"Ready"}` the item of a list with these keys, `v:"a"` the item of a set.
Invariants: equal elements are equal strings; managedFields list fields, then keys, then values. Order and spelling
follow https://github.com/kubernetes-sigs/structured-merge-diff (fieldpath/element.go, serialize-pe.go).
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
"""In FieldsV1: the value itself, in addition to the fields below it."""

KINDS = "fkv"
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
    return orjson.dumps(value).decode().translate(ESCAPED)


@lru_cache(maxsize=65536)
def rank(element: Element) -> tuple[Any, ...]:
    """What elements are sorted by."""
    kind, rest = KINDS.index(element[0]), element[2:]
    match element[0]:
        case "f":
            return kind, rest
        case "k":
            return kind, tuple((name, _value_rank(value)) for name, value in orjson.loads(rest).items())
    return kind, _value_rank(orjson.loads(rest))


def _value_rank(value: Json) -> tuple[int, Json]:
    """Numbers, then text, then booleans."""
    return (2 if isinstance(value, bool) else 1 if isinstance(value, str) else 0), value


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
    return f"[={_value_shown(orjson.loads(rest))}]"


def _value_shown(value: Json) -> str:
    return orjson.dumps(value).decode()
