"""What outlives its owner, and what outlives its node: the garbage collector and PodGC.

Invariant: nothing is deleted on the word of a view alone. Before a dependent or an orphaned pod goes, the server itself
is asked whether the owner (the node) is really gone, and the DELETE carries the uid.
"""

from __future__ import annotations

import math
from typing import Final

from gracectl.model.times import format_time
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.client import MERGE, STRATEGIC
from gracectl.sim.world.controller import Controller
from gracectl.sim.world.objects import Key, is_finished, is_ready, is_terminating, key_of, node_of
from gracectl.sim.world.pace import Pace
from gracectl.sim.world.paths import (
    CLAIMS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    KINDS,
    LEASES,
    NODES,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    REVISIONS,
    STATEFUL_SETS,
    path_of,
)
from gracectl.sim.world.taints import OUT_OF_SERVICE, taints_of
from gracectl.sim.world.view import Views

DEPENDENTS = (PODS, REPLICA_SETS, REVISIONS, CLAIMS, LEASES)
OWNERS = (DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS, DAEMON_SETS, JOBS, NODES, PODS)
LOOK = 20.0
"""Simulated seconds between two looks of PodGC."""

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
CLUSTER_KINDS = ("Node", "Namespace", "PersistentVolume", "VolumeAttachment")


