"""Node condition ShuttingDown: what `kubectl describe node` shows while the machine shuts down.

Written beside the shutdown, which never waits for it; only the latest state counts, and its write is retried.
Invariant: a condition that is no longer true is removed, however often that has to be tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from gracectl.kube.client import KubeClient
from gracectl.kube.conditions import ConditionUpdate, condition_patch, condition_removal
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)


class ShutdownCondition:
    """Writer of the condition. `node`: the node's object once known; `backoff` makes the waits after failures."""

    def __init__(
        self, client: KubeClient, clock: Clock, node: Callable[[], Node | None], backoff: Callable[[], Backoff]
    ) -> None:
        self._client = client
        self._clock = clock
        self._node = node
        self._backoff = backoff
        self._latest: ConditionUpdate | None = None
        self._since = 0.0
        self._is_pending = False
        self._write_scope = anyio.CancelScope()
        self._changed = anyio.Event()

    @property
    def is_pending(self) -> bool:
        """Whether the latest state is not on the node yet."""
        return self._is_pending

    def set(self, reason: str, message: str) -> None:
        """Set the condition to True with this reason and message."""
        if self._latest is None:
            self._since = self._clock.now()
        self._update(ConditionUpdate(names.SHUTTING_DOWN, names.TRUE, reason, message))

    def clear(self) -> None:
        """Remove the condition."""
        self._update(None)

    def _update(self, update: ConditionUpdate | None) -> None:
        self._latest, self._is_pending = update, True
        self._write_scope.cancel()  # a request under way completes, but is not repeated
        self._changed.set()

    async def run(self) -> None:
        """Component: write the latest state, until cancelled."""
        while True:
            self._changed = anyio.Event()
            backoff = self._backoff()
            while self._is_pending:
                update, is_written = self._latest, False
                try:
                    with anyio.CancelScope() as self._write_scope:
                        is_written = await self._write(update)
                except ApiError as error:
                    logger.debug("condition %s: not written: %s; retrying", names.SHUTTING_DOWN, error)
                if is_written and update == self._latest:
                    self._is_pending = False
                elif not is_written:
                    with anyio.move_on_after(backoff.next()):
                        await self._changed.wait()
                        self._changed = anyio.Event()
            await self._changed.wait()

    async def _write(self, update: ConditionUpdate | None) -> bool:
        """Raises ApiError; False while the node is not known yet."""
        node = self._node()
        if node is None:
            return False
        patch = (
            condition_removal([names.SHUTTING_DOWN])
            if update is None
            else condition_patch(update, self._since, self._clock.now())
        )
        try:
            await self._client.patch(NODES, node.key, patch, subresource="status", uid=node.uid)
        except NotFound:
            return True
        return True
