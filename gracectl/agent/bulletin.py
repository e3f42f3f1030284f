"""The condition ShuttingDown of our node: what `kubectl describe node` answers while its machine shuts down.

Written beside the work and never in its way: the last word counts, and one that cannot be written is tried again as
long as it is the last. Invariant: a condition that is no longer true comes off, however often that has to be tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from gracectl.kube.client import KubeClient
from gracectl.kube.conditions import ConditionUpdate, said, unsaid
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)


class Bulletin:
    """See the module. `node`: ours, as far as it is known; `backoff` makes the waits after failures."""

    def __init__(
        self, client: KubeClient, clock: Clock, node: Callable[[], Node | None], backoff: Callable[[], Backoff]
    ) -> None:
        self._client = client
        self._clock = clock
        self._node = node
        self._backoff = backoff
        self._word: ConditionUpdate | None = None
        self._turned = 0.0
        self._is_owed = False
        self._writing = anyio.CancelScope()
        self._news = anyio.Event()

    @property
    def is_owed(self) -> bool:
        """Whether the last word is not on the node yet."""
        return self._is_owed

    def say(self, reason: str, message: str) -> None:
        """From now on the machine shuts down, and this is how it stands."""
        if self._word is None:
            self._turned = self._clock.now()
        self._set(ConditionUpdate(names.SHUTTING_DOWN, names.TRUE, reason, message))

    def unsay(self) -> None:
        """It does not shut down (any more)."""
        self._set(None)

    def _set(self, word: ConditionUpdate | None) -> None:
        self._word, self._is_owed = word, True
        self._writing.cancel()  # what is on its way arrives; but the client repeats no word that is no longer true
        self._news.set()

    async def run(self) -> None:
        """A part: write what is owed, until cancelled."""
        while True:
            self._news = anyio.Event()
            backoff = self._backoff()
            while self._is_owed:
                word, is_written = self._word, False
                try:
                    with anyio.CancelScope() as self._writing:
                        is_written = await self._write(word)
                except ApiError as error:
                    logger.debug("condition %s could not be written: %s", names.SHUTTING_DOWN, error)
                if is_written and word == self._word:
                    self._is_owed = False
                elif not is_written:
                    with anyio.move_on_after(backoff.next()):
                        await self._news.wait()
                        self._news = anyio.Event()
            await self._news.wait()

    async def _write(self, word: ConditionUpdate | None) -> bool:
        """Raises ApiError; False when it is not known yet which node is meant."""
        node = self._node()
        if node is None:
            return False
        patch = unsaid([names.SHUTTING_DOWN]) if word is None else said(word, self._turned, self._clock.now())
        try:
            await self._client.patch(NODES, node.key, patch, subresource="status", uid=node.uid)
        except NotFound:
            return True
        return True
