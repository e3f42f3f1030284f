"""The scheduler: binds pods to nodes, spreading the pods of one owner, as soon as there is something to bind or room
for it.

Invariant: a pod counts on a node from the moment its binding is asked for, so that two pods never take one place.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import orjson

from gracectl.model.times import format_time
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.client import STRATEGIC
from gracectl.sim.world.controller import Controller
from gracectl.sim.world.objects import (
    Key,
    condition_of,
    controller_uid,
    is_finished,
    is_terminating,
    key_of,
    labels_of,
    node_of,
    untolerated,
)
from gracectl.sim.world.pace import Pace
from gracectl.sim.world.paths import NODES, PODS, path_of
from gracectl.sim.world.view import Views

NAME = "default-scheduler"
DEFAULT_ROOM = 110


class Scheduler(Controller[Key]):
    """Binds the pods that name `default-scheduler` (or nobody) and have no node. Keys: pods.

    Looks at: spec.unschedulable, taints NoSchedule and NoExecute, the condition Ready where there is one, nodeSelector,
    and how many pods a node takes (status.allocatable.pods). Prefers the node with the fewest pods of the same
    controller, then with the fewest pods, then the first by name.
    """

    # One after another: each choice depends on the one before.
    workers = 1

    def __init__(self, views: Views, pace: Pace) -> None:
        super().__init__(views, pace, NODES, PODS)
        self._nodes = views.of(NODES)
        self._pods = views.of(PODS)
        self._load: Counter[str] = Counter()
        self._siblings: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._placed: dict[str, tuple[str, str]] = {}
        self._waiting: dict[Key, None] = {}
        self._suitable: dict[bytes, list[tuple[str, int]]] = {}
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if old is None or new is None or _offer(old) != _offer(new):
            self._suitable.clear()
            self._retry()

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is not None and node_of(new) and not is_finished(new):
            self._place(new, node_of(new))
        elif (gone := new if new is not None else old) is not None and (new is None or is_finished(new)):
            self._waiting.pop(key_of(gone), None)
            if self._release(gone["metadata"]["uid"]):
                self._retry()
        if new is not None and _is_ours(new):
            self.queue.add(key_of(new))

    def _place(self, pod: JsonObject, node: str) -> None:
        uid, owner = pod["metadata"]["uid"], controller_uid(pod)
        if self._placed.get(uid) != (node, owner):
            self._release(uid)
            self._placed[uid] = (node, owner)
            self._load[node] += 1
            self._siblings[owner][node] += 1

    def _release(self, uid: str) -> bool:
        place = self._placed.pop(uid, None)
        if place is None:
            return False
        node, owner = place
        self._load[node] -= 1
        siblings = self._siblings[owner]
        siblings[node] -= 1
        if not siblings[node]:
            del siblings[node]
        if not siblings:
            del self._siblings[owner]
        return True

    def _retry(self) -> None:
        for key in self._waiting:
            self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        pod = self._pods.get(*key)
        if pod is None or not _is_ours(pod) or pod["metadata"]["uid"] in self._placed:
            self._waiting.pop(key, None)
            return
        node = self._choose(pod)
        if node is None:
            self._waiting[key] = None
            await self._say_unschedulable(pod)
            return
        self._waiting.pop(key, None)
        self._place(pod, node)
        is_bound = False
        try:
            is_bound = await self._bind(pod, node)
        finally:
            # Unless the watch has told meanwhile that somebody else has bound it.
            if not is_bound and self._placed.get(pod["metadata"]["uid"], ("", ""))[0] == node:
                self._release(pod["metadata"]["uid"])

    def _choose(self, pod: JsonObject) -> str | None:
        siblings = self._siblings.get(controller_uid(pod)) or Counter()
        names = [name for name, room in self._suitable_for(pod) if self._load[name] < room]
        return min(names, key=lambda name: (siblings[name], self._load[name], name), default=None)

    def _suitable_for(self, pod: JsonObject) -> list[tuple[str, int]]:
        """(name, room) of the nodes that the pod fits; worked out once for all pods that ask for the same."""
        spec = pod["spec"]
        wish = orjson.dumps((spec.get("nodeSelector"), spec.get("tolerations")), option=orjson.OPT_SORT_KEYS)
        if wish not in self._suitable:
            self._suitable[wish] = [
                (node["metadata"]["name"], room_of(node)) for node in self._nodes.values() if fits(pod, node)
            ]
        return self._suitable[wish]

    async def _bind(self, pod: JsonObject, node: str) -> bool:
        namespace, name = key_of(pod)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = path_of(PODS, namespace, name, "binding")
        status, _ = await self.ask("POST", path, binding, allow=(404, 409))
        return status < 400

    async def _say_unschedulable(self, pod: JsonObject) -> None:
        message = f"0/{len(self._nodes)} nodes are available"
        before = condition_of(pod, "PodScheduled")
        if before is not None and before.get("message") == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": format_time(self.pace.clock.now()),
        }
        patch = {"status": {"conditions": [condition]}}
        path = path_of(PODS, *key_of(pod), "status")
        await self.ask("PATCH", path, patch, content_type=STRATEGIC, allow=(404, 409))


def fits(pod: JsonObject, node: JsonObject) -> bool:
    """May the pod go to this node, room aside?"""
    spec = pod["spec"]
    labels = labels_of(node)
    ready = condition_of(node, "Ready")
    return (
        not node["spec"].get("unschedulable")
        and (ready is None or ready["status"] == "True")
        and all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())
        and untolerated(node, spec.get("tolerations") or [], "NoSchedule", "NoExecute") is None
    )


def room_of(node: JsonObject) -> int:
    """How many pods the node takes."""
    status = node.get("status") or {}
    return int((status.get("allocatable") or status.get("capacity") or {}).get("pods", DEFAULT_ROOM))


def _is_ours(pod: JsonObject) -> bool:
    return (
        not node_of(pod)
        and not is_terminating(pod)
        and not is_finished(pod)
        and pod["spec"].get("schedulerName", NAME) == NAME
    )


def _offer(node: JsonObject) -> tuple[object, ...]:
    """What of a node decides whether pods fit."""
    ready = condition_of(node, "Ready")
    spec = node["spec"]
    return (
        spec.get("unschedulable"),
        spec.get("taints"),
        labels_of(node),
        ready and ready["status"],
        room_of(node),
    )
