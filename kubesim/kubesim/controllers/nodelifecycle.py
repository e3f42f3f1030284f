"""The node lifecycle controller: a silent node becomes Unknown and tainted, and its pods are not Ready.

Invariant: silence starts at the last Lease renewal or status heartbeat, by this controller's clock. (The real one
checks every 5 s, this one at the exact instant; zones in full disruption are no exception.)
"""

from __future__ import annotations

from kubesim.controllers.client import MERGE, STRATEGIC
from kubesim.controllers.controller import Controller
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.nodestatus import LEASE_NAMESPACE, LEASE_SECONDS, PRESSURES
from kubesim.controllers.objects import condition_of, is_ready, key_of, node_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import LEASES, NODES, PODS, path_of
from kubesim.controllers.taints import wanted_taints
from kubesim.server.api import JsonObject
from kubesim.values import format_time

STARTUP_GRACE = 60.0
"""Simulated seconds that a node has before its first word (--node-startup-grace-period)."""

INSTANT = 1e-6
COMPONENT = "node-controller"


class NodeLifecycle(Controller[str]):
    """Keys: names of nodes."""

    def __init__(self, informers: Informers, pace: Pace, *, grace: float = LEASE_SECONDS, events: bool = True) -> None:
        """`grace`: simulated seconds of silence before a node is Unknown; a longer duration in its Lease wins."""
        super().__init__(informers, pace, NODES, PODS)
        self._grace = grace
        self._events = Recorder(informers.api, pace, COMPONENT, enabled=events)
        self._nodes = informers.of(NODES)
        self._pods = informers.of(PODS)
        self._leases = informers.of(LEASES)
        self._heard: dict[str, float] = {}
        self._pods.index("node", lambda pod: (node_of(pod),))
        self._nodes.subscribe(self._node_changed)
        self._leases.subscribe(self._lease_changed)

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None:
            if old is not None:
                self._heard.pop(old["metadata"]["name"], None)
            return
        name = new["metadata"]["name"]
        if old is None or _beat(old) != _beat(new):
            self._heard[name] = self.pace.clock.monotonic()
        if old is None or _state(old) != _state(new):
            self.queue.add(name)

    def _lease_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None or new["metadata"]["namespace"] != LEASE_NAMESPACE:
            return
        name = new["metadata"]["name"]
        if name in self._heard and (old is None or old["spec"].get("renewTime") != new["spec"].get("renewTime")):
            self._heard[name] = self.pace.clock.monotonic()

    async def reconcile(self, key: str) -> None:
        """See Controller.reconcile."""
        node = self._nodes.get("", key)
        if node is None:
            return
        ready = condition_of(node, "Ready")
        if ready is None or ready["status"] != "Unknown":
            left = self._heard[key] + self.pace.real(self._patience(node)) - self.pace.clock.monotonic()
            if left > INSTANT:
                self.queue.add_after(key, left)
            else:
                node = await self._give_up(node)
        if node is not None:
            await self._taint(node)
            if condition_of(node, "Ready") is not None and not is_ready(node):
                await self._mark_pods(node)

    def _patience(self, node: JsonObject) -> float:
        if condition_of(node, "Ready") is None:
            return max(STARTUP_GRACE, self._grace)
        lease = self._leases.get(LEASE_NAMESPACE, node["metadata"]["name"])
        seconds = (lease["spec"].get("leaseDurationSeconds") or 0) if lease is not None else 0
        return max(self._grace, float(seconds))

    async def _give_up(self, node: JsonObject) -> JsonObject | None:
        """Set the node's conditions to Unknown; returns the node as it then is."""
        now = format_time(self.pace.clock.now())
        conditions = []
        for type_ in ("Ready", *PRESSURES):
            before = condition_of(node, type_)
            never = before is None
            heard = before["lastHeartbeatTime"] if before else node["metadata"]["creationTimestamp"]
            conditions.append(
                {
                    "type": type_,
                    "status": "Unknown",
                    "reason": "NodeStatusNeverUpdated" if never else "NodeStatusUnknown",
                    "message": "Kubelet never posted node status." if never else "Kubelet stopped posting node status.",
                    "lastHeartbeatTime": heard,
                    "lastTransitionTime": now,
                }
            )
        # The version guards a heartbeat that comes at this moment.
        body = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions},
        }
        answer = await self._patch(node, "status", body, STRATEGIC)
        name = node["metadata"]["name"]
        if answer is not None:
            await self._events.normal(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        return answer

    async def _taint(self, node: JsonObject) -> None:
        wanted = wanted_taints(node, format_time(self.pace.clock.now()))
        if wanted != (node["spec"].get("taints") or []):
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": wanted or None}}
            await self._patch(node, "", body, MERGE)

    async def _patch(self, node: JsonObject, subresource: str, body: JsonObject, kind: str) -> JsonObject | None:
        """Patch the node; None if it is gone or has changed meanwhile (which brings its key back)."""
        path = path_of(NODES, name=node["metadata"]["name"], subresource=subresource)
        status, answer = await self.ask("PATCH", path, body, content_type=kind, allow=(404, 409))
        if status != 200:
            if status == 409:
                self.after(node["metadata"]["name"], 0.05)
            return None
        self._nodes.remember(answer)
        found: JsonObject = answer
        return found

    async def _mark_pods(self, node: JsonObject) -> None:
        """The pods of a node that is not Ready are not Ready either, whatever they were last heard to be."""
        for pod in self._pods.by("node", node["metadata"]["name"]):
            ready = condition_of(pod, "Ready")
            if ready is None or ready["status"] != "True":
                continue
            condition = {**ready, "status": "False", "lastTransitionTime": format_time(self.pace.clock.now())}
            body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [condition]}}
            path = path_of(PODS, *key_of(pod), "status")
            status, answer = await self.ask("PATCH", path, body, content_type=STRATEGIC, allow=(404, 409, 422))
            if status == 200:
                self._pods.remember(answer)
                await self._events.warn(pod, "NodeNotReady", "Node is not ready")


def _beat(node: JsonObject) -> object:
    ready = condition_of(node, "Ready")
    return node["metadata"]["uid"], ready and ready.get("lastHeartbeatTime")


def _state(node: JsonObject) -> tuple[object, ...]:
    """What of a node decides its taints."""
    spec = node["spec"]
    conditions = (node.get("status") or {}).get("conditions") or ()
    return spec.get("unschedulable"), spec.get("taints"), [(each["type"], each["status"]) for each in conditions]
