"""Finalizer controller: adds our finalizer to every managed node and claim, so that a deletion waits for the drain.

The admission webhook does so at CREATE; this controller, for what exists already, and for clusters without the webhook.
(At DELETE it would be too late: kubernetes issue 77988.) It also replaces our finalizer where the rule wants the other
one (policy/finalizers.py), one object at a time, and takes gracectl.io/termination off what another controller owns:
otherwise the deletion by the owner would never end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import anyio

from gracectl.controllers.cluster.tracked import H, TrackedObject
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.finalizer import finalizer_patch, finalizer_removal_patch
from gracectl.controllers.termination.report import emit
from gracectl.controllers.termination.state import Failures
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.resources import NODE_CLAIMS, NODES
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.policy.finalizers import has_finalizer, needs_finalizer
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
    """Queues each managed node and claim without the finalizer, in the queue of its kind; a third queue has the objects
    with the finalizer to be replaced."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._cluster = cluster = context.cluster
        self._failures = Failures()  # by uid

        def queue() -> WorkQueue[str]:
            return WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))

        self._nodes, self._claims, self._replacements = queue(), queue(), queue()
        cluster.nodes.subscribe(self._node_changed, replay=True)
        cluster.claims.subscribe(self._claim_changed, replay=True)

    async def run(self) -> None:
        """Add, replace and remove finalizers until cancelled."""
        await self._cluster.wait_live()
        async with anyio.create_task_group() as group:
            for queue, reconcile in ((self._nodes, self.reconcile_node), (self._claims, self.reconcile_claim)):
                shares: Shares[str] = Shares(self._context.clock, CONCURRENCY)
                group.start_soon(run_workers, queue, reconcile, shares, (ApiError,))
            group.start_soon(run_workers, self._replacements, self._replace, 1, (ApiError,))

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queues, by name."""
        return {
            "finalizers": self._nodes.statistics(),
            "finalizers-nodeclaims": self._claims.statistics(),
            "finalizers-replaced": self._replacements.statistics(),
        }

    def look_again(self) -> None:
        """The rule has changed."""
        for node in self._cluster.nodes.values():
            self._note_node(node)
        for claim in self._cluster.claims.values():
            self._note_claim(claim)

    async def reconcile_node(self, name: str) -> None:
        """Add the finalizer to a node without it, or remove it from another owner's; idempotent."""
        node = self._cluster.node(name)
        if node is None:
            return
        tracked = TrackedObject(NODES, node)
        if self._is_strangers(node):
            await self._remove(tracked)
        elif needs_finalizer(node) and self._context.manages(node):
            await self._add(tracked, f"node {name}")

    async def reconcile_claim(self, name: str) -> None:
        """Add the finalizer to a claim without it, or remove it from another owner's; idempotent."""
        claim = self._cluster.claim(name)
        if claim is None:
            return
        tracked = TrackedObject(self._context.claim_resource(), claim)
        if self._is_strangers_claim(claim):
            await self._remove(tracked)
        elif needs_finalizer(claim) and self._manages(claim):
            await self._add(tracked, f"node claim {name}")

    async def _replace(self, key: str) -> None:
        """Replace the finalizer of one node or claim by the one of the rule."""
        kind, _, name = key.partition("/")
        rule = self._context.finalizer()
        if kind == NODES.kind:
            node = self._cluster.node(name)
            if node is not None and rule.is_replaced_on(node) and self._context.manages(node):
                await self._add(TrackedObject(NODES, node), f"node {name}")
        else:
            claim = self._cluster.claim(name)
            if claim is not None and rule.is_replaced_on(claim) and self._manages(claim):
                await self._add(TrackedObject(self._context.claim_resource(), claim), f"node claim {name}")

    async def _remove(self, tracked: TrackedObject[H]) -> None:
        patch = partial(finalizer_removal_patch, finalizers=(names.OWN_FINALIZER,))
        if await patch_with_retry(self._context.client, tracked.resource, tracked.latest, patch) is not None:
            logger.info("finalizer %s removed: another controller owns it", names.OWN_FINALIZER, extra=tracked.log_keys)

    async def _add(self, tracked: TrackedObject[H], subject: str) -> None:
        try:
            patch = partial(finalizer_patch, self._context.finalizer())
            after = await patch_with_retry(self._context.client, tracked.resource, tracked.latest, patch)
        except NotLeading:
            raise
        except ApiError as error:
            if self._failures.failed(tracked.uid, type(error).__name__, self._context.clock.monotonic()):
                message = f"adding the finalizer failed: {error}; retrying, until then a deletion does not drain"
                emit(self._context, (tracked,), events.step_failing(message))
            raise
        self._failures.succeeded(tracked.uid)
        if after is not None and has_finalizer(after):
            logger.info("finalizer added: the deletion of %s will wait for its drain", subject, extra=tracked.log_keys)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._failures.succeeded(old.uid)
            return
        self._note_node(new)
        # It may make its claim a managed one.
        if old is None or old.labels != new.labels or old.provider_id != new.provider_id:
            for claim in self._cluster.claims_of(new):
                self._note_claim(claim)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if new is None:
            if old is not None:
                self._failures.succeeded(old.uid)
            return
        self._note_claim(new)
        # It may show another owner of its node.
        if old is None or (old.labels, old.node_name, old.provider_id) != (new.labels, new.node_name, new.provider_id):
            for node in self._cluster.nodes_of(new):
                self._note_node(node)

    def _note_node(self, node: Node) -> None:
        if self._context.finalizer().is_replaced_on(node) and self._context.manages(node):
            self._replacements.add(f"{NODES.kind}/{node.name}")
        elif self._is_strangers(node) or (needs_finalizer(node) and self._context.manages(node)):
            self._nodes.add(node.name)

    def _note_claim(self, claim: NodeClaim) -> None:
        if self._context.finalizer().is_replaced_on(claim) and self._manages(claim):
            self._replacements.add(f"{NODE_CLAIMS.kind}/{claim.name}")
        elif self._is_strangers_claim(claim) or (needs_finalizer(claim) and self._manages(claim)):
            self._claims.add(claim.name)

    def _manages(self, claim: NodeClaim) -> bool:
        return self._cluster.manages_claim(self._context.settings.managed, claim)

    def _is_strangers(self, node: Node) -> bool:
        return names.OWN_FINALIZER in node.finalizers and self._cluster.owner_of(node) is not None

    def _is_strangers_claim(self, claim: NodeClaim) -> bool:
        return names.OWN_FINALIZER in claim.finalizers and self._cluster.owner_of_claim(claim) is not None
