"""The patches of the API: JSON (RFC 6902) and merge (RFC 7386); strategic merge has a module of its own.

Every patch builds a new value and shares what it does not touch; nothing is changed in place (recordings writes-patch,
writes-refused).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kubesim.server.api import Json, JsonObject
from kubesim.server.status import bad_request, rejected, unsupported_media_type
from kubesim.server.strategic import Layout, strategic

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


def change(media_type: str, patch: Json, layout: Layout | None = None) -> Callable[[Json], Json]:
    """What a patch of this type does to an object. `layout` tells a strategic merge how the object's lists and maps
    merge. Raises Refusal (415)."""
    match media_type:
        case "application/merge-patch+json":
            return partial(merge, patch=patch)
        case "application/strategic-merge-patch+json":
            return partial(_strategic, patch=patch, layout=layout)
        case "application/json-patch+json":
            return partial(json_patch, operations=patch)
    raise unsupported_media_type()


def merge(target: Json, patch: Json) -> Json:
    """RFC 7386: null removes, objects merge, everything else is replaced."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def _strategic(target: Json, patch: Json, layout: Layout | None) -> Json:
    try:
        return strategic(target, patch, layout)
    except (TypeError, AttributeError):
        # A directive, or an item of a list that is merged, of a wrong type: Go's library finds each by its own name.
        raise bad_request("invalid strategic merge patch format") from None


def json_patch(target: Json, operations: Json) -> Json:
    """RFC 6902. Raises Refusal: 400 if it is no list, else 422, always with the same vague message."""
    if not isinstance(operations, list):
        why = "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: {why}")
    try:
        for operation in operations:
            target = _operate(target, operation)
    except (KeyError, IndexError, ValueError, TypeError):
        raise rejected() from None
    return target


def _operate(target: Json, operation: JsonObject) -> Json:
    path = _pointer(operation["path"])
    match operation["op"]:
        case "add":
            return _set(target, path, operation["value"], insert=True)
        case "replace":
            _read(target, path)
            return _set(target, path, operation["value"], insert=False)
        case "remove":
            return _remove(target, path)
        case "test":
            if _read(target, path) != operation.get("value"):
                raise ValueError(path)
            return target
        case "copy":
            return _set(target, path, _read(target, _pointer(operation["from"])), insert=True)
        case "move":
            source = _pointer(operation["from"])
            return _set(_remove(target, source), path, _read(target, source), insert=True)
        case other:
            raise ValueError(other)


def _pointer(text: Json) -> list[str]:
    if not isinstance(text, str):
        raise TypeError(text)
    if text == "":
        return []
    if not text.startswith("/"):
        raise ValueError(text)
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _read(target: Json, path: list[str]) -> Json:
    for part in path:
        target = target[int(part)] if isinstance(target, list) else target[part]
    return target


def _set(target: Json, path: list[str], value: Json, *, insert: bool) -> Json:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(target, list):
        items = list(target)
        if not rest and head == "-":
            return [*items, value]
        index = int(head)
        if not rest and insert:
            if not 0 <= index <= len(items):
                raise IndexError(index)
            return [*items[:index], value, *items[index:]]
        items[index] = _set(items[index], rest, value, insert=insert)
        return items
    if not isinstance(target, dict):
        raise TypeError(head)
    if rest:
        return {**target, head: _set(target[head], rest, value, insert=insert)}
    return {**target, head: value}


def _remove(target: Json, path: list[str]) -> Json:
    head, rest = path[0], path[1:]
    if isinstance(target, list):
        items = list(target)
        index = int(head)
        if rest:
            items[index] = _remove(items[index], rest)
        else:
            del items[index]
        return items
    if not isinstance(target, dict):
        raise TypeError(head)
    if rest:
        return {**target, head: _remove(target[head], rest)}
    return {key: value for key, value in target.items() if key != _present(target, head)}


def _present(target: JsonObject, key: str) -> str:
    if key not in target:
        raise KeyError(key)
    return key
