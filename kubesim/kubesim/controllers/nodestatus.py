"""What a kubelet reports of its node: pure."""

from __future__ import annotations

from typing import Final

from kubesim.controllers.objects import condition_of
from kubesim.server.api import JsonObject
from kubesim.values import format_micro_time, format_time

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
MANY_NODES: Final = 200

PRESSURES: Final = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}
"""What a node is under that has none of it: reason and message by condition."""


def stretch(nodes: int) -> float:
    """Factor of the pause between heartbeats, so that all kubelets write at most twenty Leases a second: 1 up to 200
    nodes, 25 with 5,000. The Lease's duration grows by the same factor."""
    return max(1.0, nodes / MANY_NODES)


def conditions(node: JsonObject, now: float) -> list[JsonObject]:
    """The conditions of a node that is well, reported at `now`; a transition time moves only with its status."""
    entries = [(type_, "False", *words) for type_, words in PRESSURES.items()]
    entries.append(("Ready", "True", "KubeletReady", "kubelet is posting ready status"))
    return [_condition(node, *each, now) for each in entries]


def is_reported(node: JsonObject) -> bool:
    """Do the node's conditions say already what its kubelet would say?"""
    wanted = {**dict.fromkeys(PRESSURES, "False"), "Ready": "True"}
    return all(
        (found := condition_of(node, type_)) is not None and found["status"] == status
        for type_, status in wanted.items()
    )


def _condition(node: JsonObject, type_: str, status: str, reason: str, message: str, now: float) -> JsonObject:
    before = condition_of(node, type_)
    is_steady = before is not None and before["status"] == status
    since = before.get("lastTransitionTime") if before is not None and is_steady else None
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": format_time(now),
        "lastTransitionTime": since or format_time(now),
    }


def lease(node: JsonObject, now: float, seconds: int = LEASE_SECONDS) -> JsonObject:
    """The node's Lease, renewed at `now` and good for `seconds`."""
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": seconds,
            "renewTime": format_micro_time(now),
        },
    }
