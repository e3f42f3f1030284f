"""The patches of the API: JSON (RFC 6902), merge (RFC 7386) and strategic merge (recordings writes-patch, writes-
refused).

Every patch builds a new value and shares what it does not touch; nothing is changed in place. Strategic merge knows
merge keys only where the kind's strategy names them; other lists are replaced as a whole (spec.taints is one: there is
nothing to merge by, and its `$patch` directives are read as taints).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from gracectl.sim.server.api import Json, JsonObject
from gracectl.sim.server.status import bad_request, rejected, unsupported_media_type

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

SET_LISTS = {"metadata.finalizers"}


def change(media_type: str, patch: Json, merge_keys: Mapping[str, str]) -> Callable[[Json], Json]:
    """What a patch of this type does to an object. Raises Refusal (415)."""
    match media_type:
        case "application/merge-patch+json":
            return partial(merge, patch=patch)
        case "application/strategic-merge-patch+json":
            return partial(strategic, patch=patch, merge_keys=merge_keys)
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


def json_patch(target: Json, operations: Json) -> Json:
    """RFC 6902. Raises Refusal: 400 if it is no list, else 422, always with the same vague message."""
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
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


def _pointer(text: str) -> list[str]:
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
    if rest:
        return {**target, head: _remove(target[head], rest)}
    return {key: value for key, value in target.items() if key != _present(target, head)}


def _present(target: JsonObject, key: str) -> str:
    if key not in target:
        raise KeyError(key)
    return key


def strategic(target: Json, patch: Json, merge_keys: Mapping[str, str]) -> Json:
    """Strategic merge. `merge_keys` gives the key of each list that merges by key, by path (`status.conditions`)."""
    return _Strategic(merge_keys).merge(target, patch, "")


class _Strategic:
    """One strategic merge, with the kind's merge keys."""

    def __init__(self, merge_keys: Mapping[str, str]) -> None:
        self._merge_keys = merge_keys

    def merge(self, target: Json, patch: Json, path: str) -> Json:
        if not isinstance(patch, dict):
            return patch
        directive = patch.get("$patch")
        if directive == "delete":
            return {}
        patch = {key: value for key, value in patch.items() if key not in ("$patch", "$retainKeys")}
        if directive == "replace":
            return patch
        result: JsonObject = dict(target) if isinstance(target, dict) else {}
        orders: dict[str, list[Json]] = {}
        for key, value in patch.items():
            if key.startswith("$setElementOrder/"):
                orders[key.partition("/")[2]] = value
            elif key.startswith("$deleteFromPrimitiveList/"):
                name = key.partition("/")[2]
                result[name] = [item for item in result.get(name) or () if item not in value]
            elif value is None:
                result.pop(key, None)
            else:
                result[key] = self._field(result.get(key), value, f"{path}.{key}" if path else key)
        for name, order in orders.items():
            if isinstance(result.get(name), list):
                result[name] = self._ordered(result[name], order, f"{path}.{name}" if path else name)
        return result

    def _field(self, old: Json, value: Json, path: str) -> Json:
        if isinstance(value, dict):
            return self.merge(old, value, path)
        if not isinstance(value, list):
            return value
        if path in SET_LISTS:
            old = old or []
            return [*(item for item in value if item not in old), *old]
        key = self._merge_keys.get(path)
        return value if key is None else self._by_key(old or [], value, key, path)

    def _by_key(self, old: list[Json], patch: list[Json], key: str, path: str) -> list[Json]:
        if any(item.get("$patch") == "replace" for item in patch):
            return [item for item in patch if "$patch" not in item]
        items = list(old)
        added: list[Json] = []
        for change in patch:
            index = next((i for i, item in enumerate(items) if item.get(key) == change.get(key)), None)
            if change.get("$patch") == "delete":
                if index is not None:
                    del items[index]
            elif index is None:
                added.append(self.merge({}, change, f"{path}[]"))
            else:
                items[index] = self.merge(items[index], change, f"{path}[]")
        return [*added, *items]

    def _ordered(self, items: list[Json], order: list[Json], path: str) -> list[Json]:
        key = self._merge_keys.get(path)

        def identity(item: Json) -> Json:
            return item.get(key) if key and isinstance(item, dict) else item

        ranks = {identity(item): rank for rank, item in enumerate(order)}
        # Items that the order does not name keep their place before the first named one that followed them.
        rank = len(ranks)
        keyed: list[tuple[int, Json]] = []
        for item in reversed(items):
            rank = ranks.get(identity(item), rank)
            keyed.append((rank, item))
        keyed.reverse()
        return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]
