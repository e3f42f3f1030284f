"""Cache of the objects of one kind as far as the watch has shown them: objects by key, and indexes over them.

One writer (a reflector), or one for each of several partitions, any number of readers, all on one event loop.
Invariants: objects, indexes and notifications never disagree (a subscriber that reads the cache sees the state of its
notification); every difference is notified once and in order; until the first complete list the cache is syncing, and
nothing may be decided from it. Writers of partitions are not in step with each other.

There may be half a million objects, so little is kept for each: it is found by namespace and name without a key of
its own, an index has one pointer to it, and a new list is taken over without a second view of the old one.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import anyio
import msgspec

from gracectl.model.envelope import UndecodableObject
from gracectl.model.foreign import harmless

logger = logging.getLogger(__name__)

Key = tuple[str, str]


class Cached(Protocol):
    """Interface of a cached object; `key` is (namespace, name)."""

    @property
    def key(self) -> Key:
        """(namespace, name)"""

    @property
    def uid(self) -> str:
        """Identity of the object: its name can belong to another object later."""

    @property
    def resource_version(self) -> str:
        """Version of its state."""


T = TypeVar("T", bound=Cached)
_key = attrgetter("key")
Subscriber = Callable[[T | None, T | None], None]
ByName = dict[str, dict[str, T]]
"""Objects by namespace, then by name."""


class Writable(Protocol[T]):
    """Target of a reflector: a whole cache, or a partition."""

    def put(self, new: T) -> None:
        """The object exists in this state."""

    def remove(self, key: Key) -> None:
        """The object is gone."""

    def set_aside(self, found: UndecodableObject, stand_in: T | None = None) -> None:
        """The object exists in a state that cannot be decoded; `stand_in` is held in its place."""

    def replace(self, objects: Iterable[T], undecodable: Iterable[UndecodableObject] = ()) -> None:
        """Replace the contents: all objects, and the undecodable ones."""

    def held(self, new: T) -> T:
        """The cached object if it is this one in this state; else `new`."""

    def __len__(self) -> int: ...


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Objects held now, and how many are set aside as undecodable; values under which indexes find some; changes
    notified since the start; lists taken over.
    """

    name: str
    live: bool
    objects: int
    undecodable: int
    index_values: int
    added: int
    updated: int
    deleted: int
    replaced: int


