"""One shutdown of the machine, from the signal of logind until the machine is let go: who does what, and until when.

The node is cordoned, and its pods leave range by range. Invariant: the machine is let go when the time is over that was
promised for it, whatever the API server, the pods or any of our own parts do; a shutdown that is called off takes no
further pod.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

import anyio
import msgspec

from gracectl.agent.announcer import AgentAnnouncer, called, counted
from gracectl.agent.bulletin import Bulletin
from gracectl.agent.journal import ShutdownJournal
from gracectl.agent.marks import Marks
from gracectl.agent.samples import Outcome
from gracectl.agent.sequence import Result, ShutdownSequence
from gracectl.eviction.deleter import Deletion, ScheduledDeletion
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventType
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.deadlines import deadline_of
from gracectl.policy.settings import PolicySettings
from gracectl.policy.shutdown import RangeBegan, RangeOver
from gracectl.policy.waves import Order
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

HEAD_START_SECONDS: Final = 1.0
"""The cordon comes first, but no pod loses time to a server that is slow to write it."""

LAST_WORDS_SECONDS: Final = 2.0
"""When the pods have left, Events, condition and trace have so long to be written, if there is so much time left."""

LOOK_SECONDS: Final = 0.05
"""How often it is looked whether they are."""


class ShutdownMeans(msgspec.Struct, frozen=True, kw_only=True):
    """What a shutdown works with. `node` is ours, as far as it is known; `backoff` makes the waits after failures."""

    name: str
    node: Callable[[], Node | None]
    clock: Clock
    announcer: AgentAnnouncer
    bulletin: Bulletin
    backoff: Callable[[], Backoff]
    is_writing: Callable[[], bool]
    """Whether Events or spans wait to be written."""
    marks: Marks


class Shutdown:
    """One shutdown; listens to its sequence and to the deleter. `seconds`: what there is for it, from now."""

    def __init__(self, means: ShutdownMeans, policy: PolicySettings, order: Order, seconds: float) -> None:
        self._means = means
        self._policy = policy
        self._order = order
        self._seconds = seconds
        self.began = means.clock.now()
        self._start = means.clock.monotonic()
        self._scope = anyio.CancelScope()
        self._cordoned = anyio.Event()
        self._asked: set[str] = set()
        self._journal: ShutdownJournal | None = None
        self._sequence: ShutdownSequence | None = None
        self.outcome: Outcome | None = None
        """None: it is under way."""

    @property
    def trace_id(self) -> str | None:
        """For the log."""
        return None if self._journal is None else self._journal.trace_id

    @property
    def awaited(self) -> int:
        """How many pods it waits for now."""
        return self._sequence.awaited if self._sequence is not None and self.outcome is None else 0

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._means.clock.monotonic() - self._start

    def cancel(self) -> None:
        """The machine does not go down after all."""
        self._scope.cancel()

    async def run(self, journal: ShutdownJournal, sequence: ShutdownSequence, release: Callable[[], None]) -> None:
        """Until the machine is let go (`release` is called then, or before), or the shutdown is cancelled."""
        self._journal, self._sequence = journal, sequence
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._let_go, release)
                    group.start_soon(self._cordon)
                    await self._empty(sequence)
                    group.cancel_scope.cancel()
        finally:
            if self._scope.cancel_called:
                self._cancelled()
            else:
                release()

    async def _let_go(self, release: Callable[[], None]) -> None:
        """A client finishes the write that it has begun, a cancelled one too: so nobody is waited for here."""
        await self._means.clock.sleep(self._start + self._seconds - self._means.clock.monotonic())
        if not self._scope.cancel_called:  # at this very instant: the lock is another one already
            release()

    async def _empty(self, sequence: ShutdownSequence) -> None:
        total, means = self._seconds, self._means
        until = format_time(self.began + total)
        self._say(f"the machine shuts down, and waits for its pods until {until} ({total:g} s) at the latest")
        with anyio.move_on_after(min(HEAD_START_SECONDS, total)):
            await self._cordoned.wait()
        # Neither the head start nor the way here is to cost a range a whole second.
        left = self._start + total + HEAD_START_SECONDS - means.clock.monotonic()
        available = min(total, math.ceil(left) if math.isfinite(left) else left)
        result = await sequence.run(self._order, available, self._deadline)
        self._over(result)
        left = self._start + total - means.clock.monotonic()
        with anyio.move_on_after(min(LAST_WORDS_SECONDS, left)):
            while means.bulletin.is_owed or means.is_writing():
                await means.clock.sleep(LOOK_SECONDS)

    async def _cordon(self) -> None:
        """The node takes no more pods; tried for as long as there is time."""
        means, backoff = self._means, self._means.backoff()
        while True:
            node = means.node()
            try:
                if node is not None and await self._means.marks.put(node):
                    self._cordoned.set()
                    return
            except ApiError as error:
                logger.warning("node %s could not be cordoned for the shutdown: %s", means.name, error)
            await means.clock.sleep(backoff.next())

    def _deadline(self) -> float | None:
        """By when the node itself must have ended, if it is being terminated."""
        node = self._means.node()
        if node is None or node.deletion_timestamp is None:
            return None
        found = deadline_of(node, None, self._policy)
        return None if found is None else found.at

    # What the sequence and the deleter say.

    def range_began(self, news: RangeBegan) -> None:
        """See SequenceListener."""
        now = self._means.clock.now()
        self._asked.update(pod.uid for pod in news.pods)
        if self._journal:
            self._journal.range_began(news.number, news.wave.name, news.pods, now)
        until = format_time(now + news.seconds)
        self._say(f"{news.wave.name}: it is the turn of {called(news.pods)}; until {until} ({news.seconds:.0f} s)")

    def range_over(self, news: RangeOver) -> None:
        """See SequenceListener."""
        now = self._means.clock.now()
        if self._journal:
            self._journal.range_over(news.left, now)
        if not news.left:
            logger.info("%s: all pods are gone after %.1f s", news.wave.name, news.seconds, extra=self._keys)
            return
        message = (
            f"{news.wave.name}: {news.ending}, and nobody waits any longer for {called(news.left)}, left after "
            f"{news.seconds:.0f} s"
        )
        self._means.announcer.say(EventReason.NODE_SHUTDOWN_OVERDUE, message, "Warning", news=news.wave.name)

    def over(self, result: Result) -> None:
        """See SequenceListener; told by `_over`, which has more to say."""

    def deleted(self, deletion: Deletion, pod: Pod | None) -> None:
        """See DeletionListener. `pod`: as it is known; one that has come late is in the news of no range."""
        self._asked.add(deletion.pod.uid)
        if self._journal:
            if pod is not None and pod.uid == deletion.pod.uid:
                self._journal.awaited(pod, self._means.clock.now())
            self._journal.deleted(deletion, self._means.clock.now())

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener."""
        if self._journal:
            self._journal.refused(pod.uid, refusal, self._means.clock.now())

    def pod_gone(self, uid: str) -> None:
        """A pod of the node is there no more."""
        if self._journal:
            self._journal.gone(uid, self._means.clock.now())

    # How it ends.

    def _over(self, result: Result) -> None:
        took = f"{result.seconds:.0f} s"
        if not result.is_known:
            self._end(
                Outcome.OVERDUE,
                f"the machine goes down after {took}, and no pod was told: the API server has not said which there are",
            )
        elif result.left:
            self._end(Outcome.OVERDUE, f"the machine goes down after {took}, and leaves {called(result.left)}")
        else:
            gone = f"{counted(len(self._asked))} gone after {took}" if self._asked else "there was no pod to wait for"
            self._end(Outcome.FINISHED, f"{gone}; the machine goes down")

    def _end(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        now = self._means.clock.now()
        type_: EventType = "Warning" if outcome is Outcome.OVERDUE else "Normal"
        self._means.announcer.say(EventReason.NODE_SHUTDOWN, message, type_, news="over")
        self._means.bulletin.say("PodsLeft" if outcome is Outcome.OVERDUE else "PodsGone", message)
        if self._journal:
            self._journal.close(now, outcome.value, "" if outcome is Outcome.FINISHED else message)

    def _cancelled(self) -> None:
        if self.outcome is None:
            self.outcome = Outcome.CANCELLED
            if self._journal:
                self._journal.close(self._means.clock.now(), Outcome.CANCELLED.value)

    def _say(self, message: str) -> None:
        self._means.announcer.say(EventReason.NODE_SHUTDOWN, message, news=message)
        self._means.bulletin.say("WaitingForPods", message)

    @property
    def _keys(self) -> dict[str, str]:
        return {"node": self._means.name}
