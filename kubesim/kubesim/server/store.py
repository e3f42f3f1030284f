"""The store: objects, one global revision, and a window of history.

Invariants: a stored object is replaced, never modified; every write raises the global revision by one and appends one
Change to its table's log, in order of revision. A load leaves no Change; its table's log starts after it. So readers
need no copies and no locks, and a watch is a position in the log.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter

from kubesim.server.api import JsonObject, StreamEvent
from kubesim.server.calls import Signature
from kubesim.sleepers import Sleepers

FIRST_REVISION = 1000
"""A young server has forgotten small versions, too: a watch from version 1 must be too old, as it is everywhere else.
"""

SNAPSHOTS = 8


class TooOldError(Exception):
    """The version asked for is older than the history kept."""


class Change:
    """One write: what an object was and became.

    `object` of a deletion is the object as last stored, at the version of the deletion. Events built from a change are
    kept here, so that all watchers share them (and their bytes). `by` is the author; None: the server itself.
    """

    __slots__ = ("_events", "by", "object", "previous", "revision", "type")

    def __init__(
        self,
        revision: int,
        type_: str,
        object_: JsonObject,
        previous: JsonObject | None,
        by: Signature | None = None,
    ) -> None:
        self.revision = revision
        self.type = type_
        self.object = object_
        self.previous = previous
        self.by = by
        self._events: dict[tuple[str, str], StreamEvent] = {}

    def event(self, type_: str, view: str, convert: Callable[[JsonObject], JsonObject] | None) -> StreamEvent:
        """The change as watchers of `view` see it when it means `type_` to them, built once."""
        key = (type_, view)
        event = self._events.get(key)
        if event is None:
            shown = self.object
            if type_ == "DELETED" and self.type != "DELETED" and self.previous is not None:
                # It left a selector: shown as it last matched, at the version of the leaving (recording watch-changes).
                shown = at_version(self.previous, self.revision)
            event = self._events[key] = StreamEvent(type_, convert(shown) if convert else shown)
        return event


def at_version(object_: JsonObject, revision: int) -> JsonObject:
    """The object with another resourceVersion."""
    return {**object_, "metadata": {**object_["metadata"], "resourceVersion": str(revision)}}


def sort_key(namespace: str, name: str) -> str:
    """The order of lists: that of the keys in etcd."""
    return f"{namespace}/{name}" if namespace else name


class Snapshot:
    """A table as it was at one revision, in the order of lists."""

    __slots__ = ("keys", "objects", "revision")

    def __init__(self, revision: int, objects: Mapping[str, JsonObject]) -> None:
        self.revision = revision
        self.keys = sorted(objects)
        self.objects = [objects[key] for key in self.keys]

    def bounds(self, namespace: str | None) -> tuple[int, int]:
        """Where the objects of a namespace begin and end (None: all of them)."""
        if namespace is None:
            return 0, len(self.keys)
        # "0" is the character behind "/".
        return bisect_left(self.keys, f"{namespace}/"), bisect_left(self.keys, f"{namespace}0")

    def after(self, key: str) -> int:
        """The index of the first object behind `key`."""
        return bisect_right(self.keys, key)


class Table:
    """All objects of one stored kind, and the log of their changes."""

    def __init__(self, name: str, first_revision: int, window: int) -> None:
        self.name = name
        self._window = window
        self._by_namespace: dict[str, dict[str, JsonObject]] = {}
        self._log: list[Change] = []
        self._dropped = 0
        self._forgotten = first_revision
        self._sleepers = Sleepers()

    def get(self, namespace: str, name: str) -> JsonObject | None:
        """The object, or None."""
        return self._by_namespace.get(namespace, {}).get(name)

    def in_namespace(self, namespace: str) -> Mapping[str, JsonObject]:
        """The objects of one namespace by name, in no order; do not write while iterating."""
        return self._by_namespace.get(namespace, {})

    def __iter__(self) -> Iterator[JsonObject]:
        for objects in self._by_namespace.values():
            yield from objects.values()

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def listed(self, namespace: str | None) -> list[JsonObject]:
        """The newest objects, in the order of lists; `namespace` None means all."""
        if namespace is not None:
            objects = self._by_namespace.get(namespace, {})
            return [objects[name] for name in sorted(objects)]
        keyed = self._keyed()
        return [keyed[key] for key in sorted(keyed)]

    def matching(self, namespace: str | None, match: Callable[[JsonObject], bool]) -> list[JsonObject]:
        """The newest matching objects, in the order of lists: a few of a large table are found before they are sorted,
        as a real server has an index for pods of a node."""
        spaces = self._by_namespace if namespace is None else {namespace: self.in_namespace(namespace)}
        found = [
            (sort_key(space, name), object_)
            for space, objects in spaces.items()
            for name, object_ in objects.items()
            if match(object_)
        ]
        return [object_ for _, object_ in sorted(found, key=itemgetter(0))]

    def _keyed(self) -> dict[str, JsonObject]:
        return {
            sort_key(namespace, name): object_
            for namespace, objects in self._by_namespace.items()
            for name, object_ in objects.items()
        }

    @property
    def oldest(self) -> int:
        """The oldest revision in the log."""
        return self._forgotten

    @property
    def position(self) -> int:
        """Where the next change will stand in the log."""
        return self._dropped + len(self._log)

    def position_after(self, revision: int) -> int:
        """The position of the first change newer than `revision`. Raises TooOldError if it may have been forgotten."""
        if revision < self._forgotten:
            raise TooOldError(self._forgotten)
        return self._dropped + bisect_right(self._log, revision, key=lambda change: change.revision)

    def changes(self, position: int) -> list[Change]:
        """The changes from `position` on. Raises TooOldError when the reader fell behind the window."""
        index = position - self._dropped
        if index < 0:
            raise TooOldError(self._forgotten)
        return self._log[index:]

    def at(self, revision: int) -> dict[str, JsonObject]:
        """The objects by key as they were at `revision`. Raises TooOldError."""
        if revision < self._forgotten:
            raise TooOldError(self._forgotten)
        keyed = self._keyed()
        for change in reversed(self._log):
            if change.revision <= revision:
                break
            metadata = change.object["metadata"]
            key = sort_key(metadata.get("namespace", ""), metadata["name"])
            if change.previous is None:
                keyed.pop(key, None)
            else:
                keyed[key] = change.previous
        return keyed

    def changes_of(self, object_: JsonObject) -> list[Change]:
        """What the log still knows of an object, oldest first."""
        uid = object_["metadata"]["uid"]
        return [change for change in self._log if change.object["metadata"]["uid"] == uid]

    def record(self, change: Change) -> None:
        """Apply a change and wake all waiters."""
        metadata = change.object["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if change.type == "DELETED":
            objects = self._by_namespace[namespace]
            del objects[name]
            if not objects:
                del self._by_namespace[namespace]
        else:
            self._by_namespace.setdefault(namespace, {})[name] = change.object
        self._log.append(change)
        if len(self._log) >= 2 * self._window:
            self._drop(len(self._log) - self._window)
        self.wake()

    def take_in(self, objects: Iterable[JsonObject], revision: int) -> None:
        """Apply additions without Changes; `revision` is the last one's. A watch sees a gap, and its client lists
        again."""
        for object_ in objects:
            metadata = object_["metadata"]
            self._by_namespace.setdefault(metadata.get("namespace", ""), {})[metadata["name"]] = object_
        # One more than there were changes: also for a reader who has seen all of them there is a gap now.
        self._dropped += len(self._log) + 1
        self._log.clear()
        self._forgotten = revision
        self.wake()

    def wake(self) -> None:
        """Wake all waiters, though there may be no change."""
        self._sleepers.wake()

    def forget(self, revision: int) -> None:
        """Drop the history up to `revision`, as a server does that restarts or runs out of room."""
        self._drop(bisect_right(self._log, revision, key=lambda change: change.revision))
        self._forgotten = max(self._forgotten, revision)

    def _drop(self, count: int) -> None:
        if count:
            self._forgotten = self._log[count - 1].revision
            del self._log[:count]
            self._dropped += count

    async def wait(self, seconds: float = math.inf) -> None:
        """Sleep until the next change, but no longer than so many seconds."""
        await self._sleepers.sleep(seconds)


class Store:
    """The tables under one revision counter."""

    def __init__(self, *, window: int = 10_000) -> None:
        """`window`: how many changes per table a watch can go back (up to twice as many are kept)."""
        self._window = window
        self._tables: dict[str, Table] = {}
        self._snapshots: OrderedDict[tuple[str, int], Snapshot] = OrderedDict()
        self.revision = FIRST_REVISION
        self.compacted = 0

    def table(self, name: str) -> Table:
        """The table of a stored kind, made on first use."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = Table(name, FIRST_REVISION, self._window)
        return table

    def put(
        self, table: Table, object_: JsonObject, previous: JsonObject | None, by: Signature | None = None
    ) -> JsonObject:
        """Store an object in place of `previous` (None: it is new) and return it with its version. `by`: the client
        that writes; None: the server."""
        self.revision += 1
        stored = at_version(object_, self.revision)
        table.record(Change(self.revision, "MODIFIED" if previous else "ADDED", stored, previous, by))
        return stored

    def remove(self, table: Table, object_: JsonObject) -> JsonObject:
        """Remove a stored object; returns it at the version of its deletion."""
        self.revision += 1
        gone = at_version(object_, self.revision)
        table.record(Change(self.revision, "DELETED", gone, object_))
        return gone

    def load(self, table: Table, objects: Iterable[JsonObject]) -> None:
        """Load many new objects without history: the table's watch window starts after them, as after a restart. Each
        gets a version, in order. The store owns the objects from now on; they may share parts. Raises ValueError, and
        loads nothing, if a name is taken."""
        loaded: dict[tuple[str, str], JsonObject] = {}
        for object_ in objects:
            key = object_["metadata"].get("namespace", ""), object_["metadata"]["name"]
            if key in loaded or table.get(*key) is not None:
                raise ValueError(f"{table.name} {sort_key(*key)} exists already")
            loaded[key] = object_
        if loaded:
            for revision, object_ in enumerate(loaded.values(), start=self.revision + 1):
                object_["metadata"]["resourceVersion"] = str(revision)
            self.revision += len(loaded)
            table.take_in(loaded.values(), self.revision)

    def snapshot(self, table: Table, revision: int) -> Snapshot:
        """The table as it was at `revision`; kept for the pages that will follow. Raises TooOldError."""
        if revision < self.compacted:
            raise TooOldError(self.compacted)
        key = (table.name, revision)
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            snapshot = self._snapshots[key] = Snapshot(revision, table.at(revision))
            if len(self._snapshots) > SNAPSHOTS:
                self._snapshots.popitem(last=False)
        else:
            self._snapshots.move_to_end(key)
        return snapshot

    def wake(self) -> None:
        """Wake all waiters of all tables."""
        for table in self._tables.values():
            table.wake()

    def compact(self) -> None:
        """Forget the past for exact lists and pages, as etcd's compaction does. Watches do not notice."""
        self.compacted = self.revision
        self._snapshots.clear()
