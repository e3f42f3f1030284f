"""The taint eviction controller: deletes pods (without asking budgets) that do not tolerate a NoExecute taint.

Invariant: toleration time starts with the taint (or the pod) and ends when the last taint is gone; a new taint starts
it again.
"""

from __future__ import annotations

import math

from kubesim.controllers.client import STRATEGIC
from kubesim.controllers.controller import Controller
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import Key, is_terminating, key_of, node_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.controllers.taints import taints_of, tolerated_seconds
from kubesim.server.api import JsonObject
from kubesim.values import format_time

REASON = "TaintManagerEviction"
INSTANT = 1e-6


class TaintEviction(Controller[Key]):
    """Keys: pods."""

    def __init__(self, informers: Informers, pace: Pace, *, events: bool = True) -> None:
        super().__init__(informers, pace, NODES, PODS)
        self._events = Recorder(informers.api, pace, "taint-eviction-controller", enabled=events)
        self._nodes = informers.of(NODES)
        self._pods = informers.of(PODS)
        self._waiting: dict[str, float] = {}
        self._pods.index("node", lambda pod: (node_of(pod),))
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        node = new if new is not None else old
        if node is not None and _evicting(old) != _evicting(new):
            for pod in self._pods.by("node", node["metadata"]["name"]):
                self.queue.add(key_of(pod))

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None:
            if old is not None:
                self._waiting.pop(old["metadata"]["uid"], None)
        elif node_of(new) and (old is None or not node_of(old) or _tolerations(old) != _tolerations(new)):
            node = self._nodes.get("", node_of(new))
            if _evicting(node) or new["metadata"]["uid"] in self._waiting:
                self.queue.add(key_of(new))

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        pod = self._pods.get(*key)
        if pod is None or is_terminating(pod):
            return
        uid = pod["metadata"]["uid"]
        taints = _evicting(self._nodes.get("", node_of(pod)))
        seconds = tolerated_seconds(taints, _tolerations(pod)) if taints else math.inf
        if math.isinf(seconds):
            if self._waiting.pop(uid, None) is not None:
                await self._events.normal(pod, REASON, f"Cancelling deletion of Pod {'/'.join(key)}")
            return
        now = self.pace.clock.monotonic()
        left = self._waiting.setdefault(uid, now) + self.pace.real(seconds) - now
        if left > INSTANT:
            self.queue.add_after(key, left)
        else:
            await self._delete(pod)

    async def _delete(self, pod: JsonObject) -> None:
        path, uid = path_of(PODS, *key_of(pod)), pod["metadata"]["uid"]
        await self._events.normal(pod, REASON, f"Marking for deletion Pod {'/'.join(key_of(pod))}")
        target = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": format_time(self.pace.clock.now()),
        }
        body = {"metadata": {"uid": uid}, "status": {"conditions": [target]}}
        await self.ask("PATCH", f"{path}/status", body, content_type=STRATEGIC, allow=(404, 409, 422))
        status, answer = await self.ask("DELETE", path, {"preconditions": {"uid": uid}}, allow=(404, 409))
        self._waiting.pop(uid, None)
        if status == 200 and answer.get("kind") == "Pod":
            self._pods.remember(answer)


def _evicting(node: JsonObject | None) -> list[JsonObject]:
    return taints_of(node, "NoExecute") if node is not None else []


def _tolerations(pod: JsonObject) -> list[JsonObject]:
    found: list[JsonObject] = pod["spec"].get("tolerations") or []
    return found
