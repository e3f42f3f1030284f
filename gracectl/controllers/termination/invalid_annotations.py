"""Events on pods of managed nodes with an invalid do-not-disrupt, which protects indefinitely as a fail-safe.

Emitted as soon as such a pod runs, not only when its node is terminated, and on one pod per workload: a Deployment has
a thousand pods with the same mistake. Memory and rate are bounded, since other Events share the recorder's queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.report import emit
from gracectl.kube.cache import Key
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.evictability import ignored
from gracectl.policy.protection import invalid_annotation, printable
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.workers import run_workers

REMEMBERED: Final = 10_000
"""Pairs of workload and value with an Event; beyond that the oldest are forgotten, and reported with their next pod."""

EVENTS_PER_SECOND, BURST = 5.0, 50


class InvalidAnnotationReporter:
    """Component of the manager that follows the pods of managed nodes."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._queue: WorkQueue[Key] = WorkQueue(context.clock)
        self._pace = TokenBucket(context.clock, EVENTS_PER_SECOND, BURST)
        self._reported: OrderedDict[tuple[str, str], None] = OrderedDict()
        context.cluster.pods.subscribe(self._pod_changed)
        context.cluster.nodes.subscribe(self._node_changed)
        for pod in context.cluster.pods_that_ask():
            self._pod_changed(None, pod)

    async def run(self) -> None:
        """Emit Events until cancelled."""
        await self._context.cluster.wait_live()
        await run_workers(self._queue, self.reconcile, 1)

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"invalid-annotations": self._queue.statistics()}

    async def reconcile(self, key: Key) -> None:
        """Emit an Event on the pod if its value is invalid and its workload has none for that value yet."""
        pod = self._context.cluster.pods.get(*key)
        value = None if pod is None else invalid_annotation(pod)
        if pod is None or value is None or not self._blocks_managed_node(pod):
            return
        topic = _topic(pod, value)
        if topic not in self._reported:
            emit(self._context, (), events.invalid_protection(pod, self._context.settings.policy.protection))
            await self._pace.acquire()
        self._reported[topic] = None
        self._reported.move_to_end(topic)
        while len(self._reported) > REMEMBERED:
            self._reported.popitem(last=False)

    def _blocks_managed_node(self, pod: Pod) -> bool:
        node = self._context.cluster.node(pod.node_name)
        if node is None or not self._context.manages(node):
            return False
        return pod.deletion_timestamp is None and ignored(pod, self._context.clock.now()) is None

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            return
        before = None if old is None else old.annotations.get(names.DO_NOT_DISRUPT)
        value = new.annotations.get(names.DO_NOT_DISRUPT)
        if old is not None and before is not None and before != value:
            self._reported.pop(_topic(old, before), None)  # if it is set again, that is news
        is_bound_now = old is None or old.node_name != new.node_name
        if value is not None and new.node_name and (value != before or is_bound_now):
            self._queue.add(new.key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Look at the pods of a node that is new, or managed from now on."""
        if new is None or (old is not None and old.labels == new.labels):
            return
        for pod in self._context.cluster.pods_on(new.name):
            self._pod_changed(None, pod)


def _topic(pod: Pod, value: str) -> tuple[str, str]:
    """Key of a report: UID of the pod's controller, or else of the pod, and the value."""
    owner = pod.controller
    return (pod.uid if owner is None else owner.uid, printable(value))
