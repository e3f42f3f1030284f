"""Carries out a shutdown of the machine: its pods are told to leave, range by range, as policy.shutdown decides.

The pods' cache and the clock wake it, nothing is polled; each time the whole state is judged anew, and the deleter
hears who is to be told now. That one tells each pod once, tries again where the server does not agree, and knows what
the watch does not show yet.

Invariants: nothing is decided from a cache that has not seen its first complete list; `run` returns when the time that
was available has passed, whatever pods and servers do; whoever has not been told when it returns, or is cancelled, is
not told afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import anyio
import msgspec

from gracectl.eviction.deleter import PodDeleter, ScheduledDeletion
from gracectl.kube.cache import Cache
from gracectl.model.pod import Pod
from gracectl.policy.shutdown import Notice, RangeBegan, RangeOver, Seen, Shutdown, Step, begin, step
from gracectl.policy.waves import Order
from gracectl.runtime.clock import Clock


class Result(msgspec.Struct, frozen=True):
    """How a shutdown has gone. `seconds`: what it took; `left`: the pods that are still there, `untold` those of them
    that nobody has told to leave, as far as the watch has shown. `is_known`: False if the pods were not known in time;
    then nobody was told at all.
    """

    seconds: float
    left: tuple[Pod, ...] = ()
    is_known: bool = True

    @property
    def untold(self) -> tuple[Pod, ...]:
        """Those of `left` that do not terminate."""
        return tuple(pod for pod in self.left if pod.deletion_timestamp is None)


class SequenceListener(Protocol):
    """Is told how a shutdown goes; must not block. What becomes of each pod, the deleter tells."""

    def range_began(self, news: RangeBegan) -> None:
        """The time of these pods has come."""

    def range_over(self, news: RangeOver) -> None:
        """It has passed, or they are gone."""

    def over(self, result: Result) -> None:
        """Nobody is told or waited for any more. Not said of a shutdown that was cancelled."""


class ShutdownSequence:
    """See the module. `pods` has the pods of `node` and no others; `own_uid` is that of our own pod, "" outside of one.

    Precondition: somebody runs the deleter, and keeps the cache; nobody else wants anything of the deleter for `node`.
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
        self.awaited = 0
        """How many pods the range whose time it is waits for."""
        self._news = anyio.Event()
        clock.subscribe(self.look)

    def look(self) -> None:
        """Something has changed that the cache does not show: the node's deadline, or the clock. Judge anew."""
        self._news.set()

    async def run(
        self, order: Order, available: float, node_deadline: Callable[[], float | None] = lambda: None
    ) -> Result:
        """Empty the node in at most `available` seconds from now. Cancel it, and nobody else is told to leave.

        `node_deadline`: by when the node must have ended (Unix seconds; None: it need not); it is asked at every look,
        and `look` says that it has another answer.
        """
        began = self._clock.monotonic()
        unsubscribe = self._pods.subscribe(lambda old, new: self.look())
        try:
            with anyio.move_on_after(available):
                await self._pods.wait_live()
            result = await self._empty(order, available, began, node_deadline)
        finally:
            unsubscribe()
            self._deleter.remove_node(self._node)
        self._listener.over(result)
        return result

    async def _empty(
        self, order: Order, available: float, began: float, node_deadline: Callable[[], float | None]
    ) -> Result:
        if not self._pods.live:
            return Result(self._clock.monotonic() - began, is_known=False)
        shutdown: Shutdown | None = None
        while True:
            self._news = anyio.Event()
            elapsed = self._clock.monotonic() - began
            seen = Seen(self._pods.values(), elapsed, self._clock.now(), node_deadline())
            decided = step(shutdown or begin(order, available, seen, self._own_uid), seen)
            shutdown = decided.shutdown
            self.awaited = len(decided.awaited)
            self._carry_out(decided)
            if decided.is_over:
                break
            with anyio.move_on_after(decided.look_at - elapsed):
                await self._news.wait()
        if decided.notices:
            # Nobody waits for these pods, but they have to hear of it.
            with anyio.move_on_after(available - elapsed):
                await self._deleter.settle(self._node)
        return Result(self._clock.monotonic() - began, decided.left)

    def _carry_out(self, decided: Step) -> None:
        """Say what has begun and ended, and to the deleter whom it has to tell now."""
        for news in decided.news:
            if isinstance(news, RangeBegan):
                self._listener.range_began(news)
            else:
                self._listener.range_over(news)
        waves = decided.shutdown.order.waves
        self._deleter.set_pods(
            self._node, [self._doomed(notice, waves[notice.wave].pods) for notice in decided.notices]
        )

    def _doomed(self, notice: Notice, pods: str) -> ScheduledDeletion:
        """As the deleter wants it. The grace is the deleter's to say: a second try has less."""
        return ScheduledDeletion(
            namespace=notice.pod.namespace,
            name=notice.pod.name,
            uid=notice.pod.uid,
            node=self._node,
            deadline=notice.deadline,
            cause=f"the machine shuts down, and it is the turn of {pods}",
            begins=notice.begins,
        )
