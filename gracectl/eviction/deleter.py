"""Deletes the pods that would outlive a deadline, each at its own instant, with all the grace that is left for it.

Nodes say which of their pods are doomed and by when (`want`), as a whole set each time; a timer is armed for each.
A timer that fires only puts the pod's uid on a queue; a worker looks at the pod once more and sends a DELETE with its
uid. Invariants: no pod is deleted before its time; none is deleted twice with the same grace; what is overdue goes at
once, whoever was in charge before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import anyio
import msgspec

from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.model.pod import Pod
from gracectl.runtime.clock import Clock


class Doomed(msgspec.Struct, frozen=True):
    """A pod of `node` that must have ended by `deadline` (Unix seconds); policy.deadlines says when it is deleted."""

    namespace: str
    name: str
    uid: str
    node: str
    deadline: float


class Deletion(msgspec.Struct, frozen=True):
    """What the server was asked for and has agreed to: seconds of grace, and how late (seconds) it was sent."""

    pod: Doomed
    granted: int
    requested: int
    late: float


class DeletionListener(Protocol):
    """Is told what became of a pod; must not block."""

    def deleted(self, deletion: Deletion) -> None:
        """The server has agreed."""

    def not_deleted(self, pod: Doomed, refusal: errors.ApiError) -> None:
        """The server did not agree this time; it is asked again."""


class PodDeleter:
    """Owns the timers. `want` and `withdraw` may be called at any time; `run` does the deleting."""

    def __init__(self, client: KubeClient, pods: Cache[Pod], clock: Clock) -> None:
        self._client = client
        self._pods = pods
        self._clock = clock
        self._doomed: dict[str, tuple[Doomed, ...]] = {}
        self._listeners: list[DeletionListener] = []

    def listen(self, listener: DeletionListener) -> None:
        """Tell `listener` of every agreed and refused deletion."""
        self._listeners.append(listener)

    def want(self, node: str, doomed: Iterable[Doomed]) -> None:
        """These pods of `node`, and no others, end by their deadline. Idempotent; those left out are spared."""
        self._doomed[node] = tuple(doomed)

    def withdraw(self, node: str) -> None:
        """Nobody of `node` is to be deleted any more."""
        self.want(node, ())

    async def settle(self, node: str) -> None:
        """Return when whatever is due now on `node` has been answered by the server, one way or the other."""

    async def run(self) -> None:
        """Delete until cancelled; a request in flight is finished first."""
        await anyio.sleep_forever()