class Cache(Generic[T]):
    """Objects of one kind. `indexes`: by name, a function from an object to the values it is found under, each once."""

    def __init__(self, name: str, indexes: Mapping[str, Callable[[T], tuple[Hashable, ...]]] | None = None) -> None:
        self.name = name
        self._objects: ByName[T] = {}
        self._functions = dict(indexes or {})
        # Each list is sorted by key.
        self._indexes: dict[str, dict[Hashable, list[T]]] = {index: {} for index in self._functions}
        self._indexing = tuple((function, self._indexes[index]) for index, function in self._functions.items())
        self._undecodable: dict[Key, UndecodableObject] = {}
        self._subscribers: tuple[Subscriber[T], ...] = ()
        self._undecodable_subscribers: list[Callable[[UndecodableObject], None]] = []
        self._live = anyio.Event()
        self._gone: dict[Key, str] = {}  # by key, the UID of an object that a response reported gone: the watch may lag
        self._added = self._updated = self._deleted = self._replaced = 0

    @property
    def live(self) -> bool:
        """True once the first complete list has been taken over; stays true while a later list is fetched."""
        return self._live.is_set()

    async def wait_live(self) -> None:
        """Return as soon as the cache is live."""
        await self._live.wait()

    def get(self, namespace: str, name: str) -> T | None:
        """The object of that name, if there is one; the namespace is "" for cluster-scoped kinds."""
        named = self._objects.get(namespace)
        return None if named is None else named.get(name)

    def values(self) -> tuple[T, ...]:
        """All objects as they are now; takes time in proportion to their number."""
        return tuple(chain.from_iterable(named.values() for named in self._objects.values()))

    def in_namespace(self, namespace: str) -> tuple[T, ...]:
        """All objects of a namespace as they are now."""
        return tuple(self._objects.get(namespace, {}).values())

    def by_index(self, index: str, value: Hashable) -> tuple[T, ...]:
        """The objects that `index` finds under `value`, as they are now, by key. KeyError for an unknown index."""
        return tuple(self._indexes[index].get(value, ()))

    def indexed(self, index: str) -> tuple[T, ...]:
        """The objects that `index` finds under any value, once for each value, as they are now."""
        return tuple(chain.from_iterable(self._indexes[index].values()))

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def subscribe(self, callback: Subscriber[T], *, replay: bool = False) -> Callable[[], None]:
        """Call `callback(old, new)` after every change: (None, new) added, (old, None) deleted; returns how to
        unsubscribe.

        It must be quick and must not raise: an exception ends the reflector, and with it the process. An object that
        was replaced by another of the same name is notified as a deletion and an addition, never as an update.
        `replay`: before this returns, existing objects are notified as added.
        """
        self._subscribers += (callback,)
        if replay:
            for thing in self.values():
                callback(None, thing)
        return lambda: self._unsubscribe(callback)

    @contextmanager
    def scoped_subscriptions(self) -> Iterator[None]:
        """Subscriptions made while the block runs end with it."""
        subscribers, undecodable = self._subscribers, tuple(self._undecodable_subscribers)
        try:
            yield
        finally:
            self._subscribers = tuple([each for each in self._subscribers if each in subscribers])
            self._undecodable_subscribers[:] = [each for each in self._undecodable_subscribers if each in undecodable]

    def put(self, new: T) -> None:
        """Writer: the object exists in this state. The same state again is no change."""
        namespace, name = key = new.key
        if self._gone and (uid := self._gone.get(key)) is not None:
            if uid == new.uid:
                return
            del self._gone[key]
        if self._undecodable:
            self._undecodable.pop(key, None)
        named = self._objects.get(namespace)
        old = None if named is None else named.get(name)
        if old is not None and old.uid != new.uid:
            self.remove(key)
            named, old = self._objects.get(namespace), None
        if named is None:
            named = self._objects[namespace] = {}
        if old is None:
            self._added += 1
            named[name] = new
            for function, index in self._indexing:
                for value in function(new):
                    _insert(index, value, key, new)
        elif old.resource_version == new.resource_version:
            return
        else:
            self._updated += 1
            named[name] = new
            self._reindex(key, old, new)
        self._notify(old, new)

    def remove(self, key: Key) -> None:
        """Writer: remove the object. Removing a missing object is no change."""
        self._undecodable.pop(key, None)
        self._gone.pop(key, None)
        namespace, name = key
        named = self._objects.get(namespace, {})
        old = named.pop(name, None)
        if old is None:
            return
        if not named:
            del self._objects[namespace]
        self._deleted += 1
        self._reindex(key, old, None)
        self._notify(old, None)

    def learn_gone(self, key: Key, uid: str) -> None:
        """A response says that the object of this UID is gone: notify that now, and ignore older states of it in the
        watch, until the watch shows the deletion or the next list is complete."""
        old = self.get(*key)
        if old is not None and old.uid == uid:
            self.remove(key)
            self._gone[key] = uid

    def set_aside(self, found: UndecodableObject, stand_in: T | None = None) -> None:
        """Writer: the object exists in a state that cannot be decoded, until it is put or removed.

        Without a stand-in, the cache keeps the last state of the object, unless that was another object.
        """
        known = self._undecodable.get(found.key)
        old = self.get(*found.key)
        if stand_in is not None:
            self.put(stand_in)
        elif old is not None and found.uid and old.uid != found.uid:
            self.remove(found.key)
        self._undecodable[found.key] = found
        if known is None or (known.uid, known.error) != (found.uid, found.error):
            called = harmless("/".join(filter(None, found.key)), 300)
            logger.warning("%s %s: cannot be decoded, and is set aside: %s", self.name, called, found.error)
            for callback in tuple(self._undecodable_subscribers):
                callback(found)

    @property
    def undecodable(self) -> tuple[UndecodableObject, ...]:
        """The objects that are set aside now."""
        return tuple(self._undecodable.values())

    def subscribe_undecodable(self, callback: Callable[[UndecodableObject], None]) -> None:
        """Call `callback` with each object that is set aside now, then when one is set aside that was not, or for
        another reason. As with `subscribe` it must be quick and must not raise."""
        self._undecodable_subscribers.append(callback)
        for found in self.undecodable:
            callback(found)

    def replace(self, objects: Iterable[T], undecodable: Iterable[UndecodableObject] = ()) -> None:
        """Writer: these are all objects. Notifies exactly the differences, deletions first; then the cache is live."""
        aside = {found.key: found for found in undecodable}
        self._undecodable = {key: found for key, found in self._undecodable.items() if key in aside}
        self._replace({namespace: named.copy() for namespace, named in self._objects.items()}, objects, aside, self)
        self.complete()

    def filled(self) -> None:
        """Writer: all objects of the first list were put one after another; the cache is live."""
        self._replaced += 1
        self.complete()

    def held(self, new: T) -> T:
        """The cached object if it is this one in this state; else `new`."""
        old = self.get(*new.key)
        if old is None or (old.uid, old.resource_version) != (new.uid, new.resource_version):
            return new
        return old

    def partition(self, index: str, value: Hashable) -> CachePartition[T]:
        """View of the objects that `index` finds under `value`, for a separate writer. Raises KeyError for an unknown
        index."""
        return CachePartition(self, index, value)

    def complete(self) -> None:
        """Writers of partitions: each has taken over its first complete list; the cache is live."""
        self._live.set()

    def statistics(self) -> CacheStatistics:
        """Objects held, and changes notified."""
        return CacheStatistics(
            name=self.name,
            live=self.live,
            objects=len(self),
            undecodable=len(self._undecodable),
            index_values=sum(len(index) for index in self._indexes.values()),
            added=self._added,
            updated=self._updated,
            deleted=self._deleted,
            replaced=self._replaced,
        )

    def _replace(
        self,
        known: ByName[T],
        objects: Iterable[T],
        aside: Mapping[Key, UndecodableObject],
        writer: Writable[T],
    ) -> None:
        """`known`: current objects; the ones that are left at the end are gone."""
        self._gone.clear()  # the list knows better, also where a cluster was restored
        changed: list[T] = []
        stand_ins: dict[Key, T] = {}
        for new in objects:
            key = namespace, name = new.key
            old = known[namespace].pop(name, None) if namespace in known else None
            if key in aside:
                stand_ins[key] = new
            elif old is not new:
                changed.append(new)
        for namespace, named in known.items():
            for name in named:
                if (namespace, name) not in aside:
                    self.remove((namespace, name))
        for new in changed:
            writer.put(new)
        for key, found in aside.items():
            writer.set_aside(found, stand_ins.get(key))
        self._replaced += 1

    def _reindex(self, key: Key, old: T, new: T | None) -> None:
        for function, index in self._indexing:
            before, after = function(old), () if new is None else function(new)
            for value in before:
                found = index[value]
                place = bisect_left(found, key, key=_key)
                if new is not None and value in after:
                    found[place] = new
                    continue
                del found[place]
                if not found:
                    del index[value]
            if new is not None and after != before:
                for value in after:
                    if value not in before:
                        _insert(index, value, key, new)

    def _unsubscribe(self, callback: Subscriber[T]) -> None:
        found = list(self._subscribers)
        found.remove(callback)
        self._subscribers = tuple(found)

    def _notify(self, old: T | None, new: T | None) -> None:
        for callback in self._subscribers:
            callback(old, new)


