"""Informers: a cache of one kind that follows the server and notifies subscribers of changes.

Invariant: a view never goes back in time: an older event does not undo an object learned from one's own write
(`remember`). So a controller can count on its own writes without expectations.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable

import anyio
from anyio.abc import TaskGroup

from kubesim.clock import Clock
from kubesim.controllers.client import ApiClient, follow
from kubesim.controllers.objects import Key, key_of
from kubesim.controllers.paths import PODS
from kubesim.server.api import JsonObject

Listener = Callable[[JsonObject | None, JsonObject | None], None]
"""Called with (old, new): old None = appeared, new None = gone. It must not await, and should only put keys on queues.
"""

REMEMBERED_DEATHS = 10_000


class Informer:
    """The objects of one collection. `synced` is set once the first list is complete."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.synced = anyio.Event()
        self._objects: dict[Key, JsonObject] = {}
        self._listeners: list[Listener] = []
        self._indexes: dict[str, Callable[[JsonObject], Iterable[str]]] = {}
        self._indexed: dict[str, dict[str, dict[Key, JsonObject]]] = {}
        self._unconfirmed: dict[Key, int] = {}
        self._dead: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, namespace: str, name: str) -> JsonObject | None:
        """The object, or None."""
        return self._objects.get((namespace, name))

    def values(self) -> list[JsonObject]:
        """All objects, in the order in which they appeared."""
        return list(self._objects.values())

    def keys(self) -> list[Key]:
        """All keys, in the order in which they appeared."""
        return list(self._objects)

    def index(self, name: str, values_of: Callable[[JsonObject], Iterable[str]]) -> None:
        """Keep an index: `values_of` an object says under which values `by` finds it. One name is one index."""
        if name not in self._indexes:
            self._indexes[name] = values_of
            self._indexed[name] = defaultdict(dict)
            for key, object_ in self._objects.items():
                self._enter(name, key, object_)

    def by(self, index: str, value: str) -> list[JsonObject]:
        """The objects that an index holds under a value, in the order in which they came there."""
        return list(self._indexed[index].get(value, {}).values())

    def count(self, index: str, value: str) -> int:
        """How many objects an index holds under a value."""
        return len(self._indexed[index].get(value, ()))

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` for every change from now on, and immediately for every object in the cache."""
        self._listeners.append(listener)
        for object_ in self.values():
            listener(None, object_)

    def unsubscribe(self, listener: Listener) -> None:
        """Call `listener` no more."""
        self._listeners.remove(listener)

    async def run(self, api: ApiClient, clock: Clock) -> None:
        """Follow the server until cancelled."""
        async for event in follow(api, self.path, {}, clock):
            if event.type == "SYNCED":
                self._drop_unconfirmed(int(event.object["metadata"]["resourceVersion"]))
                self.synced.set()
            elif event.type == "DELETED":
                self._remove(event.object)
            else:
                self._unconfirmed.pop(key_of(event.object), None)
                self._set(event.object)

    def remember(self, object_: JsonObject) -> None:
        """Take in the answer to one's own write, unless something newer is known."""
        if self._set(object_):
            self._unconfirmed[key_of(object_)] = _version(object_)

    def _set(self, object_: JsonObject) -> bool:
        key, uid = key_of(object_), object_["metadata"]["uid"]
        old = self._objects.get(key)
        if uid in self._dead or (old is not None and _version(old) >= _version(object_)):
            return False
        if old is not None and old["metadata"]["uid"] != uid:
            self._remove(old)
            old = None
        self._leave(key, old)
        self._objects[key] = object_
        for name in self._indexes:
            self._enter(name, key, object_)
        self._tell(old, object_)
        return True

    def _remove(self, object_: JsonObject) -> None:
        key, uid = key_of(object_), object_["metadata"]["uid"]
        self._dead[uid] = None
        if len(self._dead) > REMEMBERED_DEATHS:
            self._dead.popitem(last=False)
        old = self._objects.get(key)
        if old is not None and old["metadata"]["uid"] == uid:
            self._unconfirmed.pop(key, None)
            self._leave(key, old)
            del self._objects[key]
            self._tell(old, None)

    def _drop_unconfirmed(self, version: int) -> None:
        """What we wrote before a list was made, and is not in it, has gone in the meantime."""
        for key, written in list(self._unconfirmed.items()):
            if written <= version:
                del self._unconfirmed[key]
                self._remove(self._objects[key])

    def _enter(self, index: str, key: Key, object_: JsonObject) -> None:
        for value in self._indexes[index](object_):
            self._indexed[index][value][key] = object_

    def _leave(self, key: Key, object_: JsonObject | None) -> None:
        if object_ is None:
            return
        for name, values_of in self._indexes.items():
            for value in values_of(object_):
                members = self._indexed[name][value]
                members.pop(key, None)
                if not members:
                    del self._indexed[name][value]

    def _tell(self, old: JsonObject | None, new: JsonObject | None) -> None:
        for listener in tuple(self._listeners):
            listener(old, new)


class Informers:
    """The informers that controllers share: a kind is watched once."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        self.api = api
        self._clock = clock
        self._informers: dict[str, Informer] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._group: TaskGroup | None = None

    def of(self, path: str) -> Informer:
        """The view of a collection (a path without namespace), which is followed from now on, or once `run` begins."""
        if path not in self._informers:
            self._informers[path] = Informer(path)
            if self._group is not None:
                self._begin(self._group, self._informers[path])
        return self._informers[path]

    def drop(self, path: str) -> None:
        """Follow a collection no more; its view stays as it was last seen."""
        self._informers.pop(path)
        if path in self._scopes:
            self._scopes.pop(path).cancel()

    async def run(self) -> None:
        """Follow all requested collections until cancelled."""
        async with anyio.create_task_group() as self._group:
            for informer in sorted(self._informers.values(), key=lambda each: each.path == PODS):  # owners first
                self._begin(self._group, informer)

    def _begin(self, group: TaskGroup, informer: Informer) -> None:
        scope = self._scopes[informer.path] = anyio.CancelScope()
        group.start_soon(self._follow, informer, scope, name=f"view of {informer.path}")

    async def _follow(self, informer: Informer, scope: anyio.CancelScope) -> None:
        with scope:
            await informer.run(self.api, self._clock)


def _version(object_: JsonObject) -> int:
    return int(object_["metadata"]["resourceVersion"])
