"""Lists of type set hold no value twice, lists of type map no key twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import orjson

from kubesim.server.goformat import go_syntax
from kubesim.server.status import DUPLICATE, Cause
from kubesim.types.schema import Schema


def has_identities(schema: Schema) -> bool:
    """Whether there is a list of type set or map anywhere in a schema."""
    if schema.list_type != "atomic":
        return True
    inside = [*schema.properties.values(), schema.additional, schema.items]
    return any(has_identities(each) for each in inside if each is not None)


def duplicates(schema: Schema, value: Any, path: str = "") -> Iterator[Cause]:
    """A fault for each item that repeats an earlier one, anywhere in a value."""
    if isinstance(value, list):
        for index, repeated in _repeated(schema, value):
            yield Cause(DUPLICATE, f"Duplicate value: {go_syntax(repeated)}", f"{path}[{index}]")
        if schema.items is not None:
            for index, item in enumerate(value):
                yield from duplicates(schema.items, item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in schema.properties:
                yield from duplicates(schema.properties[name], item, f"{path}.{name}" if path else name)
            elif schema.additional is not None:
                yield from duplicates(schema.additional, item, f"{path}[{name}]")


def _repeated(schema: Schema, items: list[Any]) -> Iterator[tuple[int, Any]]:
    """The index of each item that is a first duplicate (further ones are not reported), and the item."""
    if schema.list_type == "atomic" or len(items) < 2:
        return
    keys = schema.list_keys
    identities: Iterable[Any] = items
    if schema.list_type == "map":
        identities = [
            {key: item[key] for key in keys if key in item} if isinstance(item, dict) else {} for item in items
        ]
    sights: dict[Hashable, int] = {}
    for index, identity in enumerate(identities):
        known = orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)
        sights[known] = sights.get(known, 0) + 1
        if sights[known] == 2:
            yield index, identity
