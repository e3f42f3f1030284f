"""Strategic merge: the patch that knows how the lists of a kind merge (recording writes-patch).

A list merges by key or as a set if its type says so; else it is replaced (spec.taints has no merge key, so its `$patch`
directives are read as taints). Items that the patch does not name keep their place, and new items come first.
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, Protocol

from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import go_text
from kubesim.server.status import internal

DIRECTIVE: Final = "$patch"
RETAINED: Final = "$retainKeys"
ORDER: Final = "$setElementOrder/"
DELETED: Final = "$deleteFromPrimitiveList/"


class Layout(Protocol):
    """How one part of an object merges. (A schema of the types room is one.)"""

    @property
    def patch_strategies(self) -> Set[str]:
        """`merge`, `replace`, `retainKeys`, or nothing said."""
        ...

    @property
    def merge_key(self) -> str:
        """Field that identifies the items of a list, or ""."""
        ...

    @property
    def items(self) -> Layout | None:
        """The items of a list."""
        ...

    def field(self, name: str) -> Layout | None:
        """A field of an object, or what a map holds."""
        ...


def strategic(target: Json, patch: Json, layout: Layout | None) -> Json:
    """The target with the patch merged in; without a layout every list is replaced. Raises Refusal (500)."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get(DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != DIRECTIVE}
    if directive == "delete":
        return {}
    if directive is not None and directive != "merge":
        raise internal(f"unknown patch type: {go_text(directive)} in map: {go_text(patch)}")
    result: JsonObject = _retained(target if isinstance(target, dict) else {}, patch.get(RETAINED))
    for key, value in patch.items():
        if key in (DIRECTIVE, RETAINED) or key.startswith(ORDER):
            continue
        if key.startswith(DELETED):
            name = key.removeprefix(DELETED)
            if name in result:
                result[name] = [item for item in result[name] if item not in value]
        elif value is None:
            result.pop(key, None)
        else:
            part = layout.field(key) if layout else None
            result[key] = _merged(result.get(key), value, part)
    for directive, order in patch.items():
        name = directive.removeprefix(ORDER)
        part = layout.field(name) if layout else None
        if name != directive and part is not None and isinstance(result.get(name), list):
            before = target.get(name) if isinstance(target, dict) else None
            result[name] = in_order(result[name], order, before or [], part.merge_key)
    return result


def _retained(target: JsonObject, names: Json) -> JsonObject:
    """The target without those keys that the patch does not want to keep."""
    return dict(target) if names is None else {key: value for key, value in target.items() if key in names}


def _merged(old: Json, value: Json, layout: Layout | None) -> Json:
    strategies: Set[str] = layout.patch_strategies if layout else frozenset()
    if isinstance(value, dict):
        return value if "replace" in strategies else strategic(old, value, layout)
    if not isinstance(value, list) or layout is None or "merge" not in strategies:
        return value
    if not isinstance(old, list) and any(_identity(item, layout.merge_key) is None for item in value):
        return value  # items of a new list need no identity
    before = old or []
    if layout.merge_key:
        return _by_key(before, value, layout, layout.merge_key)
    both = [*before, *value]
    return in_order([item for place, item in enumerate(both) if item not in both[:place]], value, before, "")


def _by_key(old: list[Json], patch: list[Json], layout: Layout, key: str) -> list[Json]:
    """A list of objects merged by the key. Raises Refusal (500) for an item without it."""
    if any(isinstance(change, dict) and change.get(DIRECTIVE) == "replace" for change in patch):
        return [change for change in patch if DIRECTIVE not in change]
    items = list(old)
    for change in patch:
        if not isinstance(change, dict) or not isinstance(change.get(key), str | int):
            raise internal(f"map: {go_text(change)} does not contain declared merge key: {key}")
        name = change[key]
        if change.get(DIRECTIVE) == "delete":
            items = [item for item in items if _identity(item, key) != name]
            continue
        # Keys need not be unique (a port by TCP and by UDP): the first one is meant.
        place = next((place for place, item in enumerate(items) if _identity(item, key) == name), len(items))
        items[place:] = [
            strategic({} if place == len(items) else items[place], change, layout.items),
            *items[place + 1 :],
        ]
    return in_order(items, patch, old, key)


def in_order(items: list[Json], order: list[Json], original: list[Json], key: str) -> list[Json]:
    """A merged list as the patch orders it: named items as in `order`, the others as in `original`. One of these comes
    before a named one if it preceded that one in the original; otherwise the named ones come first."""
    ranks = {_identity(item, key): rank for rank, item in reversed([*enumerate(order)])}
    named = [item for item in items if _identity(item, key) in ranks]
    named.sort(key=lambda item: ranks[_identity(item, key)])
    if len(named) == len(items):
        return named
    waiting = [item for item in items if _identity(item, key) not in ranks]
    places = [_identity(item, key) for item in original]
    ordered: list[Json] = []
    for item in named:
        name = _identity(item, key)
        while waiting and name in places and _precedes(_identity(waiting[0], key), name, places):
            ordered.append(waiting.pop(0))
        ordered.append(item)
    return [*ordered, *waiting]


def _precedes(one: Json, other: Json, places: list[Json]) -> bool:
    return one in places and places.index(one) < places.index(other)


def _identity(item: Json, key: str) -> Json:
    return item.get(key) if key and isinstance(item, dict) else item
