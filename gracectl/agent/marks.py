"""Puts the cordon of a shutdown on our node, and takes off what a shutdown has left there when the machine is up.

One at a time: a shutdown may begin while the one before is still being undone. Nobody waits for the undoing, least of
all the next shutdown, which breaks it off. Invariant: what is taken off is judged by whether the machine is up in the
moment in which it is written.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import anyio

from gracectl.agent.cordon import cordoning, giving_back, is_marked, marking
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.runtime.backoff import Backoff

logger = logging.getLogger(__name__)


class Marks:
    """See the module. `node` is ours, as far as it is known; `is_up`: whether the machine stays, as far as we know."""

    def __init__(
        self,
        client: KubeClient,
        node: Callable[[], Node | None],
        is_up: Callable[[], bool],
        backoff: Callable[[], Backoff],
    ) -> None:
        self._client = client
        self._node = node
        self._is_up = is_up
        self._backoff = backoff
        self._turn = anyio.Lock()
        self._undoing = anyio.CancelScope()
        self._news = anyio.Event()

    @property
    def remain(self) -> bool:
        """Whether something is to be taken off."""
        node = self._node()
        return node is not None and self._removal(node) is not None

    def look(self) -> None:
        """The node has changed, or whether the machine is up."""
        self._news.set()

    def make_way(self) -> None:
        """A shutdown begins."""
        self._undoing.cancel()

    async def put(self, node: Node) -> bool:
        """Cordon the node. False: it is gone, and if another one has its name, that is not known yet. Raises
        ApiError."""
        async with self._turn:
            # What has been taken off just now may still be there in our view.
            seen = await self._client.get(NODES, node.key) if is_marked(node) else node
            marked = await patch_with_retry(self._client, NODES, seen, marking)
            return marked is not None and await patch_with_retry(self._client, NODES, marked, cordoning) is not None

    async def run(self) -> None:
        """A part: take off what is to come off, until cancelled."""
        backoff = self._backoff()
        while True:
            self._news = anyio.Event()
            wait = math.inf
            try:
                await self._take_off()
                backoff.reset()
            except ApiError as error:
                wait = backoff.next()
                logger.warning("what a shutdown has left on the node could not be taken off: %s", error)
            with anyio.move_on_after(wait):
                await self._news.wait()

    async def _take_off(self) -> None:
        node = self._node()
        if node is None or self._removal(node) is None:
            return
        asked: list[JsonPatch | None] = []

        def removal(node: Node) -> JsonPatch | None:
            asked.append(self._removal(node))
            return asked[-1]

        async with self._turn:
            with anyio.CancelScope() as self._undoing:
                await patch_with_retry(self._client, NODES, node, removal)
                if asked[-1] is not None:  # else our view is behind, and it was taken off before
                    logger.info("takes pods again: its machine is up", extra={"node": node.name})

    def _removal(self, node: Node) -> JsonPatch | None:
        return giving_back(node) if self._is_up() else None
