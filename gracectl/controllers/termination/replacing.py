"""Replacement of pods before their eviction: reads workloads for the plan, releases pods, and returns them.

The drain asks for it with each plan. `ReleasedPods` returns what no drain needs. Invariants: of each workload, one pod
at a time is released; a pod is released or returned in one write, under its UID and version, so a process that is
killed loses nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.controllers.cluster.workloads import ABOVE, REPLICA_SETS, all_nodes, read_facts
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.report import emit, record
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import AdmissionDenied, ApiError, Conflict, Forbidden, Invalid, NotFound
from gracectl.kube.events import Subject
from gracectl.kube.requests import Key, MergePatch, Selection, bound_to
from gracectl.kube.resources import NODES, PODS
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.workloads import Workload
from gracectl.policy.evictability import FINISHED
from gracectl.policy.maintenance import is_maintenance_requested
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.policy.release import release_of, release_patch, return_patch, surplus_patch
from gracectl.policy.replacement import facts_key, new_release
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers

logger = logging.getLogger(__name__)

READ_AGAIN_SECONDS: Final = 60.0
"""Workloads are read again after this time, or when one of their pods changes. A command does not see all pods."""
READ_BY_COMMAND_SECONDS: Final = 2.0
CONFLICT_SECONDS: Final = 0.5
"""After a write that was not possible: the watch shows why, or the workload must be read again."""
CHANGED_SECONDS: Final = 1.0
"""The same if one of its pods has changed while it was read."""
MOST_WORKLOADS: Final = 1_000
"""Known workloads, beyond which those that must be read again are forgotten."""
CONCURRENCY: Final = 16
RETURNS_PER_SECOND, RETURNS_AT_ONCE = 10.0, 50
"""Any client may make pods look released."""
WITHOUT_RIGHT_SECONDS: Final = 600.0
"""A right that is missing is checked again after this time."""
ATTEMPTS: Final = 5
"""Writes of a command to a pod that others write, too."""
FIRST_RETRY, LAST_RETRY = 0.05, 60.0


class Returned(StrEnum):
    """What became of a released pod."""

    RETURNED = "returned"
    DELETED = "deleted"
    """No ReplicaSet can adopt it: it was deleted, as it would have been with its ReplicaSet."""


async def replace_first(context: StepContext, decision: Plan) -> float:
    """Release and return the pods of this plan. Returns after how many seconds to plan again: 0.0 if more is known now
    of their workloads. Raises ApiError.
    """
    asking = [entry for entry in decision.left if entry.asks_for_replacement]
    if not asking or decision.overdue:
        return math.inf
    if (until_read := await _read_workloads(context, asking)) == 0.0:
        return 0.0
    seconds = min(until_read, READ_AGAIN_SECONDS if context.leaves_marks else READ_BY_COMMAND_SECONDS)
    for entry in asking:
        if entry.outcome is Outcome.REPLACE:
            seconds = min(seconds, await _release(context, entry))
        elif entry.outcome is Outcome.RETURN:
            failed_at = None if entry.not_replaced is None else context.clock.now()
            await give_back(context, entry.pod, entry.reason, failed_at=failed_at)
            seconds = CONFLICT_SECONDS
    return seconds


async def _read_workloads(context: StepContext, asking: list[PodPlan]) -> float:
    """Read workloads that are not known, or were read long ago. Returns 0.0 if there were any, else the seconds until
    one may be read again."""
    known, now = context.cluster.workloads, context.clock.monotonic()
    longest = READ_AGAIN_SECONDS if context.leaves_marks else READ_BY_COMMAND_SECONDS
    due: dict[Key, Pod] = {}
    until_read = math.inf
    for pod in (entry.pod for entry in asking):
        key = facts_key(pod)
        if key is not None and key in known and (left := known[key].read_at + longest - now) > 0:
            until_read = min(until_read, left)
        elif key is not None:
            due.setdefault(key, pod)
    if due and len(known) > MOST_WORKLOADS:
        for key in [key for key, facts in known.items() if facts.read_at + longest <= now]:
            del known[key]
    is_any_read, reads = False, context.workload_reads
    for key, pod in due.items():
        if seconds := reads.begin(key):
            until_read = min(until_read, seconds)
            continue
        nodes = all_nodes(context.cluster) if context.leaves_marks else None
        settings = context.settings.policy.replace_first
        known.pop(key, None)
        with reads.reading(key) as has_changed:
            found = await read_facts(context.client, pod, key, settings, nodes=nodes, now=now)
        if has_changed():
            found = msgspec.structs.replace(found, read_at=now + CHANGED_SECONDS - longest)
        known[key] = reads.charged(key, found)
        is_any_read = True
    return 0.0 if is_any_read else until_read


async def _release(context: StepContext, entry: PodPlan) -> float:
    """Release a pod, unless another of its workload was released since that was read. Returns the seconds until the
    next look."""
    pod, key, now = entry.pod, facts_key(entry.pod), context.clock.now()
    facts = None if key is None else context.cluster.workloads.get(key)
    release = None if facts is None else new_release(pod, facts, now)
    if key is None or facts is None or release is None:
        return CONFLICT_SECONDS
    if facts.read_at <= context.releases.get(key, -math.inf):
        context.cluster.workloads.pop(key, None)
        return CONFLICT_SECONDS
    if len(context.releases) > MOST_WORKLOADS:
        context.releases.clear()
    context.releases[key] = math.inf
    context.cluster.workloads.pop(key, None)
    pod = next((each for each in facts.pods if each.uid == pod.uid), pod)  # newer than the watch has shown
    try:
        patch, version = MergePatch(release_patch(release)), pod.resource_version
        await context.client.patch(PODS, pod.key, patch, uid=pod.uid, resource_version=version)
    except (Conflict, NotFound):
        return CONFLICT_SECONDS
    except (Forbidden, AdmissionDenied, Invalid) as error:
        refused = msgspec.structs.replace(facts, missing=f"its release was refused: {error}", read_at=_now(context))
        context.cluster.workloads[key] = refused
        return 0.0
    finally:
        context.releases[key] = _now(context)
    context.statistics.replacements["released"] += 1
    event = events.pod_released(pod, release)
    emit(context, (), event)
    if (workload := facts.above or facts.replica_set) is not None:
        resource = REPLICA_SETS if facts.above is None else ABOVE.get(release.kind, REPLICA_SETS)
        record(context.recorder, Subject.of(resource, workload), event)
    return CONFLICT_SECONDS


def _now(context: StepContext) -> float:
    return context.clock.monotonic()


async def give_back(context: StepContext, pod: Pod, reason: str, *, failed_at: float | None = None) -> None:
    """Return a released pod, and report it. Raises ApiError."""
    result = await return_pod(context.client, pod, failed_at=failed_at)
    if (key := facts_key(pod)) is not None:
        context.cluster.workloads.pop(key, None)
    if result is not None:
        context.statistics.replacements["returned" if failed_at is None else "failed"] += 1
        is_deleted = result is Returned.DELETED
        emit(context, (), events.pod_returned(pod, reason, is_deleted=is_deleted, is_failed=failed_at is not None))


async def return_pod(client: KubeClient, pod: Pod, *, failed_at: float | None = None) -> Returned | None:
    """Return a released pod to its ReplicaSet, which then removes its replacement; None if there is nothing to do.

    `failed_at`: see `return_patch`. Needs rights to get replicasets, and to get, list, patch and delete pods. Raises
    ApiError: Conflict if the pod has changed since.
    """
    try:
        pod = await _current(client, pod)
        release = release_of(pod)
        if release is None or pod.deletion_timestamp is not None:
            return None
        replica_set = await _replica_set(client, pod.namespace, release.replica_set)
        if replica_set is None or replica_set.rollout.is_deleted or pod.phase in FINISHED:
            await client.delete(PODS, pod.key, uid=pod.uid)
            return Returned.DELETED
        selection = Selection(labels=f"{release.label}={release.value}")
        found = await read_all(client, PODS, selection, namespace=pod.namespace)
        mine = [each for each in found if each.deletion_timestamp is None and _is_controlled(each, replica_set)]
        if mine and len(mine) >= replica_set.replicas:
            newest = max(mine, key=lambda each: (each.created, each.name))
            with suppress(NotFound):
                await client.patch(PODS, newest.key, MergePatch(surplus_patch()), uid=newest.uid)
        patch = MergePatch(return_patch(release, failed_at=failed_at))
        await client.patch(PODS, pod.key, patch, uid=pod.uid, resource_version=pod.resource_version)
    except NotFound:
        return None
    return Returned.RETURNED


async def _current(client: KubeClient, pod: Pod) -> Pod:
    """The pod as the server has it: a cache may be late, and its replacement must not be marked for nothing."""
    current = await client.get(PODS, pod.key)
    return current if current.uid == pod.uid else msgspec.structs.replace(pod, annotations={})


async def _replica_set(client: KubeClient, namespace: str, name: str) -> Workload | None:
    try:
        return await client.get(REPLICA_SETS, (namespace, name))
    except NotFound:
        return None


def _is_controlled(pod: Pod, replica_set: Workload) -> bool:
    return pod.controller is not None and pod.controller.uid == replica_set.uid


async def return_pods_of(client: KubeClient, node: str) -> int:
    """Return the released pods of a node, for a command; returns how many. Raises ApiError."""
    number = 0
    try:
        found = await read_all(client, PODS, bound_to(node))
    except Forbidden:
        return 0  # doctor lists them
    for pod in found:
        with suppress(Conflict):  # a controller was faster
            number += await return_pod(client, pod) is not None
    return number


async def released_pods(client: KubeClient) -> list[Pod]:
    """Released pods of all nodes, except of nodes that are gone: Kubernetes deletes those. Raises ApiError."""
    found = await read_all(client, PODS, keep=lambda pod: release_of(pod) is not None)
    nodes = {node.name for node in await read_all(client, NODES)} if found else ()
    return [pod for pod in found if pod.node_name in nodes]


async def try_return(client: KubeClient, pod: Pod) -> str:
    """Return a released pod where no controller runs; "", or why it could not be returned."""
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            await return_pod(client, pod)
        except Conflict as error:  # its kubelet was faster
            reason = str(error)
        except ApiError as error:
            return str(error)
        else:
            return ""
    return reason


class ReleasedPods:
    """Returns released pods of nodes that are neither deleted nor in maintenance; `run` it once."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff]) -> None:
        self._context = context
        self._cluster = cluster = context.cluster
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._pace = TokenBucket(context.clock, RETURNS_PER_SECOND, RETURNS_AT_ONCE)
        cluster.pods.subscribe(self._pod_changed)
        cluster.nodes.subscribe(self._node_changed)

    async def run(self) -> None:
        """Return pods until cancelled, from when all caches are live."""
        await self._cluster.wait_live()
        for pod in self._cluster.released():
            self._queue.add(pod.key)
        shares: Shares[Key] = Shares(self._context.clock, CONCURRENCY, lambda key: key[0])
        await run_workers(self._queue, self.reconcile, shares, (ApiError,))

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"released-pods": self._queue.statistics()}

    async def reconcile(self, key: Key) -> Requeue | None:
        """Return the pod of this name if it must be; idempotent."""
        pod = self._cluster.pods.get(*key)
        node = None if pod is None else self._cluster.node(pod.node_name)
        if pod is None or node is None or node.deletion_timestamp is not None or is_maintenance_requested(node):
            return None
        if release_of(pod) is None:
            return None
        await self._pace.acquire()
        try:
            await give_back(self._context, pod, f"node {node.name} is not drained")
        except Forbidden as error:
            logger.warning("pod cannot be returned: %s", error, extra={"pod": pod.full_name})
            return Requeue(WITHOUT_RIGHT_SECONDS)
        return None

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and release_of(new) is not None:
            self._queue.add(new.key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None and new.deletion_timestamp is None and not is_maintenance_requested(new):
            for pod in self._cluster.released():
                if pod.node_name == new.name:
                    self._queue.add(pod.key)
