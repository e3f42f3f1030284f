"""The fourth step: the node takes no more pods and no more traffic from outside, before the first pod leaves."""

from __future__ import annotations

from typing import Any

from gracectl.kube.requests import JsonPatch
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.policy.evictability import DISRUPTED_TAINT
from gracectl.termination.announce import announce
from gracectl.termination.steps import Answer, Proceed, Release, Tools
from gracectl.termination.termination import Termination
from gracectl.termination.writes import amend, pointer


async def cordon(tools: Tools, termination: Termination) -> Answer:
    """Set spec.unschedulable, the taint and the load balancer label in one write."""
    before = termination.node
    if missing(before):
        after = await amend(tools.client, termination.held.abandonable, before, missing)
        if after is None:
            return Release("the node is gone")
        termination.held.wrote(after)
        message = "takes no more pods and no traffic from outside: it is being terminated"
        announce(tools, (termination.held,), names.EventReason.CORDONED, message)
    if termination.cordoned_at is None:
        termination.cordoned_at = tools.clock.now()
    return Proceed()


def missing(node: Node) -> JsonPatch | None:
    """What is still needed; taints of others are left exactly as they are.

    A taint of that key and effect counts whatever its value: the API server takes no two of them.
    """
    operations: list[dict[str, Any]] = []
    if not node.unschedulable:
        operations.append({"op": "add", "path": "/spec/unschedulable", "value": True})
    if not any((taint.key, taint.effect) == (DISRUPTED_TAINT.key, DISRUPTED_TAINT.effect) for taint in node.taints):
        taint = {"key": DISRUPTED_TAINT.key, "effect": DISRUPTED_TAINT.effect}
        # "-" appends, but only to a list that exists; an empty one is not stored.
        path, value = ("/spec/taints/-", taint) if node.taints else ("/spec/taints", [taint])
        operations.append({"op": "add", "path": path, "value": value})
    if names.EXCLUDE_FROM_LOAD_BALANCERS not in node.labels:
        operations.append(_label(node, names.EXCLUDE_FROM_LOAD_BALANCERS, ""))
    return JsonPatch(operations) if operations else None


def _label(node: Node, key: str, value: str) -> dict[str, Any]:
    if node.labels:
        return {"op": "add", "path": pointer("metadata", "labels", key), "value": value}
    return {"op": "add", "path": "/metadata/labels", "value": {key: value}}
