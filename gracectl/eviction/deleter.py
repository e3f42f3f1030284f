"""Deleter: deletes the pods that would outlive a deadline, each at its own instant, with all the grace that is left.

`set_pods` says which pods of a node are to be deleted and by when, as a whole set each time; a timer is armed for
each. A timer only puts the pod's UID on a queue; a worker reads the pod once more and sends a DELETE with its UID.
Invariants: no pod is deleted before its time; none is deleted twice with the same grace; what is overdue is deleted
at once, also after a takeover; a refused deletion is repeated until it is cancelled.

    DELETE ──▶ error, may have been carried out ──▶ GET the pod ──▶ terminating as requested: done
                                                              └──▶ still running: DELETE, with the grace left by then

The GET is needed because a repeated DELETE has less grace and would shorten what the first one, if carried out, has
given. At the deadline there is no grace left to protect, so nothing is read. A deletion that was due before this
process led may have been sent by the leader before, and a watch that lags does not show it: the pod is read first, too.
A deletion with a beginning (`ScheduledDeletion.begins`) is sent then, not as late as its grace allows, and not again at
the deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

import anyio
import anyio.lowlevel
import msgspec

from gracectl.eviction.connections import ConnectionOpener
from gracectl.eviction.deletions import (
    PendingDeletion,
    PendingDeletions,
    ScheduledDeletion,
    expected_deletion,
    is_terminating_within,
    pending_deletion,
)
from gracectl.eviction.disruption_target import DisruptionMarker
from gracectl.eviction.fairness import Workload, namespace_of, workload_of
from gracectl.eviction.settings import PLACES_PER_NAMESPACE, EvictionSettings
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.resources import PODS
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import delete_at, grace_of, granted
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram, empty_distribution
from gracectl.runtime.notifier import Wakeup
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.timer_wheel import TimerWheel, TimerWheelStatistics
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.telemetry.metrics import DEADLINE_LATENESS

ROUNDING_SECONDS: Final = 1e-6
"""Two clocks that run together agree to within their rounding; a shorter wait is none."""

PLACES_FACTOR: Final = 2
"""For one workload as many deletions may be in flight as evictions with and without budgets: deadlines are whole
seconds, so many pods are due at once.
"""

RESOLUTION_SECONDS: Final = 0.001
"""How late the timer of a deletion fires at most. Of all that are due in a second each waits for those before it: ten
milliseconds, as timers have elsewhere, would be a fifth of what the last of them may be late.
"""

RESCHEDULED_PER_TURN: Final = 100
"""After a clock jump all pods are rescheduled, a few milliseconds at a time."""


class Deletion(msgspec.Struct, frozen=True):
    """A deletion that the server has agreed to.

    `granted`: seconds of grace; `requested`: the pod's own terminationGracePeriodSeconds; `before`: the grace granted
    earlier if the pod was already terminating, else None. `late`: seconds from the instant at which it was due, or at
    which that became known, to the request.
    """

    pod: ScheduledDeletion
    granted: int
    requested: int
    before: PendingDeletion | None
    late: float


class DeletionListener(Protocol):
    """Receives the outcome of each deletion; must not block."""

    def deleted(self, deletion: Deletion) -> None:
        """The server has agreed."""

    def not_deleted(self, pod: ScheduledDeletion, error: errors.ApiError) -> None:
        """The server did not agree this time; the deletion is repeated."""


class DeleterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot. `scheduled` deletions are known; `armed` of them wait for their instant, `overdue` ones have reached
    it without consent of the server, `failing` ones wait for another try.

    `deleted` counts the DELETEs that the server has agreed to, `results` all requests by what came of them; `late`
    is in seconds (see Deletion), of those agreed to.
    """

    scheduled: int = 0
    armed: int = 0
    overdue: int = 0
    failing: int = 0
    deleted: int = 0
    results: Mapping[str, int] = msgspec.field(default_factory=dict)
    late: Distribution = empty_distribution(DEADLINE_LATENESS.buckets)
    wheel: TimerWheelStatistics = TimerWheelStatistics()


class _DeleteRequest(msgspec.Struct, frozen=True):
    """Deletion to request now: the current pod, and its grace."""

    pod: Pod
    grace: int


class _DeletionState(msgspec.Struct, gc=False):
    """State of a scheduled deletion. Instants are monotonic, but for `at` and `sent`: those are on the server's
    clock.
    """

    deletion: ScheduledDeletion
    at: float | None = None
    """When the pod is deleted; None: nothing to do."""
    due: float = 0.0
    """That instant, or the one at which it became known."""
    not_before: float = 0.0
    """After a failure."""
    sent: float = 0.0
    late: float = 0.0
    """Both of the last request."""
    backoff: Backoff | None = None
    unknown: _DeleteRequest | None = None
    """Request that failed and may have been carried out."""
    is_read: bool = False
    """Whether the pod was read from the server."""
    responded: anyio.Event | None = None

    def close(self) -> None:
        """Wake tasks that wait for a response: it has arrived, or will not."""
        if self.responded is not None:
            self.responded.set()
            self.responded = None


