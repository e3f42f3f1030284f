"""Deltas between two states of the board; docs/ui.md describes their format.

Invariant: a page that applies a delta to the old state has the state that `merged(old, new)` returns with it. That
shares all that is equal with the new state, so that the next comparison finds it identical, and differs from it only in
what the clock alone changes: that is as of the last change of its object, so that a quiet cluster causes no change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Any
Object = Mapping[str, Json]

NESTED: Final = frozenset({"status"})
"""Fields with objects that are merged; all other values are replaced."""
KEYED: Final = frozenset({"nodes", "pods", "podBudgets", "nodeBudgets", "queue", "history", "events", "timelines"})
"""Fields that hold many objects: a list of objects with a `uid`, or an object by uid."""

LISTS: Final = (list, tuple)
_ABSENT: Final = object()


def merged(old: Object, new: Object) -> tuple[Object, dict[str, Json]]:
    """New state of an object, and the delta to it; empty if only the clock has changed values."""
    state, delta, clock = dict(old), {}, {}
    for name, value in new.items():
        before = old.get(name, _ABSENT)
        if before is value or before == value:
            state[name] = value
            continue
        if name in KEYED and isinstance(value, LISTS) and isinstance(before, LISTS):
            state[name], change = _merged_list(before, value)
        elif name in KEYED and isinstance(value, dict) and isinstance(before, dict):
            state[name], change = _merged_map(before, value)
        elif name in NESTED and isinstance(value, dict) and isinstance(before, dict):
            state[name], change = merged(before, value)
        elif _is_of_clock(name, new):
            clock[name] = value
            continue
        elif before is not _ABSENT and _is_equal(before, value):
            continue
        else:
            state[name] = change = value
            delta[name] = change
            continue
        if change:
            delta[name] = change
    if delta:
        return state | clock, delta | clock
    return state, delta


def _merged_list(old: Sequence[Json], new: Sequence[Json]) -> tuple[Sequence[Json], dict[str, Json]]:
    before = {each["uid"]: each for each in old}
    state, changed, added = [], [], []
    for each in new:
        uid = each["uid"]
        known = before.get(uid)
        if known is None:
            added.append(uid)
            changed.append(each)
        elif known is not each and known != each:
            each, change = merged(known, each)
            if change:
                changed.append({"uid": uid} | change)
        state.append(each)
    uids = [each["uid"] for each in state]
    existing = set(uids)
    removed = [uid for uid in before if uid not in existing]
    delta: dict[str, Json] = {}
    if changed:
        delta["set"] = changed
    if removed:
        delta["remove"] = removed
    if uids != [*(uid for uid in before if uid in existing), *added]:
        delta["order"] = uids
    return state, delta


def _merged_map(old: Object, new: Object) -> tuple[Object, dict[str, Json]]:
    state, changed = dict(old), {}
    for uid, each in new.items():
        before = old.get(uid, _ABSENT)
        if before is each:
            continue
        if before == each:
            state[uid] = each
        elif isinstance(before, dict) and isinstance(each, dict):
            state[uid], change = merged(before, each)
            if change:
                changed[uid] = change
        else:
            state[uid] = changed[uid] = each
    removed = [uid for uid in old if uid not in new]
    for uid in removed:
        del state[uid]
    delta: dict[str, Json] = {}
    if changed:
        delta["set"] = changed
    if removed:
        delta["remove"] = removed
    return state, delta


def _is_of_clock(name: str, whole: Object) -> bool:
    """Whether the clock alone may have changed it: durations until now, and texts that hold one."""
    if name == "at":
        return "cluster" in whole
    return name.endswith("Seconds") or (name == "message" and ("until" in whole or "ageSeconds" in whole))


def _is_equal(before: Json, value: Json) -> bool:
    """Whether two values differ by the clock alone."""
    if isinstance(before, dict) and isinstance(value, dict):
        return before.keys() == value.keys() and all(
            _is_of_clock(name, value) or _is_equal(before[name], each) for name, each in value.items()
        )
    if isinstance(before, LISTS) and isinstance(value, LISTS):
        return len(before) == len(value) and all(map(_is_equal, before, value))
    return bool(before == value)
