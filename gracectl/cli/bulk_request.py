"""What a command asks of nodes: of several at once, each for itself.

Invariant: whoever interrupts it, at whatever moment, hears truthfully of which nodes it was asked, of which it was not,
and of which nobody knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec

from gracectl.cli.failures import complain
from gracectl.cli.output import say
from gracectl.kube.errors import AdmissionDenied, ApiError
from gracectl.kube.resources import NODES
from gracectl.kube.retry import is_not_executed, is_transient
from gracectl.model.node import Node

AT_ONCE = 10

ABANDONABLE = msgspec.structs.replace(NODES, cancellable=True)
"""Nodes as commands write them: a person who does not want to wait any more is not kept until the server answers."""


NAMESAKE = "it is gone, or another node has its name by now: that one was not touched"
"""Why a node was not asked, if what was written to is not there as the very one that was looked at."""


class Refused(Exception):
    """The server has not been asked, or not for this node; the message says why."""


Ask = Callable[[Node], Awaitable[str]]
"""Asks of one node, and answers what to tell of it. Raises Refused, ApiError."""


class Errand:
    """What has come of it so far, by names of nodes.

    `left`: nothing was sent for them yet. `unclear`: something was, and nobody knows whether it was done. `asked`: the
    server has agreed. `refused`: it has not, or was not asked.
    """

    def __init__(self) -> None:
        self.left: list[str] = []
        self.unclear: list[str] = []
        self.asked: list[str] = []
        self.refused: list[str] = []

    @property
    def has_failed(self) -> bool:
        """Something was not done, as far as anybody knows."""
        return bool(self.left or self.unclear or self.refused)

    async def run(self, nodes: Sequence[Node], ask: Ask) -> None:
        """Ask of all of them, AT_ONCE at a time, and tell of each what has come of it: one is refused, the others go
        on."""
        self.left = [node.name for node in nodes]
        limit = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as group:
            for node in nodes:
                group.start_soon(self._ask, node, ask, limit)

    async def _ask(self, node: Node, ask: Ask, limit: anyio.CapacityLimiter) -> None:
        async with limit:
            self.left.remove(node.name)
            self.unclear.append(node.name)
            try:
                said = await ask(node)
            except (Refused, ApiError) as error:
                if isinstance(error, ApiError) and _is_perhaps_done(error):
                    complain(f"{node.name}: nobody knows whether it was done: {error}")
                    return
                self._settle(node, self.refused)
                complain(f"{node.name}: {_in_words(error)}")
                return
            self._settle(node, self.asked)
            say(f"{node.name}: {said}")

    def _settle(self, node: Node, where: list[str]) -> None:
        self.unclear.remove(node.name)
        where.append(node.name)

    def interrupted(self, what: str, afterwards: str = "") -> str:
        """For people: of whom `what` ("its deletion") was asked for, with `afterwards` behind it, and of whom not."""
        if not (self.asked or self.unclear):
            return "interrupted; nothing was asked for"
        parts = []
        if self.asked:
            parts.append(f"{what} was asked for: {', '.join(self.asked)}{afterwards}")
        if self.unclear:
            parts.append(f"nobody knows, as the server has not answered: {', '.join(self.unclear)}")
        if self.refused or self.left:
            parts.append(f"not asked for: {', '.join([*self.refused, *self.left])}")
        return "interrupted; " + "; ".join(parts)


def _is_perhaps_done(error: ApiError) -> bool:
    return is_transient(error) and not is_not_executed(error)


def _in_words(error: Exception) -> str:
    if isinstance(error, AdmissionDenied) and error.asked_for is not None:
        return f"{error}; it may be asked again in {error.asked_for:g} s"
    return str(error)
