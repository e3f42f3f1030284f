"""Deletions of pods: the scheduled ones, and the agreed ones that the watch has not shown yet."""

from __future__ import annotations

import math

import msgspec

from gracectl.kube.cache import Cache
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import granted_already


class ScheduledDeletion(msgspec.Struct, frozen=True):
    """Pod of `node` that must have ended by `deadline` (Unix seconds); policy.deadlines says when it is deleted.

    `cause`: why that is before the deadline of the node; empty if it is the same. `begins` (Unix seconds): the
    deletion is sent then, even if the grace would fit later, and is not shortened once it was sent in time.
    `node_goal`: what the node must be by its deadline, for messages. `owner`: another owner of the drain; empty:
    gracectl drains the node itself.
    """

    namespace: str
    name: str
    uid: str
    node: str
    deadline: float
    cause: str = ""
    begins: float | None = None
    node_goal: str = "gone"
    owner: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        return (self.namespace, self.name)


class PendingDeletion(msgspec.Struct, frozen=True):
    """The grace (seconds) that a pod was given, and the instant at which it ends; grace 0: the pod is gone."""

    grace: int
    grace_ends: float


class PendingDeletions:
    """View of the pods with the deletions applied that the server has agreed to and the watch has not shown yet: a
    cache that lags must not cause another. `pod_changed` must receive every change of the cache.

    Invariant: a pod is seen as the cache has it or as the last response left it, whichever is nearer to its end. A
    pending deletion is forgotten as soon as the cache shows it, or the pod is gone.
    """

    def __init__(self, pods: Cache[Pod]) -> None:
        self._pods = pods
        self._pending: dict[str, PendingDeletion] = {}

    def __len__(self) -> int:
        """Number of deletions that the cache does not show yet."""
        return len(self._pending)

    def pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """The pod with this UID as the server has it, as far as known; None when it is gone."""
        pod = self._pods.get(namespace, name)
        if pod is None or pod.uid != uid:
            return None
        deletion = self._pending.get(uid)
        if deletion is None:
            return pod
        return msgspec.structs.replace(
            pod, deletion_timestamp=deletion.grace_ends, deletion_grace_seconds=deletion.grace
        )

    def add(self, uid: str, key: tuple[str, str], deletion: PendingDeletion) -> None:
        """Record an agreed deletion, unless the watch was faster than the response."""
        seen = self._pods.get(*key)
        if seen is not None and seen.uid == uid and not is_terminating_within(seen, deletion.grace):
            self._pending[uid] = deletion

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """See Cache.subscribe."""
        pod = new or old
        if (
            pod is not None
            and pod.uid in self._pending
            and (new is None or is_terminating_within(new, self._pending[pod.uid].grace))
        ):
            del self._pending[pod.uid]


def is_terminating_within(pod: Pod, grace: int) -> bool:
    """Whether the pod terminates with at most this grace."""
    if pod.deletion_timestamp is None:
        return False
    return pod.deletion_grace_seconds is None or pod.deletion_grace_seconds <= grace


def pending_deletion(pod: Pod) -> PendingDeletion | None:
    """The deletion that a terminating pod shows; None for one that runs."""
    if pod.deletion_timestamp is None:
        return None
    return PendingDeletion(granted_already(pod), pod.deletion_timestamp)


def expected_deletion(pod: Pod, grace: int, now: float) -> PendingDeletion:
    """Effect of a DELETE with this grace at `now` on the server.

    A first one counts from then, in whole seconds, a shorter one from the first, but ends nothing before `now`
    (kubernetes pull 122646).
    """
    before = pending_deletion(pod)
    if before is None:
        return PendingDeletion(grace, math.floor(now) + grace)
    return PendingDeletion(grace, max(before.grace_ends - before.grace + grace, math.floor(now)))