class PodDeleter:
    """Owner of the timers. `set_pods` and `remove_node` may be called at any time; `run` sends the requests.

    `client` must not repeat requests: each try has its own grace. `settings.max_in_flight` times PLACES_FACTOR bounds
    the DELETEs in flight for one workload. `backoff` makes the backoff of a pod after failures, `condition` the
    condition DisruptionTarget of a pod before its deletion.
    """

    def __init__(
        self,
        client: KubeClient,
        pods: Cache[Pod],
        clock: Clock,
        settings: EvictionSettings,
        backoff: Callable[[], Backoff],
        condition: Callable[[ScheduledDeletion], ConditionUpdate],
    ) -> None:
        self._client = client
        self._clock = clock
        self._marker = DisruptionMarker(client, clock, settings, condition)
        self._shares = Shares(clock, _places(settings), self._workload_of, namespace_of)
        self._backoff = backoff
        self._started = clock.monotonic()
        self._pending = PendingDeletions(pods)
        self._deletions_of_node: dict[str, dict[str, ScheduledDeletion]] = {}  # by uid
        self._states: dict[str, _DeletionState] = {}  # by uid
        self._queue: WorkQueue[str] = WorkQueue(clock)
        self._wheel: TimerWheel[str] = TimerWheel(clock, self._queue.add, resolution=RESOLUTION_SECONDS)
        self._connections = ConnectionOpener(client, clock, self._wheel)
        self._jumped = Wakeup()
        self._listeners: list[DeletionListener] = []
        self._results: Counter[str] = Counter()
        self._deleting: set[str] = set()  # by uid
        self._late = Histogram(DEADLINE_LATENESS.buckets)
        pods.subscribe(self._pod_changed)
        clock.subscribe(self._jumped.set)

    def listen(self, listener: DeletionListener) -> None:
        """Subscribe to agreed and refused deletions."""
        self._listeners.append(listener)

    def configure(self, settings: EvictionSettings) -> None:
        """Apply new settings. Timers stay armed, and requests in flight continue."""
        self._shares.resize(_places(settings))
        self._marker.configure(settings)
        for state in self._states.values():
            if state.backoff is not None:
                state.backoff.configure(settings.backoff_initial_seconds, settings.backoff_maximum_seconds)

    def set_pods(self, node: str, deletions: Iterable[ScheduledDeletion]) -> None:
        """Delete these pods of `node`, and no others, by their deadlines. Idempotent; deletions left out are
        cancelled.
        """
        wanted = {pod.uid: pod for pod in deletions}
        before = self._deletions_of_node.get(node, {})
        if wanted == before:
            return
        for uid in before:
            if uid not in wanted:
                self._cancel(uid)
        for uid, pod in wanted.items():
            if before.get(uid) != pod:
                state = self._states.setdefault(uid, _DeletionState(pod))
                state.deletion, state.not_before = pod, 0.0
                self._schedule(state)
        if wanted:
            self._deletions_of_node[node] = wanted
        else:
            del self._deletions_of_node[node]

    def remove_node(self, node: str) -> None:
        """Stop deleting pods of `node`."""
        self.set_pods(node, ())

    async def settle(self, node: str) -> None:
        """Wait until the server has responded to every deletion that is due now on `node`, with any result.

        A deletion that waits after a failure is retried once, immediately.
        """
        now = self._clock.now()
        responses = []
        for state in [self._states[uid] for uid in self._deletions_of_node.get(node, ())]:
            if state.at is not None and _is_due(state.at, now):
                state.not_before = 0.0
                state.responded = state.responded or anyio.Event()
                responses.append(state.responded)
                self._queue.add(state.deletion.uid)
        for response in responses:
            await response.wait()

    async def run(self) -> None:
        """Delete until cancelled; a request in flight is finished first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow_clock)
            group.start_soon(self._marker.run)
            group.start_soon(self._wheel.run)
            group.start_soon(self._connections.run)
            group.start_soon(partial(run_workers, self._queue, self._process, self._shares, in_bursts=True))

    def is_deleting(self, uid: str) -> bool:
        """Whether a deletion of this pod is in flight: the watch may show its end before the response arrives."""
        return uid in self._deleting

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"deletions": self._queue.statistics()}

    def statistics(self) -> DeleterStatistics:
        """Deletions that wait, and results so far."""
        now = self._clock.now()
        return DeleterStatistics(
            scheduled=len(self._states),
            armed=len(self._wheel),
            overdue=sum(state.at is not None and _is_due(state.at, now) for state in self._states.values()),
            failing=sum(state.backoff is not None for state in self._states.values()),
            deleted=self._results["Deleted"],
            results=dict(self._results),
            late=self._late.statistics(),
            wheel=self._wheel.statistics(),
        )

    # Timers.

    def _schedule(self, state: _DeletionState) -> None:
        """Arm the timer for what the pod, the deadline and the clock say now; if it is overdue, queue it."""
        uid, now, today = state.deletion.uid, self._clock.now(), self._clock.monotonic()
        at, _ = self._decide(state.deletion, now)
        if at is None:
            state.at = None
            self._wheel.cancel(uid)
            self._marker.skip(uid)
            state.close()
            return
        due = today + max(at - now, 0.0)
        is_ahead = not _is_due(at, now)
        # An instant that has passed counts from when it was first known.
        state.due = due if is_ahead or at != state.at else min(state.due, due)
        state.at = at
        self._mark_before(state)
        if is_ahead:
            # In steps of the wheel.
            if self._wheel.due_at(uid) != (instant := round(due, 6)):
                self._wheel.arm(uid, instant)
                self._connections.armed()
        else:
            self._wheel.cancel(uid)
            self._queue.add(uid)

    def _mark_before(self, state: _DeletionState) -> None:
        deletion = state.deletion
        pod = self._pending.pod(deletion.namespace, deletion.name, deletion.uid)
        # An eviction has marked a terminating pod; other clients mean no disruption. Other owners write no condition.
        if pod is None or pod.deletion_timestamp is not None or deletion.owner:
            self._marker.skip(deletion.uid)
        else:
            self._marker.schedule(deletion, state.due)

    def _decide(self, deletion: ScheduledDeletion, now: float) -> tuple[float | None, _DeleteRequest | None]:
        """When to delete the pod (None: never), and the request if it is due."""
        pod = self._pending.pod(deletion.namespace, deletion.name, deletion.uid)
        at = None if pod is None else delete_at(pod, deletion.deadline, now, deletion.begins)
        if pod is None or at is None or not _is_due(at, now):
            return at, None
        # Not `now`, which may be before `at` by a rounding: the grace would be a second too long.
        grace = granted(pod, deletion.deadline, max(now, at))
        return (None, None) if grace is None else (at, _DeleteRequest(pod, grace))

    def _cancel(self, uid: str) -> None:
        self._wheel.cancel(uid)
        self._marker.forget(uid)
        self._states.pop(uid).close()

    def _is_current(self, state: _DeletionState) -> bool:
        return self._states.get(state.deletion.uid) is state

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._pending.pod_changed(old, new)
        pod = new or old
        state = None if pod is None else self._states.get(pod.uid)
        if state is None:
            return
        if new is not None and state.unknown is not None and is_terminating_within(new, state.unknown.grace):
            self._on_deleted(state, state.unknown, None)
        self._schedule(state)

    async def _follow_clock(self) -> None:
        """Reschedule all deletions when the assumed difference of the server's clock changes."""
        while True:
            await self._jumped.wait()
            for number, state in enumerate(tuple(self._states.values()), start=1):
                if self._is_current(state):
                    self._schedule(state)
                if number % RESCHEDULED_PER_TURN == 0:
                    await anyio.lowlevel.checkpoint()

    # Requests.

    def _workload_of(self, uid: str) -> Workload:
        state = self._states.get(uid)
        if state is None:
            return Workload("", "")
        deletion = state.deletion
        pod = self._pending.pod(deletion.namespace, deletion.name, deletion.uid)
        return workload_of(deletion.namespace, deletion.node, pod)

    async def _process(self, uid: str) -> Requeue | None:
        state = self._states.get(uid)
        if state is None:
            return None
        now, today = self._clock.now(), self._clock.monotonic()
        _, request = self._decide(state.deletion, now)
        if request is None:
            state.backoff = None
            state.close()
            self._schedule(state)
            return None
        if state.not_before - today > ROUNDING_SECONDS:
            return Requeue(state.not_before - today)
        try:
            has_grace = now < state.deletion.deadline or state.deletion.begins is not None
            if state.unknown is not None and has_grace:
                await self._resolve_outcome(state, state.unknown)
            elif has_grace and self._is_of_leader_before(state):
                await self._read_pod(state)
            else:
                await self._delete(state, request)
        except errors.Superseded:
            pass  # the pod or the clock changed while the client waited: decide again
        except errors.ApiError as error:
            return Requeue(self._handle_error(state, request, error))
        if self._is_current(state):
            self._schedule(state)
        return None

    async def _delete(self, state: _DeletionState, request: _DeleteRequest) -> None:
        """Send the DELETE. Raises ApiError; Superseded if time or a change has altered the request."""
        deletion = state.deletion
        state.unknown = None

        def precondition() -> bool:
            state.late = max(self._clock.monotonic() - state.due, 0.0)
            state.sent = self._clock.now()
            _, newest = self._decide(deletion, state.sent)
            return self._is_current(state) and newest is not None and newest.grace == request.grace

        self._deleting.add(deletion.uid)
        try:
            await self._client.delete(
                PODS, deletion.key, uid=deletion.uid, grace_seconds=request.grace, precondition=precondition
            )
        except errors.ApiError as error:
            if not isinstance(error, errors.Superseded | errors.NotLeading):
                self._results[type(error).__name__] += 1
            if not error.is_gone:
                raise
            self._on_gone(state)
        else:
            self._results["Deleted"] += 1
            # A response may take long: the grace counts from the request.
            self._on_deleted(state, request, expected_deletion(request.pod, request.grace, state.sent))
        finally:
            self._deleting.discard(deletion.uid)

    def _is_of_leader_before(self, state: _DeletionState) -> bool:
        """Whether another leader may have sent this deletion, as far as this process has seen of the pod."""
        if state.is_read or state.at is None or state.deletion.begins is not None:  # an agent has no leader before it
            return False
        return self._clock.now() - state.at > self._clock.monotonic() - self._started + ROUNDING_SECONDS

    async def _read_pod(self, state: _DeletionState) -> None:
        """Read how a pod terminates that the leader before may have deleted. Raises ApiError."""
        try:
            pod = await self._client.get(PODS, state.deletion.key)
        except errors.NotFound:
            self._on_gone(state)
            return
        state.is_read = True
        if pod.uid != state.deletion.uid:
            self._on_gone(state)
        elif (pending := pending_deletion(pod)) is not None:
            self._pending.add(pod.uid, state.deletion.key, pending)

    async def _resolve_outcome(self, state: _DeletionState, request: _DeleteRequest) -> None:
        """After a failure that may have been a success: read the pod. Raises ApiError."""
        try:
            pod = await self._client.get(PODS, state.deletion.key)
        except errors.NotFound:
            self._on_gone(state)
            return
        if state.unknown is not request:
            return  # the watch was faster
        if pod.uid != state.deletion.uid:
            self._on_gone(state)
        elif is_terminating_within(pod, request.grace):
            self._on_deleted(state, request, pending_deletion(pod))
        else:
            state.unknown = None

    def _on_deleted(self, state: _DeletionState, request: _DeleteRequest, pending: PendingDeletion | None) -> None:
        """The server will end the pod as requested; `pending` is what the cache may not show yet."""
        scheduled = state.deletion
        if pending is not None:
            self._pending.add(scheduled.uid, scheduled.key, pending)
        self._reset(state)
        self._late.observe(state.late)
        deletion = Deletion(scheduled, request.grace, grace_of(request.pod), pending_deletion(request.pod), state.late)
        for listener in self._listeners:
            listener.deleted(deletion)

    def _on_gone(self, state: _DeletionState) -> None:
        self._pending.add(state.deletion.uid, state.deletion.key, PendingDeletion(0, self._clock.now()))
        self._reset(state)

    def _reset(self, state: _DeletionState) -> None:
        state.backoff = state.unknown = None
        state.not_before = 0.0
        state.close()

    def _handle_error(self, state: _DeletionState, request: _DeleteRequest, error: errors.ApiError) -> float:
        """Remember a failure; returns the seconds until the next try, never later than the deadline, at which all
        grace ends.
        """
        state.backoff = state.backoff or self._backoff()
        wait = max(state.backoff.next(), error.delay if isinstance(error, errors.Delaying) else 0.0)
        left = state.deletion.deadline - self._clock.now()
        if left > ROUNDING_SECONDS and state.deletion.begins is None:
            wait = min(wait, left)
        state.not_before = self._clock.monotonic() + wait
        if error.operation.verb == "delete" and not isinstance(error, errors.NotLeading):
            if error.is_outcome_unknown:
                state.unknown = request
            for listener in self._listeners:
                listener.not_deleted(state.deletion, error)
        state.close()
        return wait


def _places(settings: EvictionSettings) -> int:
    return PLACES_PER_NAMESPACE * PLACES_FACTOR * settings.max_in_flight


def _is_due(at: float, now: float) -> bool:
    return at - now <= ROUNDING_SECONDS
