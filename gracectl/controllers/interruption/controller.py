"""Interruption controller: runs the sources of the leader, and shows on nodes what is known about the end of their
machines.

It deletes nothing: the annotation is a trigger for the disruption controller, which lets no budget for nodes, pace or
circuit breaker delay the DELETE of a node whose machine goes anyway. Invariants: an annotation from taints or
conditions goes with them, unless the node is being deleted; a source that fails is started again, and stops no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import anyio

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.interruption.recorder import Recorder
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.report import remove_conditions, set_condition
from gracectl.interruption.recording import Counts
from gracectl.interruption.source import Outcome, Polls, ReadsNodes, Source
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.interruption import all_merged, interruption_of
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.workers import Requeue, run_workers

logger = logging.getLogger(__name__)

WORKERS: Final = 50
LOOKS_PER_SECOND, LOOKS_AT_ONCE = 1.0, 10
"""At one node: a kubelet may write and withdraw a condition as often as it likes, and each look may write twice."""
FIRST_RETRY, LAST_RETRY = 0.5, 60.0
"""Seconds before a failed write, or a source that has failed, is tried again; doubled each time."""


class InterruptionController:
    """Reconciles nodes by name."""

    def __init__(
        self,
        context: StepContext,
        backoff: Callable[[float, float], Backoff],
        sources: Sequence[Source],
        counts: Counts,
    ) -> None:
        self._context = context
        self._backoff = backoff
        self._polled = tuple(each for each in sources if isinstance(each, Polls))
        self._read = tuple(each for each in sources if isinstance(each, ReadsNodes))
        self._read_names = frozenset(each.name for each in self._read)
        self._queue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        managed = context.settings.managed
        self._recorder = Recorder(context.client, context.cluster, managed, context.clock, counts)
        self._tracked: dict[str, TrackedObject[Node]] = {}
        self._looks: dict[str, TokenBucket] = {}
        context.cluster.nodes.subscribe(self._node_changed, replay=True)

    async def run(self) -> None:
        """Hear notices, and reconcile nodes, until cancelled."""
        await self._context.cluster.wait_live()
        async with anyio.create_task_group() as group:
            for source in self._polled:
                group.start_soon(self._poll, source)
            await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"interruptions": self._queue.statistics()}

    async def reconcile(self, name: str) -> Requeue | None:
        """Record what the node shows, and write its condition; safe to repeat."""
        node = self._context.cluster.node(name)
        if node is None or not self._context.cluster.manages(self._context.settings.managed, node):
            self._tracked.pop(name, None)
            self._looks.pop(name, None)
            return None
        looks = self._looks.setdefault(name, TokenBucket(self._context.clock, LOOKS_PER_SECOND, LOOKS_AT_ONCE))
        if not looks.take():
            return Requeue(looks.statistics().next_in)
        heard = all_merged(each.notice_of(node, self._context.clock.now()) for each in self._read)
        shown = interruption_of(node)
        if heard is not None and await self._recorder.record(node, heard) is Outcome.RECORDED:
            self._recorder.count(heard.source, heard.kind, Outcome.RECORDED)
            return None  # the watch shows this write
        if heard is None and shown is not None and shown.source in self._read_names:
            await self._recorder.withdraw(node, shown)
        return await self._show(node)

    async def _show(self, node: Node) -> Requeue | None:
        tracked = self._tracked.get(node.name)
        if tracked is None or tracked.uid != node.uid:
            tracked = self._tracked[node.name] = TrackedObject(NODES, node)
        tracked.refresh(node)
        shown = interruption_of(node)
        if shown is None:
            if condition_of(tracked.latest.conditions, names.INTERRUPTED) is not None:
                await remove_conditions(self._context, tracked, (names.INTERRUPTED,))
            return None
        reason = "".join(part.capitalize() for part in shown.kind.split("-"))
        update = ConditionUpdate(names.INTERRUPTED, names.TRUE, reason, str(shown))
        seconds = await set_condition(self._context, (tracked,), update, is_final=True)
        return None if update.is_shown_by(tracked.latest.conditions) else Requeue(seconds)

    async def _poll(self, source: Polls) -> None:
        handler, retry = self._recorder.handler(source.name), self._backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            try:
                await source.poll(handler)
            except ApiError as error:
                logger.warning("source %s: %s; retrying", source.name, error)
            except Exception:  # a bug of a plugin, say
                logger.exception("source %s: unexpected failure; retrying", source.name)
            await self._context.clock.sleep(retry.next())

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            self._tracked.pop(old.name if old is not None else "", None)
            self._looks.pop(old.name if old is not None else "", None)
        elif self._is_of_interest(new) and (old is None or _gist(old) != _gist(new)):
            self._queue.add(new.name)

    def _is_of_interest(self, node: Node) -> bool:
        if names.INTERRUPTION in node.annotations or condition_of(node.conditions, names.INTERRUPTED) is not None:
            return True
        return any(each.notice_of(node, 0.0) is not None for each in self._read)


def _gist(node: Node) -> tuple[object, ...]:
    """Fields that sources read; heartbeats are not among them."""
    return (node.uid, node.labels, node.annotations.get(names.INTERRUPTION), node.taints, node.conditions)
