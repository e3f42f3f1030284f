"""Execution of a shutdown: pods are deleted range by range, as policy.shutdown decides.

The cache of pods and the clock wake it, nothing is polled; each time the whole state is decided anew, and the deleter
gets the pods to delete now. The deleter deletes each pod once, retries refused requests, and knows what the watch does
not show yet.

Invariants: nothing is decided from a cache before its first complete list; `run` returns when the available time has
passed, regardless of pods and servers; a pod not deleted when it returns, or is cancelled, is not deleted afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import anyio
import msgspec

from gracectl.eviction.deleter import PodDeleter
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.kube.cache import Cache
from gracectl.model.pod import Pod
from gracectl.policy.shutdown import (
    RangeEnded,
    RangeStarted,
    ShutdownDeletion,
    ShutdownState,
    ShutdownStep,
    ShutdownView,
    begin,
    step,
)
from gracectl.policy.waves import DrainOrder
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup


class SequenceResult(msgspec.Struct, frozen=True):
    """Result of a shutdown. `seconds`: its duration; `left`: the pods that are still there, `not_deleted` those of them
    that do not terminate, as far as the watch has shown. `is_known`: False if the pods were not known in time; then
    none was deleted."""

    seconds: float
    left: tuple[Pod, ...] = ()
    is_known: bool = True

    @property
    def not_deleted(self) -> tuple[Pod, ...]:
        """Pods left that do not terminate."""
        return tuple(pod for pod in self.left if pod.deletion_timestamp is None)


class SequenceListener(Protocol):
    """Listener for the progress of a shutdown; must not block. Single pods are reported by the deleter."""

    def range_began(self, event: RangeStarted) -> None:
        """The pods of a range are deleted now."""

    def range_over(self, event: RangeEnded) -> None:
        """The period of a range has expired, or its pods are gone."""

    def over(self, result: SequenceResult) -> None:
        """The sequence has ended. Not called if it was cancelled."""


class ShutdownSequence:
    """Shutdown of one node. `pods` has the pods of `node` and no others; `own_uid` is the UID of the agent's pod, ""
    outside of one.

    Precondition: the deleter runs, the cache is live or being filled, and no other caller uses the deleter for `node`.
    """

    def __init__(
        self,
        node: str,
        pods: Cache[Pod],
        deleter: PodDeleter,
        clock: Clock,
        listener: SequenceListener,
        own_uid: str = "",
    ) -> None:
        self._node = node
        self._pods = pods
        self._deleter = deleter
        self._clock = clock
        self._listener = listener
        self._own_uid = own_uid
        self.waiting_pods = 0
        """Number of pods that the current range waits for."""
        self._changed = Wakeup()
        clock.subscribe(self.wake)

    def wake(self) -> None:
        """Decide again: something changed that the cache does not show, such as the node's deadline or the clock."""
        self._changed.set()

    async def run(
        self, order: DrainOrder, available: float, node_deadline: Callable[[], float | None] = lambda: None
    ) -> SequenceResult:
        """Drain the node in at most `available` seconds from now. When cancelled, no further pod is deleted.

        `node_deadline`: deadline of the node's own termination (Unix seconds; None: none); read at every decision,
        `wake` after a change.
        """
        began = self._clock.monotonic()
        unsubscribe = self._pods.subscribe(lambda old, new: self.wake())
        try:
            with anyio.move_on_after(available):
                await self._pods.wait_live()
            result = await self._drain(order, available, began, node_deadline)
        finally:
            unsubscribe()
            self._deleter.remove_node(self._node)
        self._listener.over(result)
        return result

    async def _drain(
        self, order: DrainOrder, available: float, began: float, node_deadline: Callable[[], float | None]
    ) -> SequenceResult:
        if not self._pods.live:
            return SequenceResult(self._clock.monotonic() - began, is_known=False)
        shutdown: ShutdownState | None = None
        while True:
            elapsed = self._clock.monotonic() - began
            seen = ShutdownView(self._pods.values(), elapsed, self._clock.now(), node_deadline())
            decided = step(shutdown or begin(order, available, seen, self._own_uid), seen)
            shutdown = decided.shutdown
            self.waiting_pods = len(decided.awaited)
            self._execute(decided)
            if shutdown.is_over:
                break
            await self._changed.wait(shutdown.ends - elapsed)
        if decided.deletions:
            # The shutdown does not wait for these pods, but must send their deletion.
            with anyio.move_on_after(available - elapsed):
                await self._deleter.settle(self._node)
        return SequenceResult(self._clock.monotonic() - began, decided.left)

    def _execute(self, decided: ShutdownStep) -> None:
        """Notify of ranges that began or ended, and pass the pods to delete to the deleter."""
        for event in decided.events:
            if isinstance(event, RangeStarted):
                self._listener.range_began(event)
            else:
                self._listener.range_over(event)
        waves = decided.shutdown.order.waves
        self._deleter.set_pods(
            self._node, [self._scheduled(notice, waves[notice.wave].pods) for notice in decided.deletions]
        )

    def _scheduled(self, notice: ShutdownDeletion, pods: str) -> ScheduledDeletion:
        """Deletion in the deleter's form. The deleter computes the grace: a retry has less."""
        return ScheduledDeletion(
            namespace=notice.pod.namespace,
            name=notice.pod.name,
            uid=notice.pod.uid,
            node=self._node,
            deadline=notice.deadline,
            cause=f"node shutdown, range: {pods}",
            begins=notice.begins,
        )
