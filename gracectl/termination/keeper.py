"""Puts our finalizer onto every managed node, so that its deletion is held until the drain is over.

An admission webhook could do it at CREATE; for nodes that exist already, and on clusters without the webhook, this
controller does. (At DELETE it would be too late: kubernetes issue 77988.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.termination.finalizer import addition
from gracectl.termination.observed import Observed
from gracectl.termination.settings import TerminationSettings
from gracectl.termination.writes import amend

logger = logging.getLogger(__name__)

WORKERS = 4

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a node that could not be written is tried again; doubled with each failure."""


class FinalizerKeeper:
    """Watches nodes; each one that is managed and lacks the finalizer is a key in its queue."""

    def __init__(
        self,
        client: KubeClient,
        observed: Observed,
        clock: Clock,
        settings: TerminationSettings,
        backoff: Callable[[float, float], Backoff],
    ) -> None:
        self._client = client
        self._observed = observed
        self._settings = settings
        self._queue: WorkQueue[str] = WorkQueue(clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        observed.nodes.subscribe(self._node_changed)

    async def run(self) -> None:
        """Keep finalizers in place until cancelled."""
        await self._observed.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    async def reconcile(self, name: str) -> Requeue | None:
        """Add the finalizer to the node if it is missing; safe to repeat."""
        node = self._observed.node(name)
        if node is None or not self._is_wanted(node):
            return None
        after = await amend(self._client, NODES, node, addition)
        if after is not None and names.FINALIZER in after.finalizers:
            logger.info("finalizer added: the node will be drained when it is deleted", extra={"node": name})
        return None

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None and self._is_wanted(new):
            self._queue.add(new.name)

    def _is_wanted(self, node: Node) -> bool:
        is_missing = node.deletion_timestamp is None and names.FINALIZER not in node.finalizers
        return is_missing and self._settings.node_selector.matches(node.labels)
