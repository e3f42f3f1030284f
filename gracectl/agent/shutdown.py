"""One shutdown of the machine, from logind's signal until the lock is released.

The node is cordoned, and its pods are deleted range by range. Invariants: the lock is released when the available time
is over, regardless of the API server, the pods and other components; a cancelled shutdown deletes no further pod.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Final

import anyio
import msgspec
from tenacity import AsyncRetrying, retry_if_result

from gracectl.agent.cordon import ShutdownCordon
from gracectl.agent.reporting import ShutdownCondition, ShutdownReporter, ShutdownTrace, describe
from gracectl.agent.sequence import SequenceResult, ShutdownSequence
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventType
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.deadlines import deadline_of
from gracectl.policy.explain import counted
from gracectl.policy.settings import PolicySettings
from gracectl.policy.shutdown import RangeEnded, RangeStarted
from gracectl.policy.waves import DrainOrder
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import while_running
from gracectl.telemetry import metrics
from gracectl.telemetry.metrics import Sample

logger = logging.getLogger(__name__)

HEAD_START_SECONDS: Final = 1.0
"""The cordon comes first, but pods lose no more time than this to a slow server."""

FLUSH_SECONDS: Final = 2.0
"""When the pods are gone, Events, condition and trace get this long to be written, if the time allows."""

FLUSH_POLL_SECONDS: Final = 0.05
"""Interval of the check whether they are."""


class ShutdownDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of a shutdown. `node`: the node's object once known; `backoff` makes the waits after failures."""

    name: str
    node: Callable[[], Node | None]
    clock: Clock
    reporter: ShutdownReporter
    condition: ShutdownCondition
    backoff: Callable[[], Backoff]
    is_writing: Callable[[], bool]
    """Whether Events or spans are waiting to be written."""
    cordon: ShutdownCordon


