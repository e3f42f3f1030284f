"""What the server has agreed to and the watch has not shown yet: a cache that lags must not make us ask twice.

Invariant: a pod looks as the cache has it or as the server's last answer left it, whichever is nearer to its end. A
promise is forgotten as soon as the cache has caught up with it, or the pod is gone.
"""

from __future__ import annotations

import math

import msgspec

from gracectl.kube.cache import Cache
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import granted_already


class Promise(msgspec.Struct, frozen=True):
    """The grace (seconds) that a pod was given, and the instant at which it ends; grace 0: the pod is gone."""

    grace: int
    ends: float


class Promises:
    """Looks at pods through the promises that were made to them; by uid. `note` has to be told of every change."""

    def __init__(self, pods: Cache[Pod]) -> None:
        self._pods = pods
        self._kept: dict[str, Promise] = {}

    def __len__(self) -> int:
        """How many the cache does not show yet."""
        return len(self._kept)

    def pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """This very pod as the server has it by all we know; None when it is gone."""
        pod = self._pods.get(namespace, name)
        if pod is None or pod.uid != uid:
            return None
        promise = self._kept.get(uid)
        if promise is None:
            return pod
        return msgspec.structs.replace(pod, deletion_timestamp=promise.ends, deletion_grace_seconds=promise.grace)

    def keep(self, uid: str, key: tuple[str, str], promise: Promise) -> None:
        """The server has agreed to this; nothing is kept when the watch was faster than the answer."""
        seen = self._pods.get(*key)
        if seen is not None and seen.uid == uid and not is_shown(seen, promise.grace):
            self._kept[uid] = promise

    def note(self, old: Pod | None, new: Pod | None) -> None:
        """The cache has changed (see Cache.subscribe)."""
        pod = new or old
        if pod is not None and pod.uid in self._kept and (new is None or is_shown(new, self._kept[pod.uid].grace)):
            del self._kept[pod.uid]


def is_shown(pod: Pod, grace: int) -> bool:
    """Whether the pod terminates with no more than this grace."""
    if pod.deletion_timestamp is None:
        return False
    return pod.deletion_grace_seconds is None or pod.deletion_grace_seconds <= grace


def given(pod: Pod) -> Promise | None:
    """What a terminating pod has been granted; None for one that runs."""
    if pod.deletion_timestamp is None:
        return None
    return Promise(granted_already(pod), pod.deletion_timestamp)


def promised(pod: Pod, grace: int, now: float) -> Promise:
    """What a server makes of a DELETE with this grace at `now`: a first one counts from then, in whole seconds, a
    shorter one from the first, but ends nothing before `now` (kubernetes pull 122646)."""
    before = given(pod)
    if before is None:
        return Promise(grace, math.floor(now) + grace)
    return Promise(grace, max(before.ends - before.grace + grace, math.floor(now)))
