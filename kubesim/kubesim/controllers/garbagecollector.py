"""The garbage collector and PodGC: objects that outlive their owner, pods that outlive their node.

Invariant: before a DELETE the server confirms that the owner (or node) is gone, and the DELETE carries the uid.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from enum import Enum, auto
from typing import Final

from kubesim.controllers.client import MERGE, STRATEGIC
from kubesim.controllers.controller import Controller
from kubesim.controllers.informers import Informer, Informers
from kubesim.controllers.objects import Key, is_finished, is_ready, is_terminating, key_of, node_of
from kubesim.controllers.ownership import BUILT_IN, GroupKind, Ownership, group_kind_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import DEFINITIONS, NODES, PODS, path_of
from kubesim.controllers.taints import OUT_OF_SERVICE, taints_of
from kubesim.server.api import JsonObject
from kubesim.values import format_time

LOOK = 20.0
"""Simulated seconds between two looks of PodGC."""

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
AGAIN = 0.1
"""Simulated seconds until a look is repeated that came too early."""
REMEMBERED_DEATHS = 10_000


class Fate(Enum):
    """What has become of an owner: there; going, and waiting for its dependents; gone; unknown."""

    SOLID = auto()
    WAITING = auto()
    GONE = auto()
    UNKNOWN = auto()


class GarbageCollector(Controller[tuple[str, str, str]]):
    """Deletes objects whose owners are all gone, and finishes foreground and orphan deletions. Keys: (collection,
    namespace, name)."""

    def __init__(self, informers: Informers, pace: Pace) -> None:
        built_in = [collection.path for collection in BUILT_IN.values()]
        super().__init__(informers, pace, DEFINITIONS, *built_in)
        self._watched: dict[str, Informer] = {}
        self._dead: OrderedDict[str, None] = OrderedDict()
        """Uids of custom objects that are known to be gone, also when their kind went with them."""
        self._puzzling: defaultdict[GroupKind, set[tuple[str, str, str]]] = defaultdict(set)
        self._ownership = Ownership(informers, self._kind_came, self._kind_went)
        for path in built_in:
            self._listen(path)

    def _listen(self, path: str) -> None:
        def changed(old: JsonObject | None, new: JsonObject | None) -> None:
            if new is None:
                if old is not None:
                    self._owner_gone(old)
                return
            if is_terminating(new) or (old is None and not self._is_safe(new)):
                self.queue.add((path, *key_of(new)))
            if old is not None and _owner_uids(old) != _owner_uids(new):
                self._look_at_owners(old)

        informer = self._watched[path] = self.informers.of(path)
        informer.index("owners", _owner_uids)
        informer.subscribe(changed)

    def _is_safe(self, object_: JsonObject) -> bool:
        """Whether all its owners are in view, and stay: there is nothing to judge until one goes."""
        owners = (self._owner(key_of(object_)[0], each)[1] for each in _references(object_))
        return not any(owner is None or is_terminating(owner) for owner in owners)

    def _owner(self, namespace: str, reference: JsonObject) -> tuple[str, JsonObject | None]:
        """Path of the owner that a reference means, "" if its kind is unknown, and the owner if it is in view."""
        collection = self._ownership.find(reference)
        if collection is None or (collection.namespaced and not namespace):
            return "", None
        place = (namespace if collection.namespaced else "", reference["name"])
        owner = self.informers.of(collection.path).get(*place)
        is_it = owner is not None and owner["metadata"]["uid"] == reference["uid"]
        return path_of(collection.path, *place), owner if is_it else None

    def _kind_came(self, group_kind: GroupKind, path: str) -> None:
        self._listen(path)
        for key in self._puzzling.pop(group_kind, ()):
            self.queue.add(key)

    def _kind_went(self, path: str, for_good: bool) -> None:
        informer = self._watched.pop(path)
        self.informers.drop(path)
        for object_ in informer.values() if for_good else ():
            self._owner_gone(object_)

    def _owner_gone(self, owner: JsonObject) -> None:
        self._dead[owner["metadata"]["uid"]] = None
        if len(self._dead) > REMEMBERED_DEATHS:
            self._dead.popitem(last=False)
        for key in self._dependents(owner):
            self.queue.add(key)
        self._look_at_owners(owner)

    def _look_at_owners(self, dependent: JsonObject) -> None:
        """They may wait for it (foreground)."""
        for reference in _references(dependent):
            collection = self._ownership.find(reference)
            if collection is not None:
                namespace = key_of(dependent)[0] if collection.namespaced else ""
                self.queue.add((collection.path, namespace, reference["name"]))

    def _dependents(self, owner: JsonObject, *, blocking: bool = False) -> list[tuple[str, str, str]]:
        """The keys of what an object owns; `blocking`: only what blocks its deletion."""
        uid = owner["metadata"]["uid"]
        return [
            (path, *key_of(found))
            for path, informer in self._watched.items()
            for found in informer.by("owners", uid)
            if not blocking or any(each["uid"] == uid for each in _references(found) if each.get("blockOwnerDeletion"))
        ]

    async def reconcile(self, key: tuple[str, str, str]) -> None:
        """See Controller.reconcile."""
        path, namespace, name = key
        object_ = self._watched[path].get(namespace, name) if path in self._watched else None
        if object_ is None:
            return
        if is_terminating(object_):
            await self._finish(key, object_)
        elif _references(object_):
            await self._judge(key, object_)

    async def _finish(self, key: tuple[str, str, str], object_: JsonObject) -> None:
        finalizers = object_["metadata"].get("finalizers") or ()
        if not {ORPHAN, FOREGROUND} & set(finalizers):
            return
        if not all(informer.synced.is_set() for informer in self._watched.values()):
            self.after(key, AGAIN)  # There may be dependents that have not been seen yet.
        elif ORPHAN in finalizers:
            for dependent in self._dependents(object_):
                await self._disown(dependent, {object_["metadata"]["uid"]})
            await self._drop(key, object_, ORPHAN)
        else:
            left = self._dependents(object_, blocking=True)
            for dependent in left:
                self.queue.add(dependent)
            if not left:
                await self._drop(key, object_, FOREGROUND)

    async def _judge(self, key: tuple[str, str, str], object_: JsonObject) -> None:
        """An object lives as long as one of its owners does, and then without the others."""
        fates = {reference["uid"]: await self._fate(key, reference) for reference in _references(object_)}
        met = set(fates.values())
        if Fate.UNKNOWN in met:
            return
        if Fate.SOLID in met:
            if lost := {uid for uid, fate in fates.items() if fate is not Fate.SOLID}:
                await self._disown(key, lost)
        else:
            waits = Fate.WAITING in met and bool(self._dependents(object_))
            await self._delete(key, object_, "Foreground" if waits else _propagation(object_))

    async def _fate(self, key: tuple[str, str, str], reference: JsonObject) -> Fate:
        if reference["uid"] in self._dead:
            return Fate.GONE
        path, owner = self._owner(key[1], reference)
        if not path:
            self._puzzling[group_kind_of(reference)].add(key)
            return Fate.UNKNOWN
        if owner is None:
            status, owner = await self.ask("GET", path, allow=(404,))
            if status == 404 or owner["metadata"]["uid"] != reference["uid"]:
                return Fate.GONE
        is_waiting = is_terminating(owner) and FOREGROUND in (owner["metadata"].get("finalizers") or ())
        return Fate.WAITING if is_waiting and reference.get("blockOwnerDeletion") else Fate.SOLID

    async def _delete(self, key: tuple[str, str, str], object_: JsonObject, propagation: str) -> None:
        options = {
            "preconditions": {"uid": object_["metadata"]["uid"]},
            "propagationPolicy": propagation,
        }
        await self.ask("DELETE", path_of(*key), options, allow=(404, 409))

    async def _disown(self, key: tuple[str, str, str], owners: set[str]) -> None:
        object_ = self._watched[key[0]].get(*key[1:])
        if object_ is not None:
            left = [reference for reference in _references(object_) if reference["uid"] not in owners]
            await self._patch(key, object_, {"ownerReferences": left})

    async def _drop(self, key: tuple[str, str, str], object_: JsonObject, finalizer: str) -> None:
        left = [each for each in object_["metadata"]["finalizers"] if each != finalizer]
        await self._patch(key, object_, {"finalizers": left})

    async def _patch(self, key: tuple[str, str, str], object_: JsonObject, metadata: JsonObject) -> None:
        # The version guards what another client adds at this moment.
        guards = {each: object_["metadata"][each] for each in ("uid", "resourceVersion")}
        patch = {"metadata": {**guards, **metadata}}
        status, _ = await self.ask("PATCH", path_of(*key), patch, content_type=MERGE, allow=(404, 409, 422))
        if status == 409:
            self.after(key, AGAIN)


ORPHANED: Final = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


class PodGarbage(Controller[Key]):
    """PodGC: removes pods of deleted nodes after a quarantine, and terminating pods of out-of-service nodes. Keys:
    pods. Checks every LOOK seconds, so an orphan goes after 40 to 60 s (recording nodes-orphans)."""

    def __init__(self, informers: Informers, pace: Pace, *, quarantine: float = 40.0) -> None:
        """`quarantine`: simulated seconds (the real one: 40 s, with a look every 20 s)."""
        super().__init__(informers, pace, NODES, PODS)
        self._quarantine = quarantine
        self._begun = 0.0
        self._nodes = informers.of(NODES)
        self._pods = informers.of(PODS)
        self._orphaned: dict[Key, float] = {}
        self._pods.index("node", lambda pod: (node_of(pod),))
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)

    async def run(self) -> None:
        """Process keys until cancelled."""
        self._begun = self.pace.clock.monotonic()
        await super().run()

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None and old is not None:
            self._orphaned.pop(key_of(old), None)
        elif new is not None and node_of(new):
            is_known = self._nodes.get("", node_of(new)) is not None and not is_terminating(new)
            is_news = not is_known if old is None else not node_of(old) or is_terminating(new) != is_terminating(old)
            if is_news:
                self.queue.add(key_of(new))

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        node = new if new is not None else old
        if node is not None and (old is None or new is None or _is_out_of_service(old) != _is_out_of_service(new)):
            for pod in self._pods.by("node", node["metadata"]["name"]):
                self.queue.add(key_of(pod))

    def _next_look(self, instant: float) -> float:
        """The first look at or after an instant."""
        period = self.pace.real(LOOK)
        return self._begun + math.ceil(round((instant - self._begun) / period, 6)) * period

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        pod = self._pods.get(*key)
        node = self._nodes.get("", node_of(pod)) if pod is not None else None
        if pod is None or node is not None:
            self._orphaned.pop(key, None)
            if pod is not None and node is not None and is_terminating(pod) and _is_out_of_service(node):
                await self._remove(pod)
            return
        now = self.pace.clock.monotonic()
        if key not in self._orphaned:
            self._orphaned[key] = self._next_look(self._next_look(now) + self.pace.real(self._quarantine))
        due = self._orphaned[key]
        if due - now > 1e-6:
            self.queue.add_after(key, due - now)
            return
        status, _ = await self.ask("GET", path_of(NODES, name=node_of(pod)), allow=(404,))
        if status == 404:
            await self._remove(pod, ORPHANED)

    async def _remove(self, pod: JsonObject, why: JsonObject | None = None) -> None:
        """Since 1.26 it first writes that the pod has failed, and why."""
        if not is_finished(pod):
            said = {**why, "lastTransitionTime": format_time(self.pace.clock.now())} if why else None
            status = {"phase": "Failed", **({"conditions": [said]} if said else {})}
            patch = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
            where = path_of(PODS, *key_of(pod), "status")
            await self.ask("PATCH", where, patch, content_type=STRATEGIC, allow=(404, 409, 422))
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))


def _is_out_of_service(node: JsonObject) -> bool:
    """Is it tainted so, and not Ready?"""
    return not is_ready(node) and any(taint["key"] == OUT_OF_SERVICE for taint in taints_of(node))


def _references(object_: JsonObject) -> list[JsonObject]:
    references: list[JsonObject] = object_["metadata"].get("ownerReferences") or []
    return references


def _owner_uids(object_: JsonObject) -> tuple[str, ...]:
    return tuple(each["uid"] for each in object_["metadata"].get("ownerReferences") or ())


def _propagation(object_: JsonObject) -> str:
    """Options for the deletion of an object without owners: as its own finalizers want it."""
    finalizers = object_["metadata"].get("finalizers") or ()
    return "Orphan" if ORPHAN in finalizers else "Foreground" if FOREGROUND in finalizers else "Background"
