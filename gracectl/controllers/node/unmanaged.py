"""Nodes that want something of gracectl and are not its own: what people are told, as nothing else is done."""

from __future__ import annotations

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.model import names
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_maintenance_requested

MISMATCH = "nodeSelector does not match it"
REMEDY = "change nodeSelector or the node's labels"


def unmanaged_report(node: Node) -> tuple[EventReason, str]:
    """Which of our marks the node carries, what comes of that, and what helps."""
    if is_finalizing(node):
        return EventReason.UNMANAGED_NODE_HELD, (
            f"finalizer {names.FINALIZER} holds this node, but {MISMATCH}, so nobody drains it; {REMEDY}, or take the "
            "finalizer off by hand"
        )
    if is_maintenance_requested(node):
        return EventReason.UNMANAGED_NODE_KEPT, (
            f"annotation {names.KEEP_DRAINED} asks to drain this node and to keep it so, but {MISMATCH}, so nobody "
            f"does; {REMEDY}, or take the annotation off"
        )
    return EventReason.UNMANAGED_NODE_KEPT, (
        f"this node was drained by gracectl and is given back, but {MISMATCH}, so nobody takes off what was put on it "
        f"({node.annotations[names.CORDONED] or 'conditions'}); {REMEDY}, or take it off by hand, and then annotation "
        f"{names.CORDONED}"
    )
