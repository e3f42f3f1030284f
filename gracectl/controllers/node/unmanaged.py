"""Reports about nodes that carry marks of gracectl but are not managed."""

from __future__ import annotations

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.model import names
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_maintenance_requested

MISMATCH = "nodeSelector does not match it"
REMEDY = "change nodeSelector or the node's labels"


def unmanaged_report(node: Node) -> tuple[EventReason, str]:
    """Event about the mark that the node carries: what it means, and the remedy."""
    if is_finalizing(node):
        return EventReason.UNMANAGED_NODE_HELD, (
            f"finalizer {names.FINALIZER} holds this node, but it is not managed: {MISMATCH}; {REMEDY}, or remove the "
            "finalizer by hand"
        )
    if is_maintenance_requested(node):
        return EventReason.UNMANAGED_NODE_KEPT, (
            f"annotation {names.KEEP_DRAINED} requests maintenance of this node, but it is not managed: {MISMATCH}; "
            f"{REMEDY}, or remove the annotation"
        )
    return EventReason.UNMANAGED_NODE_KEPT, (
        f"the maintenance of this node has ended, but it is not managed: {MISMATCH}, so what gracectl has put on it "
        f"stays ({node.annotations[names.CORDONED] or 'conditions'}); {REMEDY}, or remove it by hand, and then "
        f"annotation {names.CORDONED}"
    )
