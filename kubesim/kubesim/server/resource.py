"""Resources: where a kind is served, what can be selected, and its strategy.

A `Resource` is data. A `Strategy` (kube-apiserver's term) is the behavior of a kind on writes: defaults, validation,
graceful deletion. Most kinds use the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from kubesim.server.api import Json, JsonObject
from kubesim.server.status import Cause, Kind

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
NO_COLLECTION = ("create", "delete", "get", "list", "patch", "update", "watch")

Field = Callable[[JsonObject], str]
"""Reads a selectable field of an object as text."""


class Occasion(NamedTuple):
    """What a strategy may know about the request at hand."""

    namespace: str
    now: str
    subresource: str = ""


Cell = Callable[[JsonObject, float], Json]
"""Shows something of an object at an instant (seconds since the epoch)."""


class Column(NamedTuple):
    """One column of kubectl's table. `wide` columns are shown by `-o wide` only."""

    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False
    format: str = ""
    description: str = ""


class Strategy:
    """Behavior of a kind on writes; by default no defaults, validation, generation or grace. Hooks (prepare, then
    validate) return new dicts and never modify an object."""

    counts_generations = False
    """The server keeps metadata.generation: 1 at creation, +1 per change of the spec."""

    created_by_put = False
    """PUT of a missing object creates it."""

    unconditional_update = True
    """PUT without a version overwrites; otherwise it is 422."""

    answers_with_object = False
    """DELETE answers with the object instead of a Status."""

    status_writes_metadata = True
    """Labels and annotations may be written through /status."""

    names_are_free = False
    """Names may be whatever fits into a path (`system:node`), not only DNS subdomains."""

    untyped = False
    """Objects are maps to the server (custom resources): bodies must name their kind, lists name the kind of each item,
    finalizers may be unqualified."""

    empty: Mapping[str, Json] = {"spec": {}}
    """The zero fields that a bookmark shows in addition to its metadata."""

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        """Defaults of a new object; what clients may not set is dropped."""
        return new

    def validate(self, new: JsonObject) -> list[Cause]:
        """Faults of an object, new or changed."""
        return []

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        """Keep what this kind of write may not change: by default the status, or all but the status for /status."""
        kept = ("spec",) if occasion.subresource == "status" else ("status",)
        return keep_from(new, old, kept)

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        """Faults of a change (immutable fields)."""
        return []

    def faults_of_change(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> list[Cause]:
        """All faults of a changed object; kinds that do not hold against a writer what was wrong before say so here."""
        return [*self.validate(new), *self.validate_update(new, old)]

    def ending(self, old: JsonObject, now: str) -> JsonObject | None:
        """Object after the first DELETE if objects of this kind are never deleted immediately; else None."""
        return None

    def normalise(self, new: JsonObject) -> JsonObject:
        """The object as Go would write it: zero values left out or filled in."""
        return new

    def graceful_period(self, old: JsonObject, asked: int | None) -> int | None:
        """Seconds of grace a DELETE gives, or None for kinds that know no grace."""
        return None


def keep_from(new: JsonObject, old: JsonObject, fields: tuple[str, ...]) -> JsonObject:
    """`new` with the named top-level fields as they are in `old`."""
    if all(new.get(field) is old.get(field) for field in fields):
        return new
    result = dict(new)
    for field in fields:
        if field in old:
            result[field] = old[field]
        else:
            result.pop(field, None)
    return result


class View(msgspec.Struct, frozen=True):
    """How a version that is not the stored one reads and writes the stored objects."""

    from_stored: Callable[[JsonObject], JsonObject]
    to_stored: Callable[[JsonObject], JsonObject]


def _path(*keys: str) -> Field:
    def read(object_: JsonObject) -> str:
        value: Json = object_
        for key in keys:
            if not isinstance(value, dict):
                return ""
            value = value.get(key)
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    return read


def fields(*paths: str) -> dict[str, Field]:
    """Selectable fields by path; metadata.name and metadata.namespace are every kind's."""
    return {path: _path(*path.split(".")) for path in ("metadata.name", "metadata.namespace", *paths)}


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource in one version. `stored_as`: table of another resource with the same objects; `view` converts."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    stored_as: str = ""
    strategy: Strategy = Strategy()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    selectable: Mapping[str, Field] = msgspec.field(default_factory=fields)
    unselectable: str = '"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
    columns: tuple[Column, ...] = ()
    view: View | None = None
    singular: str = ""
    watch_cached: bool = True
    """False: watches read from etcd itself and cannot begin before its last compaction."""
    list_kind: str = ""
    """The kind of lists where it is not the kind with `List` behind it."""
    storage_version: str = ""
    """The version in which objects are stored, where that is known (custom resources)."""
    schema: Any = None
    """What a custom resource may hold: a Schema of the types room, of which this floor knows nothing."""
    warning: str = ""
    """What every answer about this version warns of (deprecated versions)."""
    absent: Mapping[str, str] = {}
    """Subresources that a real server has and this one does not, with the reason in the answer."""

    @property
    def api_version(self) -> str:
        """`v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def table(self) -> str:
        """The name of the table that holds the objects: the plural with its group."""
        return self.stored_as or self.words.resource

    @property
    def words(self) -> Kind:
        """The resource's names, for refusals."""
        return Kind(self.group, self.plural, self.kind)

    @property
    def stored_words(self) -> Kind:
        """Names in messages of its validation: the names of the stored kind (recording events)."""
        return Kind(self.table.partition(".")[2], self.plural, self.kind)

    @property
    def list_name(self) -> str:
        """The kind of lists."""
        return self.list_kind or f"{self.kind}List"

    @property
    def view_name(self) -> str:
        """The name under which events of this view are shared among watchers."""
        return self.api_version

    def shown(self, object_: JsonObject) -> JsonObject:
        """A stored object in this version."""
        return self.view.from_stored(object_) if self.view else object_


class Registry:
    """Which resources are served. Kinds may come and go while the server runs (custom resources)."""

    def __init__(self, resources: tuple[Resource, ...] = ()) -> None:
        self._resources: dict[tuple[str, str, str], Resource] = {}
        for resource in resources:
            self.add(resource)

    def add(self, resource: Resource) -> None:
        """Serve a resource from now on; replaces one of the same group, version and plural."""
        self._resources[resource.group, resource.version, resource.plural] = resource

    def remove(self, group: str, version: str, plural: str) -> None:
        """Stop serving a resource. Raises KeyError if it is not served."""
        del self._resources[group, version, plural]

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource, or None if it is not served."""
        return self._resources.get((group, version, plural))

    def serves(self, group: str, version: str) -> bool:
        """Whether anything is served under the group and version."""
        return any(key[0] == group and key[1] == version for key in self._resources)

    def is_untyped(self, group: str, version: str) -> bool:
        """Whether all that is served under the group and version is untyped (custom resources)."""
        return all(
            resource.strategy.untyped
            for key, resource in self._resources.items()
            if key[0] == group and key[1] == version
        )

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._resources.values())
