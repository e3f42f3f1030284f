"""Puts our finalizer onto every managed node and claim, so that its deletion is held until the drain is over.

An admission webhook could do it at CREATE; for what exists already, and on clusters without the webhook, this
controller does. (At DELETE it would be too late: kubernetes issue 77988.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from gracectl.kube.amend import amend
from gracectl.kube.errors import ApiError
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.termination.finalizer import addition, lacks
from gracectl.termination.steps import Tools

logger = logging.getLogger(__name__)

WORKERS = 4

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a node or claim that could not be written is tried again; doubled with each failure."""


class Kept(NamedTuple):
    """A key of the queue: the node or the claim of that name."""

    is_claim: bool
    name: str

    def __str__(self) -> str:
        return f"node claim {self.name}" if self.is_claim else f"node {self.name}"


class FinalizerKeeper:
    """Watches nodes and claims; each one that is managed and lacks the finalizer is a key in its queue."""

    def __init__(self, tools: Tools, backoff: Callable[[float, float], Backoff]) -> None:
        self._tools = tools
        self._observed = observed = tools.observed
        self._selector = tools.settings.node_selector
        self._queue: WorkQueue[Kept] = WorkQueue(tools.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        observed.nodes.subscribe(self._node_changed, replay=True)
        observed.claims.subscribe(self._claim_changed, replay=True)

    async def run(self) -> None:
        """Keep finalizers in place until cancelled."""
        await self._observed.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    async def reconcile(self, key: Kept) -> Requeue | None:
        """Add the finalizer to the node or claim if it is missing; safe to repeat."""
        after: Node | NodeClaim | None = None
        if key.is_claim:
            claim = self._observed.claim(key.name)
            if claim is not None and lacks(claim) and self._is_managed(claim):
                after = await amend(self._tools.client, self._tools.claim_resource(), claim, addition)
        else:
            node = self._observed.node(key.name)
            if node is not None and lacks(node) and self._selector.matches(node.labels):
                after = await amend(self._tools.client, NODES, node, addition)
        if after is not None and names.FINALIZER in after.finalizers:
            kind = "nodeclaim" if key.is_claim else "node"
            logger.info("finalizer added: the deletion of %s will wait for its drain", key, extra={kind: key.name})
        return None

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            return
        if lacks(new) and self._selector.matches(new.labels):
            self._queue.add(Kept(is_claim=False, name=new.name))
        # It may be the node that makes its claim a managed one.
        if old is None or old.labels != new.labels or old.provider_id != new.provider_id:
            for claim in self._observed.claims_of(new):
                self._claim_changed(None, claim)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if new is not None and lacks(new) and self._is_managed(new):
            self._queue.add(Kept(is_claim=True, name=new.name))

    def _is_managed(self, claim: NodeClaim) -> bool:
        return self._observed.is_managed(claim, self._selector)
