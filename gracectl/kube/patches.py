"""Patches applied to plain JSON as an API server applies them, and what two states of an object differ in.

For dry runs, which answer a write without sending it. Lists of Kubernetes' own kinds are taken as maps by what
identifies an entry (`type` of conditions, `key` and `effect` of taints), others as sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gracectl.kube.requests import JsonPatch, MergePatch, StrategicPatch
from gracectl.model.encoding import SORTED, encode

JsonObject = dict[str, Any]

REMOVED: Final = object()
"""In a difference: the field or entry is not there any more."""


class _Entries(msgspec.Struct, frozen=True):
    """Difference of two lists: entries by identity, in the order of the newer one."""

    changed: Mapping[str, Any]


class InvalidPatch(ValueError):
    """The patch cannot be applied to this object."""


def apply_patch(thing: JsonObject, body: Any, content_type: str) -> JsonObject:
    """The object with the patch applied; the original is unchanged. Raises InvalidPatch."""
    if content_type == JsonPatch.content_type:
        for operation in body:
            thing = _operate(thing, operation)
        return thing
    assert content_type in (MergePatch.content_type, StrategicPatch.content_type), content_type
    merged: JsonObject = _merge(thing, body, by_entry=content_type == StrategicPatch.content_type)
    return merged


def _merge(old: Any, patch: Any, *, by_entry: bool) -> Any:
    if isinstance(patch, list) and by_entry and all(isinstance(entry, dict) for entry in patch):
        return _merge_entries(old if isinstance(old, list) else [], patch)
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value, by_entry=by_entry)
    return result


def _merge_entries(old: list[Any], patch: list[JsonObject]) -> list[Any]:
    entries = {_identity(entry): entry for entry in old}
    for change in patch:
        key = _identity(change)
        if change.get("$patch") == "delete":
            entries.pop(key, None)
        else:
            entries[key] = _merge(entries.get(key), change, by_entry=True)
    return list(entries.values())


def _operate(thing: JsonObject, operation: JsonObject) -> JsonObject:
    """The object after one operation of RFC 6902: add, replace, remove or test.

    Copied is what lies on the path; the rest, which may be nested deeper than any recursion reaches, is shared.
    """
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    result = dict(thing)
    place: Any = result
    try:
        for part in parents:
            step = int(part) if isinstance(place, list) else part
            copied = _shallow_copy(place[step])
            place[step] = copied
            place = copied
        key: Any = last
        if isinstance(place, list):
            key = len(place) if last == "-" else int(last)
        match operation["op"]:
            case "add" if isinstance(place, list):
                place.insert(key, operation["value"])
            case "add":
                place[key] = operation["value"]
            case "replace":
                place[key]  # must be there
                place[key] = operation["value"]
            case "remove":
                del place[key]
            case "test" if place[key] == operation["value"]:
                pass
            case other:
                raise InvalidPatch(f"{other} {operation['path']}: not as expected")
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise InvalidPatch(f"{operation['op']} {operation['path']}: {error}") from error
    return result


def _shallow_copy(place: Any) -> Any:
    if not isinstance(place, (dict, list)):
        raise TypeError(f"{type(place).__name__} has no members")
    return place.copy()


def _identity(entry: Any) -> str:
    """What tells an entry of a list from the others."""
    if isinstance(entry, dict) and "type" in entry:
        return str(entry["type"])
    if isinstance(entry, dict) and "key" in entry:
        return f"{entry['key']}:{entry.get('effect', '')}"
    return encode(entry, SORTED).decode()


def difference(old: Any, new: Any) -> Any:
    """What has to change for `old` to become `new`, for `apply_difference`; {} if nothing."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = {name: REMOVED for name in old if name not in new}
        for name, value in new.items():
            before = old.get(name, [] if isinstance(value, list) else None)
            if name not in old or before != value:
                found[name] = difference(before, value)
        return found
    if isinstance(old, list) and isinstance(new, list):
        before, after = ({_identity(entry): entry for entry in entries} for entries in (old, new))
        changed = {key: REMOVED for key in before if key not in after}
        return _Entries(changed | {key: entry for key, entry in after.items() if before.get(key) != entry})
    return new


def apply_difference(old: Any, change: Any) -> Any:
    """`old` with a difference applied that was found at another state of it."""
    if isinstance(change, _Entries):
        entries = {_identity(entry): entry for entry in (old if isinstance(old, list) else [])}
        return [entry for entry in (entries | dict(change.changed)).values() if entry is not REMOVED]
    if not isinstance(change, dict):
        return change
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is REMOVED:
            result.pop(name, None)
        else:
            result[name] = apply_difference(result.get(name), value)
    return result


def changed_fields(change: JsonObject) -> Iterator[str]:
    """Paths of the fields of a difference, two levels deep: `spec.taints`."""
    for section, fields in change.items():
        if isinstance(fields, dict) and fields:
            yield from (f"{section}.{name}" for name in fields)
        else:
            yield section