class GarbageCollector(Controller[tuple[str, str, str]]):
    """Deletes what is in DEPENDENTS when its owners are all gone; ends the deletions that wait for it (foreground,
    orphan).

    Keys: (collection, namespace, name). Of OWNERS it sees when they go; any other owner is asked for.
    """

    def __init__(self, views: Views, pace: Pace) -> None:
        super().__init__(views, pace, *dict.fromkeys((*DEPENDENTS, *OWNERS)))
        for path in DEPENDENTS:
            views.of(path).index("owners", _owner_uids)
        for path in dict.fromkeys((*DEPENDENTS, *OWNERS)):
            self._listen(path)

    def _listen(self, path: str) -> None:
        def changed(old: JsonObject | None, new: JsonObject | None) -> None:
            if old is None and new is not None and path in DEPENDENTS and _owner_uids(new):
                self.queue.add((path, *key_of(new)))
            if new is not None and is_terminating(new):
                self.queue.add((path, *key_of(new)))
            if new is None and old is not None:
                self._owner_gone(old)

        self.views.of(path).subscribe(changed)

    def _owner_gone(self, owner: JsonObject) -> None:
        for dependents, dependent in self._dependents(owner):
            self.queue.add((dependents, *key_of(dependent)))
        # Its own owner may wait for it (foreground).
        for reference in owner["metadata"].get("ownerReferences") or ():
            path = KINDS.get(reference["kind"])
            if path in OWNERS:
                self.queue.add((path, _namespace_for(reference, owner), reference["name"]))

    def _dependents(self, owner: JsonObject) -> list[tuple[str, JsonObject]]:
        uid = owner["metadata"]["uid"]
        return [(path, found) for path in DEPENDENTS for found in self.views.of(path).by("owners", uid)]

    async def reconcile(self, key: tuple[str, str, str]) -> None:
        """See Controller.reconcile."""
        path, namespace, name = key
        object_ = self.views.of(path).get(namespace, name)
        if object_ is None:
            return
        if is_terminating(object_):
            await self._finish(path, object_)
        elif path in DEPENDENTS and await self._is_abandoned(object_):
            await self._delete(path, object_, "Background")

    async def _finish(self, path: str, object_: JsonObject) -> None:
        finalizers = object_["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            for dependents, dependent in self._dependents(object_):
                await self._disown(dependents, dependent, object_["metadata"]["uid"])
            await self._drop(path, object_, ORPHAN)
        elif FOREGROUND in finalizers:
            dependents_left = self._dependents(object_)
            for dependents, dependent in dependents_left:
                if not is_terminating(dependent):
                    await self._delete(dependents, dependent, "Foreground")
            if not dependents_left:
                await self._drop(path, object_, FOREGROUND)

    async def _is_abandoned(self, dependent: JsonObject) -> bool:
        """Has it owners, and is none of them there any more?"""
        references = dependent["metadata"].get("ownerReferences") or ()
        for reference in references:
            path = KINDS.get(reference["kind"])
            if path is None:
                return False  # Not ours to judge.
            place = (_namespace_for(reference, dependent), reference["name"])
            known = self.views.of(path).get(*place) if path in OWNERS else None
            if known is not None and known["metadata"]["uid"] == reference["uid"]:
                return False
            where = path_of(path, *place)
            status, owner = await self.ask("GET", where, allow=(404,))
            if status == 200 and owner["metadata"]["uid"] == reference["uid"]:
                return False
        return bool(references)

    async def _delete(self, path: str, object_: JsonObject, propagation: str) -> None:
        options = {
            "preconditions": {"uid": object_["metadata"]["uid"]},
            "propagationPolicy": propagation,
        }
        await self.ask("DELETE", path_of(path, *key_of(object_)), options, allow=(404, 409))

    async def _disown(self, path: str, object_: JsonObject, owner: str) -> None:
        references = [
            reference for reference in object_["metadata"].get("ownerReferences") or () if reference["uid"] != owner
        ]
        await self._patch(path, object_, {"ownerReferences": references})

    async def _drop(self, path: str, object_: JsonObject, finalizer: str) -> None:
        left = [each for each in object_["metadata"]["finalizers"] if each != finalizer]
        # The version guards a finalizer that somebody adds at this moment.
        version = object_["metadata"]["resourceVersion"]
        await self._patch(path, object_, {"finalizers": left, "resourceVersion": version})

    async def _patch(self, path: str, object_: JsonObject, metadata: JsonObject) -> None:
        patch = {"metadata": {"uid": object_["metadata"]["uid"], **metadata}}
        where = path_of(path, *key_of(object_))
        await self.ask("PATCH", where, patch, content_type=MERGE, allow=(404, 409, 422))


ORPHANED: Final = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


class PodGarbage(Controller[Key]):
    """Removes pods whose node is gone, after a quarantine in which it might come back; and terminating pods whose node
    somebody has declared out of service (PodGC). Keys: pods.

    It looks at fixed instants, every LOOK seconds from its beginning: an orphan is first seen at one of them, and goes
    at the first one after its quarantine. So it takes 40 to 60 s (recording nodes-orphans).
    """

    def __init__(self, views: Views, pace: Pace, *, quarantine: float = 40.0) -> None:
        """`quarantine`: simulated seconds (the real one: 40 s, with a look every 20 s)."""
        super().__init__(views, pace, NODES, PODS)
        self._quarantine = quarantine
        self._begun = 0.0
        self._nodes = views.of(NODES)
        self._pods = views.of(PODS)
        self._orphaned: dict[Key, float] = {}
        self._pods.index("node", lambda pod: (node_of(pod),))
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)

    async def run(self) -> None:
        """Work for ever."""
        self._begun = self.pace.clock.monotonic()
        await super().run()

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None and old is not None:
            self._orphaned.pop(key_of(old), None)
        elif new is not None and node_of(new):
            is_news = old is None or not node_of(old) or is_terminating(new) != is_terminating(old)
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
        """Since 1.26 it first writes that the pod has failed (nobody else can), and why."""
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


def _owner_uids(object_: JsonObject) -> tuple[str, ...]:
    return tuple(each["uid"] for each in object_["metadata"].get("ownerReferences") or ())


def _namespace_for(reference: JsonObject, dependent: JsonObject) -> str:
    """The namespace in which an owner is looked for: the dependent's, unless the owner has none."""
    if reference["kind"] in CLUSTER_KINDS:
        return ""
    namespace: str = dependent["metadata"].get("namespace", "")
    return namespace