def _insert(index: dict[Hashable, list[T]], value: Hashable, key: Key, new: T) -> None:
    if (known := index.get(value)) is None:
        index[value] = [new]
    elif known[-1].key < key:  # as in a list, which is in this order
        known.append(new)
    else:
        insort(known, new, key=_key)


class CachePartition(Generic[T]):
    """View of the objects of a cache that one index finds under one value, for a separate writer.

    Precondition: its writer puts only such objects, and an object never moves to another partition, as a pod never
    leaves its node. A name may move: the next pod of a StatefulSet starts on another node, and may be seen before the
    deletion of its predecessor. Of two such pods the one of the higher version exists, and events of the other are
    late: versions of one kind are numbers that grow
    (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
    """

    def __init__(self, cache: Cache[T], index: str, value: Hashable) -> None:
        self._cache = cache
        self._index, self._function = cache._indexes[index], cache._functions[index]
        self._value = value
        self._dropped = False

    def put(self, new: T) -> None:
        """Writer: see Cache; a late event of a predecessor is ignored."""
        if not self._dropped and not self._is_late(new):
            self._cache.put(new)

    def remove(self, key: Key) -> None:
        """Writer: see Cache; an object of that name in another partition stays."""
        there = self._cache.get(*key)
        if there is not None and not self._dropped and self._value in self._function(there):
            self._cache.remove(key)

    def set_aside(self, found: UndecodableObject, stand_in: T | None = None) -> None:
        """Writer: see Cache; a late event is ignored."""
        if not self._dropped and (stand_in is None or not self._is_late(stand_in)):
            self._cache.set_aside(found, stand_in)

    def replace(self, objects: Iterable[T], undecodable: Iterable[UndecodableObject] = ()) -> None:
        """Writer: these are all objects of the partition. Notifies exactly the differences, deletions first."""
        aside = {} if self._dropped else {found.key: found for found in undecodable}
        known: ByName[T] = {}
        for thing in self._objects:
            namespace, name = thing.key
            known.setdefault(namespace, {})[name] = thing
        self._cache._replace(known, objects, aside, self)

    def held(self, new: T) -> T:
        """See Cache."""
        return self._cache.held(new)

    def drop(self) -> None:
        """Remove the objects from the cache, and ignore the writer from now on. A later follower needs a new
        partition.
        """
        for thing in tuple(self._objects):
            self._cache.remove(thing.key)
        self._dropped = True

    def _is_late(self, new: T) -> bool:
        there = self._cache.get(*new.key)
        return there is not None and there.uid != new.uid and version_of(there) > version_of(new)

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def _objects(self) -> Sequence[T]:
        return () if self._dropped else self._index.get(self._value, ())


def version_of(thing: Cached) -> int:
    """The resourceVersion as the number that it is; 0 for an object that cannot be decoded: even its version may be
    unreadable."""
    return int(thing.resource_version or 0)
