"""Condition TerminationPending, and the cordon of nodes, while a voluntary termination waits.

Apart from the decisions, with a queue of its own: a write that hangs blocks no termination. Invariants: the condition
stands as long as the termination waits; our cordon stands as long as the label or the interruption does, or the node is
unhealthy, and is removed with its record in one write; nodes that wait for something else than a protected pod are
cordoned only while half of the managed nodes take pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.disruption.events import UNCORDONED, cordoned_while_pending
from gracectl.controllers.disruption.managed import ManagedNames
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.report import emit, remove_conditions, set_condition
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.disruption import HoldReason, PendingTermination
from gracectl.policy.pending import (
    Patched,
    accepts_pods,
    cordoned,
    is_cordon_recorded,
    may_cordon_another,
    uncordoned,
)
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers

WORKERS: Final = 4

UNKNOWN: Final = -1
"""Version of a write without a response yet."""

FIRST_RETRY, LAST_RETRY = 0.5, 60.0
"""Seconds before a failed write is retried; doubled each time."""


class PendingNodes:
    """Reconciles the condition and the cordon of nodes, by name."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff], managed: ManagedNames) -> None:
        self._context = context
        self._managed = managed
        self._queue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._pending: dict[str, PendingTermination] = {}
        self._tracked: dict[str, TrackedObject[Node]] = {}
        self._open: set[str] = set()
        self._cordoning: dict[str, int] = {}  # by version, our cordons that the watch does not show yet
        self._without_room: set[str] = set()
        context.cluster.nodes.subscribe(self._node_changed, replay=True)

    async def run(self) -> None:
        """Reconcile nodes until cancelled."""
        await self._context.cluster.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"voluntary-pending": self._queue.statistics()}

    def show(self, nodes: Iterable[Node], pending: PendingTermination | None) -> None:
        """Show on managed nodes what their termination waits for; None: it does not."""
        for node in nodes:
            if pending is not None and node.deletion_timestamp is None:
                is_news = self._pending.get(node.name) != pending
                if is_news or cordoned(node, pending) is not None or uncordoned(node, pending) is not None:
                    self._pending[node.name] = pending
                    self._queue.add(node.name)
            elif self._pending.pop(node.name, None) is not None or _is_marked(node):
                self._queue.add(node.name)

    async def reconcile(self, name: str) -> Requeue | None:
        """Write condition and cordon where they differ; safe to repeat."""
        node = self._context.cluster.node(name)
        if node is None:
            return None
        tracked = self._tracked.get(name)
        if tracked is None or tracked.uid != node.uid:
            tracked = self._tracked[name] = TrackedObject(NODES, node)
        tracked.refresh(node)
        pending = self._pending.get(name)
        await self._reconcile_cordon(tracked, pending)
        if pending is None:
            if condition_of(tracked.latest.conditions, names.TERMINATION_PENDING) is not None:
                await remove_conditions(self._context, tracked, (names.TERMINATION_PENDING,))
            return None
        update = ConditionUpdate(names.TERMINATION_PENDING, names.TRUE, pending.reason, pending.message)
        await set_condition(self._context, (tracked,), update)
        shown = condition_of(tracked.latest.conditions, update.type)
        is_shown = shown is not None and (shown.reason, shown.message) == (update.reason, update.message)
        return None if is_shown else Requeue(self._context.settings.status_interval_seconds)

    async def _reconcile_cordon(self, tracked: TrackedObject[Node], pending: PendingTermination | None) -> None:
        if uncordoned(tracked.latest, pending) is not None:
            if await self._write(tracked, lambda node: uncordoned(node, pending)) and not tracked.latest.unschedulable:
                emit(self._context, (tracked,), UNCORDONED)
        elif pending is not None and cordoned(tracked.latest, pending) is not None:
            if pending.reason is not HoldReason.PROTECTION and not self._has_room(tracked.name):
                self._without_room.add(tracked.name)
                return
            self._cordoning[tracked.name] = UNKNOWN
            try:
                exists = await self._write(tracked, lambda node: cordoned(node, pending))
            finally:
                self._cordoning.pop(tracked.name, None)
            if exists and is_cordon_recorded(tracked.latest):
                self._cordoning[tracked.name] = int(tracked.latest.resource_version)
                emit(self._context, (tracked,), cordoned_while_pending(tracked.latest))

    async def _write(self, tracked: TrackedObject[Node], needed: Callable[[Node], Patched | None]) -> bool:
        def patch(node: Node) -> MergePatch | None:
            body = needed(node)
            return None if body is None else MergePatch(body)

        after = await patch_with_retry(self._context.client, tracked.cancellable, tracked.latest, patch)
        if after is not None:
            tracked.wrote(after)
        return after is not None

    def _has_room(self, name: str) -> bool:
        return name not in self._open or may_cordon_another(
            len(self._open - self._cordoning.keys()), len(self._managed)
        )

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        assert node is not None
        before = self._open - self._cordoning.keys() if self._without_room else set()
        self._open.discard(node.name)
        if new is None:
            for found in (self._pending, self._tracked):
                found.pop(node.name, None)
            self._without_room.discard(node.name)
        elif new.name in self._managed and accepts_pods(new):
            self._open.add(new.name)
        if (
            new is None
            or not accepts_pods(new)
            or 0 <= self._cordoning.get(node.name, UNKNOWN) < int(new.resource_version)
        ):
            self._cordoning.pop(node.name, None)
        if self._without_room and len(self._open - self._cordoning.keys()) > len(before):
            for name in self._without_room:
                self._queue.add(name)
            self._without_room.clear()


def _is_marked(node: Node) -> bool:
    return is_cordon_recorded(node) or condition_of(node.conditions, names.TERMINATION_PENDING) is not None
