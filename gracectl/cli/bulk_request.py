"""Concurrent requests of a command for several nodes, each independent of the others.

Invariant: after an interruption at any moment, the command can name the nodes for which the request was sent, was not
sent, or has an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec

from gracectl.cli.failures import print_error
from gracectl.cli.output import echo
from gracectl.kube.client.retry import is_not_executed, is_transient
from gracectl.kube.errors import AdmissionDenied, ApiError
from gracectl.kube.resources import NODES
from gracectl.model.node import Node

CONCURRENCY = 10

CANCELLABLE_NODES = msgspec.structs.replace(NODES, cancellable=True)
"""Nodes as commands write them: Ctrl-C does not wait for the server's answer."""

REPLACED = "deleted, or replaced by another node of that name, which was not touched"
"""Message of a request that was not sent: the node is not the one that was checked."""


class Refused(Exception):
    """The request was not sent, or not for this node; the message says why."""


NodeRequest = Callable[[Node], Awaitable[str]]
"""Sends the request for a node, and returns the line to print. Raises Refused, ApiError."""


class BulkRequest:
    """Outcome so far, by node name.

    `unsent`: not sent yet. `unknown`: sent, no answer. `requested`: accepted by the server. `refused`: refused by the
    server, or not sent on purpose.
    """

    def __init__(self) -> None:
        self.unsent: list[str] = []
        self.unknown: list[str] = []
        self.requested: list[str] = []
        self.refused: list[str] = []

    @property
    def has_failed(self) -> bool:
        """Whether a request was refused, was not sent, or has an unknown outcome."""
        return bool(self.unsent or self.unknown or self.refused)

    async def run(self, nodes: Sequence[Node], send: NodeRequest) -> None:
        """Send all requests, CONCURRENCY at a time, and print each outcome; a refusal does not stop the others."""
        self.unsent = [node.name for node in nodes]
        limit = anyio.CapacityLimiter(CONCURRENCY)
        async with anyio.create_task_group() as group:
            for node in nodes:
                group.start_soon(self._send, node, send, limit)

    async def _send(self, node: Node, send: NodeRequest, limit: anyio.CapacityLimiter) -> None:
        async with limit:
            self.unsent.remove(node.name)
            self.unknown.append(node.name)
            try:
                outcome = await send(node)
            except (Refused, ApiError) as error:
                if isinstance(error, ApiError) and is_transient(error) and not is_not_executed(error):
                    print_error(f"{node.name}: outcome unknown: {error}")
                    return
                self._settle(node, self.refused)
                print_error(f"{node.name}: {_error_text(error)}")
                return
            self._settle(node, self.requested)
            echo(f"{node.name}: {outcome}")

    def _settle(self, node: Node, where: list[str]) -> None:
        self.unknown.remove(node.name)
        where.append(node.name)

    def interrupted(self, what: str, afterwards: str = "") -> str:
        """Message that lists for which nodes `what` ("deletion") was requested, and for which not."""
        if not (self.requested or self.unknown):
            return "interrupted; nothing was requested"
        parts = []
        if self.requested:
            parts.append(f"{what} requested: {', '.join(self.requested)}{afterwards}")
        if self.unknown:
            parts.append(f"outcome unknown: {', '.join(self.unknown)}")
        if self.refused or self.unsent:
            parts.append(f"not requested: {', '.join([*self.refused, *self.unsent])}")
        return "interrupted; " + "; ".join(parts)


def _error_text(error: Exception) -> str:
    if isinstance(error, AdmissionDenied) and error.asked_for is not None:
        return f"{error}; retry after {error.asked_for:g} s"
    return str(error)
