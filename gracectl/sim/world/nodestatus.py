"""What a kubelet reports of its node: pure."""

from __future__ import annotations

from gracectl.model.times import format_micro_time, format_time
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.objects import condition_of

LEASE_SECONDS = 40


def heartbeat(node: JsonObject, now: float) -> JsonObject:
    """The condition Ready, reported at `now`; its transition time moves only when it was not True before."""
    before = condition_of(node, "Ready")
    steady = before is not None and before["status"] == "True"
    since = before.get("lastTransitionTime") if before is not None and steady else None
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": format_time(now),
        "lastTransitionTime": since or format_time(now),
    }


def lease(node: JsonObject, now: float) -> JsonObject:
    """The node's Lease, renewed at `now`."""
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format_micro_time(now),
        },
    }
