"""A do-not-disrupt that nobody understands protects for ever, as whoever wrote it meant something; he is told.

That happens as soon as such a pod is on a managed node, not only when the node is to end, on one pod of each workload:
a Deployment has a thousand pods with the same mistake. What is remembered of that is bounded, and no more than a few
are told in a second, as other Events wait in the same line.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from gracectl.controllers.pipeline.steps import StepContext
from gracectl.kube.cache import Key
from gracectl.kube.events import Subject
from gracectl.kube.resources import PODS
from gracectl.model import names
from gracectl.model.meta import OwnerReference
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.evictability import ignored
from gracectl.policy.protection import invalid_annotation, shown
from gracectl.policy.settings import ProtectionSettings
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.workers import run_workers

logger = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Workloads, each with a value, of which people were told; beyond that those that were met longest ago are forgotten,
and told again with their next pod."""

TOLD_PER_SECOND, TOLD_AT_ONCE = 5.0, 50


class InvalidAnnotationReporter:
    """Follows the pods of managed nodes; a part of the controller."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._queue: WorkQueue[Key] = WorkQueue(context.clock)
        self._pace = TokenBucket(context.clock, TOLD_PER_SECOND, TOLD_AT_ONCE)
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        context.cluster.pods.subscribe(self._pod_changed)
        context.cluster.nodes.subscribe(self._node_changed, replay=True)

    async def run(self) -> None:
        """Tell people until cancelled."""
        await self._context.cluster.wait_live()
        await run_workers(self._queue, self.look, 1)

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    async def look(self, key: Key) -> None:
        """Tell of the pod of that name if its value is nonsense and nobody has been told of it for its workload."""
        pod = self._context.cluster.pods.get(*key)
        value = None if pod is None else invalid_annotation(pod)
        if pod is None or value is None or not self._is_waited_for(pod):
            return
        topic = _topic(pod, value)
        if topic not in self._told:
            report_invalid_annotation(self._context, pod)
            await self._pace.acquire()
        self._told[topic] = None
        self._told.move_to_end(topic)
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _is_waited_for(self, pod: Pod) -> bool:
        """Whether it would hold the end of a managed node."""
        node = self._context.cluster.node(pod.node_name)
        if node is None or not self._context.settings.node_selector.matches(node.labels):
            return False
        return pod.deletion_timestamp is None and ignored(pod, self._context.clock.now()) is None

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            return
        before = None if old is None else old.annotations.get(names.DO_NOT_DISRUPT)
        value = new.annotations.get(names.DO_NOT_DISRUPT)
        if old is not None and before is not None and before != value:
            self._told.pop(_topic(old, before), None)  # should it be written again, that is news
        is_bound_now = old is None or old.node_name != new.node_name
        if value is not None and new.node_name and (value != before or is_bound_now):
            self._queue.add(new.key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Its pods may have come before it, or it has become ours."""
        if new is None or (old is not None and old.labels == new.labels):
            return
        for pod in self._context.cluster.pods_on(new.name):
            self._pod_changed(None, pod)


def _topic(pod: Pod, value: str) -> tuple[str, str]:
    """What people are told of once: the uid of what has made the pod, or its own, and the value."""
    owner = controller_of(pod)
    return (pod.uid if owner is None else owner.uid, shown(value))


def controller_of(pod: Pod) -> OwnerReference | None:
    """What makes its pods anew when they go, if there is such."""
    return next((owner for owner in pod.owners if owner.controller), None)


def report_invalid_annotation(context: StepContext, pod: Pod) -> None:
    """A Warning on the pod: what its value is, what it means now, and what would be right."""
    value, message = shown(invalid_annotation(pod) or ""), explained(pod, context.settings.policy.protection)
    extra = {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node_name}
    logger.warning("pod: %s", message, extra=extra)
    reason = names.EventReason.INVALID_DO_NOT_DISRUPT_ANNOTATION
    context.recorder.record(Subject.of(PODS, pod), reason, message, "Warning", news=value)


def explained(pod: Pod, settings: ProtectionSettings) -> str:
    """The words of that Warning."""
    means = "protects the pod for ever"
    if settings.maximum_seconds is not None:
        means = (
            f"protects the pod for as long as protection.maximumSeconds grants ({settings.maximum_seconds:g} s from "
            f"its {settings.reference})"
        )
    owner = controller_of(pod)
    others = "" if owner is None else f", on all pods of {owner.kind} {owner.name} that have it"
    return (
        f'annotation {names.DO_NOT_DISRUPT} is "{shown(invalid_annotation(pod) or "")}", which is neither "true" nor a '
        f'positive duration, so it {means}; write "true" if that is meant, a duration such as "4h" or "1h30m" to '
        f"protect it for that long from its {settings.reference}, or take it off{others}"
    )