class MachineShutdown:
    """One shutdown; listener of its sequence and of the deleter. `seconds`: the time available, from now."""

    def __init__(self, deps: ShutdownDependencies, policy: PolicySettings, order: DrainOrder, seconds: float) -> None:
        self._deps = deps
        self._policy = policy
        self._order = order
        self._seconds = seconds
        self.began = deps.clock.now()
        self._start = deps.clock.monotonic()
        self._scope = anyio.CancelScope()
        self._cordoned = anyio.Event()
        self._deleted: set[str] = set()
        self._trace: ShutdownTrace | None = None
        self._sequence: ShutdownSequence | None = None
        self.outcome: ShutdownOutcome | None = None
        """Outcome of the shutdown; None while the shutdown is in progress."""

    @property
    def trace_id(self) -> str | None:
        """Trace id for the log."""
        return None if self._trace is None else self._trace.trace_id

    @property
    def waiting_pods(self) -> int:
        """Number of pods that it waits for now."""
        return self._sequence.waiting_pods if self._sequence is not None and self.outcome is None else 0

    @property
    def elapsed(self) -> float:
        """Seconds since its start."""
        return self._deps.clock.monotonic() - self._start

    def cancel(self) -> None:
        """Cancel it: the machine stays up."""
        self._scope.cancel()

    async def run(self, trace: ShutdownTrace, sequence: ShutdownSequence, release: Callable[[], None]) -> None:
        """Run until the lock is released (by `release`, called then or before), or the shutdown is cancelled."""
        self._trace, self._sequence = trace, sequence
        try:
            with self._scope:
                async with while_running(partial(self._release_in_time, release), self._cordon):
                    await self._drain(sequence)
        finally:
            if self._scope.cancel_called:
                self._note_cancelled()
            else:
                release()

    async def _release_in_time(self, release: Callable[[], None]) -> None:
        """Release in time: a client completes the write that it has begun even if cancelled, so nothing is awaited
        here."""
        await self._deps.clock.sleep(self._start + self._seconds - self._deps.clock.monotonic())
        if not self._scope.cancel_called:  # cancelled in this instant: the lock is a new one already
            release()

    async def _drain(self, sequence: ShutdownSequence) -> None:
        total, deps = self._seconds, self._deps
        until = format_time(self.began + total)
        self._report(f"shutting down: waiting for pods until {until} ({total:g} s) at the latest")
        with anyio.move_on_after(min(HEAD_START_SECONDS, total)):
            await self._cordoned.wait()
        # The head start and the time until here must not cost a range a whole second.
        left = self._start + total + HEAD_START_SECONDS - deps.clock.monotonic()
        available = min(total, math.ceil(left) if math.isfinite(left) else left)
        result = await sequence.run(self._order, available, self._deadline)
        self._over(result)
        left = self._start + total - deps.clock.monotonic()
        with anyio.move_on_after(min(FLUSH_SECONDS, left)):
            while deps.condition.is_pending or deps.is_writing():
                await deps.clock.sleep(FLUSH_POLL_SECONDS)

    async def _cordon(self) -> None:
        """Cordon the node; retried as long as there is time."""
        deps = self._deps
        is_cordoned = AsyncRetrying(
            sleep=deps.clock.sleep, wait=deps.backoff(), retry=retry_if_result(lambda done: not done)
        )
        await is_cordoned(self._try_to_cordon)
        self._cordoned.set()

    async def _try_to_cordon(self) -> bool:
        node = self._deps.node()
        try:
            return node is not None and await self._deps.cordon.apply(node)
        except ApiError as error:
            logger.warning("node %s: not cordoned at shutdown: %s; retrying", self._deps.name, error)
            return False

    def _deadline(self) -> float | None:
        """Deadline of the node's own termination, if it is being terminated."""
        node = self._deps.node()
        if node is None or node.deletion_timestamp is None:
            return None
        found = deadline_of(node, None, self._policy)
        return None if found is None else found.at

    # Calls of the sequence and the deleter.

    def range_began(self, event: RangeStarted) -> None:
        """See SequenceListener."""
        now = self._deps.clock.now()
        self._deleted.update(pod.uid for pod in event.pods)
        if self._trace:
            self._trace.range_began(event.number, event.wave.name, event.pods, now)
        until = format_time(now + event.seconds)
        self._report(f"{event.wave.name}: deleting {describe(event.pods)}; until {until} ({event.seconds:.0f} s)")

    def range_over(self, event: RangeEnded) -> None:
        """See SequenceListener."""
        now = self._deps.clock.now()
        if self._trace:
            self._trace.range_over(event.left, now)
        if not event.left:
            logger.info("%s: all pods gone after %.1f s", event.wave.name, event.seconds, extra=self._keys)
            return
        message = (
            f"{event.wave.name}: {event.ending}; no longer waiting for {describe(event.left)}, left after "
            f"{event.seconds:.0f} s"
        )
        self._deps.reporter.emit(EventReason.NODE_SHUTDOWN_OVERDUE, message, "Warning", dedup_key=event.wave.name)

    def over(self, result: SequenceResult) -> None:
        """See SequenceListener; `_over` reports it, with the result."""

    def deleted(self, deletion: Deletion, pod: Pod | None) -> None:
        """See DeletionListener. `pod`: its cached object; a pod that came late is in no RangeStarted."""
        self._deleted.add(deletion.pod.uid)
        if self._trace:
            if pod is not None and pod.uid == deletion.pod.uid:
                self._trace.pod_started(pod, self._deps.clock.now())
            self._trace.deleted(deletion, self._deps.clock.now())

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener."""
        if self._trace:
            self._trace.refused(pod.uid, refusal, self._deps.clock.now())

    def pod_gone(self, uid: str) -> None:
        """A pod of the node is gone."""
        if self._trace:
            self._trace.gone(uid, self._deps.clock.now())

    # End of the shutdown.

    def _over(self, result: SequenceResult) -> None:
        took = f"{result.seconds:.0f} s"
        if not result.is_known:
            self._end(
                ShutdownOutcome.OVERDUE,
                f"shutdown proceeds after {took}: no pod deleted, the API server did not list them",
            )
        elif result.left:
            self._end(ShutdownOutcome.OVERDUE, f"shutdown proceeds after {took}: left {describe(result.left)}")
        else:
            gone = f"{counted(len(self._deleted), 'pod')} gone after {took}" if self._deleted else "no pods to wait for"
            self._end(ShutdownOutcome.FINISHED, f"{gone}; shutdown proceeds")

    def _end(self, outcome: ShutdownOutcome, message: str) -> None:
        self.outcome = outcome
        now = self._deps.clock.now()
        type_: EventType = "Warning" if outcome is ShutdownOutcome.OVERDUE else "Normal"
        self._deps.reporter.emit(EventReason.NODE_SHUTDOWN, message, type_, dedup_key="over")
        self._deps.condition.set("PodsLeft" if outcome is ShutdownOutcome.OVERDUE else "PodsGone", message)
        if self._trace:
            self._trace.close(now, outcome.value, "" if outcome is ShutdownOutcome.FINISHED else message)

    def _note_cancelled(self) -> None:
        if self.outcome is None:
            self.outcome = ShutdownOutcome.CANCELLED
            if self._trace:
                self._trace.close(self._deps.clock.now(), ShutdownOutcome.CANCELLED.value)

    def _report(self, message: str) -> None:
        self._deps.reporter.emit(EventReason.NODE_SHUTDOWN, message, dedup_key=message)
        self._deps.condition.set("WaitingForPods", message)

    @property
    def _keys(self) -> dict[str, str]:
        return {"node": self._deps.name}


class ShutdownOutcome(StrEnum):
    """Outcome of a shutdown, as far as pods are concerned."""

    FINISHED = "finished"
    OVERDUE = "overdue"
    CANCELLED = "cancelled"


class AgentStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot. `is_locked`: a shutdown would be noticed, and would wait. `granted`, `wanted`: seconds that a shutdown
    waits, and should; `began`, `ended`: Unix seconds of the last shutdown, None if there was none, or it has not ended;
    `waiting_pods`: pods that it waits for."""

    is_locked: bool = False
    granted: float | None = None
    wanted: float | None = None
    outcomes: Mapping[ShutdownOutcome, int] = msgspec.field(default_factory=Counter)
    began: float | None = None
    ended: float | None = None
    waiting_pods: int = 0


def agent_samples(agent: AgentStatistics) -> Iterator[Sample]:
    """Samples for every value of every label."""
    yield Sample(metrics.SHUTDOWN_LOCK, (), int(agent.is_locked))
    yield Sample(metrics.SHUTDOWN_DELAY, ("granted",), agent.granted or 0)
    yield Sample(metrics.SHUTDOWN_DELAY, ("wanted",), agent.wanted or 0)
    for outcome in ShutdownOutcome:
        yield Sample(metrics.SHUTDOWNS, (outcome.value,), agent.outcomes.get(outcome, 0))
    yield Sample(metrics.SHUTDOWN_BEGAN, (), agent.began or 0)
    yield Sample(metrics.SHUTDOWN_ENDED, (), agent.ended or 0)
    yield Sample(metrics.SHUTDOWN_PODS, (), agent.waiting_pods)
