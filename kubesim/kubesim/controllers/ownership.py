"""Collections that can own objects or be owned: built-in collections, and collections of CustomResourceDefinitions.

An owner reference names a group and a kind; a real garbage collector uses discovery, this one the definitions.
Invariant: objects of an unknown kind are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import condition_of
from kubesim.controllers.paths import CLUSTER_KINDS, DEFINITIONS, EVENTS, KINDS
from kubesim.server.api import JsonObject


class Collection(NamedTuple):
    """Where the objects of a kind live (a path without namespace), and whether they have namespaces."""

    path: str
    namespaced: bool


GroupKind = tuple[str, str]

BUILT_IN: Final[dict[GroupKind, Collection]] = {
    ("" if path.startswith("/api/") else path.split("/")[2], kind): Collection(path, kind not in CLUSTER_KINDS)
    for kind, path in KINDS.items()
    if path != EVENTS  # as the real one: they are many, and go by themselves
}


class Ownership:
    """Known collections by group and kind. `came(group and kind, path)` and `went(path, for good)` report custom ones;
    not for good: another version still serves the objects."""

    def __init__(
        self, informers: Informers, came: Callable[[GroupKind, str], None], went: Callable[[str, bool], None]
    ) -> None:
        self._custom: dict[GroupKind, Collection] = {}
        self._names: dict[str, GroupKind] = {}
        self._came = came
        self._went = went
        informers.of(DEFINITIONS).subscribe(self._definition_changed)

    def find(self, reference: JsonObject) -> Collection | None:
        """Where the owner that a reference names would be; None if unknown."""
        group_kind = group_kind_of(reference)
        return BUILT_IN.get(group_kind) or self._custom.get(group_kind)

    def _definition_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        definition = new if new is not None else old
        assert definition is not None
        name = definition["metadata"]["name"]
        if new is None:
            self._forget(name, for_good=True)
        elif _is_established(new):
            group_kind = (new["spec"]["group"], new["spec"]["names"]["kind"])
            known, now = self._custom.get(group_kind), _collection(new, self._custom.get(group_kind))
            if now is not None and now != known:
                self._forget(name, for_good=False)
                self._custom[group_kind] = now
                self._names[name] = group_kind
                self._came(group_kind, now.path)

    def _forget(self, definition: str, *, for_good: bool) -> None:
        group_kind = self._names.pop(definition, None)
        if group_kind is not None:
            self._went(self._custom.pop(group_kind).path, for_good)


def group_kind_of(reference: JsonObject) -> GroupKind:
    """Group and kind of an owner."""
    return reference["apiVersion"].rpartition("/")[0], reference["kind"]


def _is_established(definition: JsonObject) -> bool:
    condition = condition_of(definition, "Established")
    return condition is not None and condition["status"] == "True"


def _collection(definition: JsonObject, before: Collection | None) -> Collection | None:
    """Where the objects of a definition are: in the version they were in before, for as long as that is served."""
    spec = definition["spec"]
    served = [
        Collection(f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}", spec["scope"] == "Namespaced")
        for version in spec["versions"]
        if version["served"]
    ]
    return before if before in served else next(iter(served), None)
