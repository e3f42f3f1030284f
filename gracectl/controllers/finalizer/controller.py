"""Finalizer controller: adds our finalizer to every managed node and claim, so that a deletion waits for the drain.

The admission webhook does so at CREATE; this controller, for what exists already, and for clusters without the webhook.
(At DELETE it would be too late: kubernetes issue 77988.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from gracectl.controllers.cluster.tracked import H, TrackedObject
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.finalizer import finalizer_patch, needs_finalizer
from gracectl.controllers.termination.report import emit
from gracectl.controllers.termination.state import Failures
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import run_workers

logger = logging.getLogger(__name__)

CONCURRENCY = 16
"""Concurrent writes of nodes, and of claims; as many more may hang."""

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a failed write is retried; doubled with each failure."""


class FinalizerController:
    """Queues each managed node and claim without the finalizer, in the queue of its kind."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._cluster = cluster = context.cluster
        self._failures = Failures()  # by uid
        self._nodes: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._claims: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        cluster.nodes.subscribe(self._node_changed, replay=True)
        cluster.claims.subscribe(self._claim_changed, replay=True)

    async def run(self) -> None:
        """Add finalizers until cancelled."""
        await self._cluster.wait_live()
        async with anyio.create_task_group() as group:
            for queue, reconcile in ((self._nodes, self.reconcile_node), (self._claims, self.reconcile_claim)):
                shares: Shares[str] = Shares(self._context.clock, CONCURRENCY)
                group.start_soon(run_workers, queue, reconcile, shares, (ApiError,))

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queues, by name."""
        return {"finalizers": self._nodes.statistics(), "finalizers-nodeclaims": self._claims.statistics()}

    async def reconcile_node(self, name: str) -> None:
        """Add the finalizer to a node without it; idempotent."""
        node = self._cluster.node(name)
        if node is not None and needs_finalizer(node) and self._context.manages(node):
            await self._add(TrackedObject(NODES, node), f"node {name}")

    async def reconcile_claim(self, name: str) -> None:
        """Add the finalizer to a claim without it; idempotent."""
        claim = self._cluster.claim(name)
        if claim is not None and needs_finalizer(claim) and self._is_managed(claim):
            await self._add(TrackedObject(self._context.claim_resource(), claim), f"node claim {name}")

    async def _add(self, tracked: TrackedObject[H], subject: str) -> None:
        try:
            after = await patch_with_retry(self._context.client, tracked.resource, tracked.latest, finalizer_patch)
        except NotLeading:
            raise
        except ApiError as error:
            if self._failures.failed(tracked.uid, type(error).__name__, self._context.clock.monotonic()):
                message = f"adding the finalizer failed: {error}; retrying, until then a deletion does not drain"
                emit(self._context, (tracked,), events.step_failing(message))
            raise
        self._failures.succeeded(tracked.uid)
        if after is not None and names.FINALIZER in after.finalizers:
            logger.info("finalizer added: the deletion of %s will wait for its drain", subject, extra=tracked.log_keys)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._failures.succeeded(old.uid)
            return
        if needs_finalizer(new) and self._context.manages(new):
            self._nodes.add(new.name)
        # It may make its claim a managed one.
        if old is None or old.labels != new.labels or old.provider_id != new.provider_id:
            for claim in self._cluster.claims_of(new):
                self._claim_changed(None, claim)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if old is not None and new is None:
            self._failures.succeeded(old.uid)
        if new is not None and needs_finalizer(new) and self._is_managed(new):
            self._claims.add(new.name)

    def _is_managed(self, claim: NodeClaim) -> bool:
        return self._cluster.manages_claim(self._context.settings.managed, claim)
