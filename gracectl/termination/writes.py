"""Optimistic writes to a node: computed from the state we know, refused by the server if that is stale, computed again.

Lists such as taints are replaced whole by merge patches, so nothing is written without the version it was read at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Conflict, NotFound
from gracectl.kube.requests import JsonPatch
from gracectl.kube.resources import NODES
from gracectl.model.node import Node

Operations = Sequence[dict[str, Any]]

ATTEMPTS = 5
"""Somebody else (the kubelet, a cloud controller) may write between our read and our write, but not for ever."""


async def amend_node(client: KubeClient, node: Node, needed: Callable[[Node], Operations]) -> Node | None:
    """Apply the JSON patch that `needed` says; an empty one means that nothing is missing.

    Returns the node as it is now, or None when it is gone or another one has its name. Raises Conflict when somebody
    else won every time, and whatever else the client raises.
    """
    for attempt in range(ATTEMPTS):
        operations = needed(node)
        if not operations:
            return node
        try:
            return await client.patch(NODES, node.key, JsonPatch(operations), resource_version=node.resource_version)
        except NotFound:
            return None
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
        try:
            current = await client.get(NODES, node.key)
        except NotFound:
            return None
        if current.uid != node.uid:
            return None
        node = current
    raise AssertionError("the last attempt returns or raises")


def pointer(*parts: str) -> str:
    """A JSON pointer (RFC 6901); parts may hold slashes, as label keys do."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
