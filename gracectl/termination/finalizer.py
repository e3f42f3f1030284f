"""The last step and its opposite: our finalizer comes off when the instance is gone, and goes onto managed nodes."""

from __future__ import annotations

from typing import Any

from gracectl.model import names
from gracectl.model.node import Node
from gracectl.termination.steps import Answer, Proceed, Tools
from gracectl.termination.termination import Termination
from gracectl.termination.writes import amend_node, pointer


async def release(tools: Tools, termination: Termination) -> Answer:
    """Take our finalizer off; the API server removes the node when no other one holds it."""
    after = await amend_node(tools.client, termination.node, removal)
    if after is not None:
        termination.wrote(after)
    return Proceed()


def removal(node: Node) -> list[dict[str, Any]]:
    """The JSON patch that takes our finalizer off, by its place: the write is refused if the list has changed."""
    if names.FINALIZER not in node.finalizers:
        return []
    return [{"op": "remove", "path": pointer("metadata", "finalizers", str(node.finalizers.index(names.FINALIZER)))}]


def addition(node: Node) -> list[dict[str, Any]]:
    """The JSON patch that adds our finalizer; a node that is being deleted takes no new ones."""
    if node.deletion_timestamp is not None or names.FINALIZER in node.finalizers:
        return []
    if node.finalizers:
        return [{"op": "add", "path": "/metadata/finalizers/-", "value": names.FINALIZER}]
    return [{"op": "add", "path": "/metadata/finalizers", "value": [names.FINALIZER]}]
