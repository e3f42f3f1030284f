"""Deletes the pods that would outlive a deadline, each at its own instant, with all the grace that is left for it.

Nodes say which of their pods are doomed and by when (`want`), as a whole set each time; a timer is armed for each.
A timer that fires only puts the pod's uid on a queue; a worker looks at the pod once more and sends a DELETE with its
uid. Invariants: no pod is deleted before its time; none is deleted twice with the same grace; what is overdue goes at
once, whoever was in charge before; who is refused is asked for again until nobody wants it any more.

A DELETE that was asked for again with less grace would take from the pod what the first one has promised, should that
one have been carried out and only its answer be lost. So after a failure that may have been a success the pod itself is
looked at first; only at the deadline, when all promises end, nothing is looked at. Whose time has a beginning
(`ScheduledDeletion.begins`) is told then, not as late as its grace allows, and the deadline is no second instant for
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from gracectl.eviction.deletion import Deletion, DeletionListener, ScheduledDeletion
from gracectl.eviction.promises import Promise, Promises, given, is_shown, promised
from gracectl.eviction.refusals import is_over, may_have_happened, patience
from gracectl.eviction.settings import PLACES_PER_NAMESPACE, EvictionSettings
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.resources import PODS
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import delete_at, grace_of, granted
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram, empty_distribution
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.timer_wheel import TimerWheel, TimerWheelStatistics
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.telemetry.metrics import DEADLINE_LATENESS

HAIR: Final = 1e-6
"""Two clocks that run together agree to within their rounding; what is left to wait below this is none."""

CROWDS: Final = 2
"""Of one namespace as many may be under way as evictions in both crowds: deadlines have whole seconds, so many pods are
due at once."""

LOOKED_AT_BETWEEN_TURNS: Final = 100
"""When the clock has jumped all pods are looked at anew, a few milliseconds at a time."""


class DeleterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `doomed` pods are wanted; `armed` of them wait for their instant, for `overdue` ones it has come and
    the server has not agreed yet, `failing` ones wait for another try.

    `deleted` counts the DELETEs that the server has agreed to, `answers` all of them by what came of them; `late` and
    `late_maximum` are seconds (see Deletion) of those agreed to.
    """

    doomed: int = 0
    armed: int = 0
    overdue: int = 0
    failing: int = 0
    deleted: int = 0
    answers: Mapping[str, int] = msgspec.field(default_factory=dict)
    late: Distribution = empty_distribution(DEADLINE_LATENESS.buckets)
    late_maximum: float = 0.0
    wheel: TimerWheelStatistics = TimerWheelStatistics()
    queue: QueueStatistics = QueueStatistics()


class _Order(msgspec.Struct, frozen=True):
    """What is to be asked for now: the pod as it is, and its grace."""

    pod: Pod
    grace: int


class _Case(msgspec.Struct, gc=False):
    """What is remembered of a doomed pod. Instants are monotonic, but for `at` and `sent`, which are the server's."""

    doomed: ScheduledDeletion
    at: float | None = None
    """When it is deleted; None: there is nothing to be done."""
    due: float = 0.0
    """That instant, or the one at which it became known."""
    not_before: float = 0.0
    """After a failure."""
    sent: float = 0.0
    late: float = 0.0
    """Both of the last request."""
    backoff: Backoff | None = None
    doubt: _Order | None = None
    """Has failed, and may have been carried out."""
    answered: anyio.Event | None = None

    def close(self) -> None:
        """There was an answer, or there will be none."""
        if self.answered is not None:
            self.answered.set()
            self.answered = None


class PodDeleter:
    """Owns the timers. `want` and `withdraw` may be called at any time; `run` does the deleting.

    `client` must not repeat requests: each try has its own grace. `settings.max_in_flight` bounds each of CROWDS of
    DELETEs under way in one namespace. `backoff` makes what a pod waits after failures.
    """

    def __init__(
        self,
        client: KubeClient,
        pods: Cache[Pod],
        clock: Clock,
        settings: EvictionSettings,
        backoff: Callable[[], Backoff],
    ) -> None:
        self._client = client
        self._clock = clock
        self._room = Shares(clock, _places(settings), self._namespace_of)
        self._backoff = backoff
        self._promises = Promises(pods)
        self._of_node: dict[str, dict[str, ScheduledDeletion]] = {}  # by uid
        self._cases: dict[str, _Case] = {}  # by uid
        self._queue: WorkQueue[str] = WorkQueue(clock)
        self._wheel: TimerWheel[str] = TimerWheel(clock, self._queue.add)
        self._jumped = anyio.Event()
        self._listeners: list[DeletionListener] = []
        self._answers: Counter[str] = Counter()
        self._asking: set[str] = set()  # the uids of the pods whose turn is being taken
        self._late = Histogram(DEADLINE_LATENESS.buckets)
        self._late_maximum = 0.0
        pods.subscribe(self._pod_changed)
        clock.subscribe(lambda: self._jumped.set())

    def listen(self, listener: DeletionListener) -> None:
        """Tell `listener` of every agreed and refused deletion."""
        self._listeners.append(listener)

    def configure(self, settings: EvictionSettings) -> None:
        """From now on these settings count. Every timer stays armed, and what is under way goes on."""
        self._room.resize(_places(settings))
        for case in self._cases.values():
            if case.backoff is not None:
                case.backoff.configure(settings.backoff_initial_seconds, settings.backoff_maximum_seconds)

    def want(self, node: str, doomed: Iterable[ScheduledDeletion]) -> None:
        """These pods of `node`, and no others, end by their deadline. Idempotent; those left out are spared."""
        wanted = {pod.uid: pod for pod in doomed}
        before = self._of_node.get(node, {})
        if wanted == before:
            return
        for uid in before:
            if uid not in wanted:
                self._spare(uid)
        for uid, pod in wanted.items():
            if before.get(uid) != pod:
                case = self._cases.setdefault(uid, _Case(pod))
                case.doomed, case.not_before = pod, 0.0
                self._look(case)
        if wanted:
            self._of_node[node] = wanted
        else:
            del self._of_node[node]

    def withdraw(self, node: str) -> None:
        """Nobody of `node` is to be deleted any more."""
        self.want(node, ())

    async def settle(self, node: str) -> None:
        """Return when whatever is due now on `node` has been answered by the server, one way or the other.

        Who waits after a failure is tried at once, once.
        """
        now = self._clock.now()
        awaited = []
        for case in [self._cases[uid] for uid in self._of_node.get(node, ())]:
            if case.at is not None and _is_due(case.at, now):
                case.not_before = 0.0
                case.answered = case.answered or anyio.Event()
                awaited.append(case.answered)
                self._queue.add(case.doomed.uid)
        for answered in awaited:
            await answered.wait()

    async def run(self) -> None:
        """Delete until cancelled; a request in flight is finished first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow_clock)
            group.start_soon(self._wheel.run)
            group.start_soon(partial(run_workers, self._queue, self._turn, self._room, in_bursts=True))

    def is_asking_for(self, uid: str) -> bool:
        """Whether the server is being asked for this pod's deletion: news of its end may come before the answer."""
        return uid in self._asking

    def statistics(self) -> DeleterStatistics:
        """Who is waited for, and what the server has answered so far."""
        now = self._clock.now()
        return DeleterStatistics(
            doomed=len(self._cases),
            armed=len(self._wheel),
            overdue=sum(case.at is not None and _is_due(case.at, now) for case in self._cases.values()),
            failing=sum(case.backoff is not None for case in self._cases.values()),
            deleted=self._answers["Deleted"],
            answers=dict(self._answers),
            late=self._late.statistics(),
            late_maximum=self._late_maximum,
            wheel=self._wheel.statistics(),
            queue=self._queue.statistics(),
        )

    # When whose time comes.

    def _look(self, case: _Case) -> None:
        """Arm the case's timer for what the pod, the deadline and the clock say now; if it is overdue, queue it."""
        uid, now, today = case.doomed.uid, self._clock.now(), self._clock.monotonic()
        at, _ = self._judge(case.doomed, now)
        if at is None:
            case.at = None
            self._wheel.cancel(uid)
            case.close()
            return
        due = today + max(at - now, 0.0)
        is_ahead = not _is_due(at, now)
        # Of an instant that has passed, the first news counts.
        case.due = due if is_ahead or at != case.at else min(case.due, due)
        case.at = at
        if is_ahead:
            # Rounded as the wheel asks for.
            if self._wheel.due_at(uid) != (instant := round(due, 6)):
                self._wheel.arm(uid, instant)
        else:
            self._wheel.cancel(uid)
            self._queue.add(uid)

    def _judge(self, doomed: ScheduledDeletion, now: float) -> tuple[float | None, _Order | None]:
        """When to delete the pod (None: never), and what to ask for if that time has come."""
        pod = self._promises.pod(doomed.namespace, doomed.name, doomed.uid)
        at = None if pod is None else delete_at(pod, doomed.deadline, now, doomed.begins)
        if pod is None or at is None or not _is_due(at, now):
            return at, None
        # Not `now`, which may be a hair before: a second would be counted that is not there.
        grace = granted(pod, doomed.deadline, max(now, at))
        return (None, None) if grace is None else (at, _Order(pod, grace))

    def _spare(self, uid: str) -> None:
        self._wheel.cancel(uid)
        self._cases.pop(uid).close()

    def _is_current(self, case: _Case) -> bool:
        return self._cases.get(case.doomed.uid) is case

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._promises.note(old, new)
        pod = new or old
        case = None if pod is None else self._cases.get(pod.uid)
        if case is None:
            return
        if new is not None and case.doubt is not None and is_shown(new, case.doubt.grace):
            self._agreed(case, case.doubt, None)
        self._look(case)

    async def _follow_clock(self) -> None:
        """When the server's clock turns out to be another than we thought, every instant lies elsewhere on ours."""
        while True:
            await self._jumped.wait()
            self._jumped = anyio.Event()
            for number, case in enumerate(tuple(self._cases.values()), start=1):
                if self._is_current(case):
                    self._look(case)
                if number % LOOKED_AT_BETWEEN_TURNS == 0:
                    await anyio.lowlevel.checkpoint()

    # The turn of a pod.

    def _namespace_of(self, uid: str) -> str:
        case = self._cases.get(uid)
        return "" if case is None else case.doomed.namespace

    async def _turn(self, uid: str) -> Requeue | None:
        case = self._cases.get(uid)
        if case is None:
            return None
        now, today = self._clock.now(), self._clock.monotonic()
        _, order = self._judge(case.doomed, now)
        if order is None:
            case.backoff = None
            case.close()
            self._look(case)
            return None
        if case.not_before - today > HAIR:
            return Requeue(case.not_before - today)
        try:
            if case.doubt is not None and (now < case.doomed.deadline or case.doomed.begins is not None):
                await self._clear_doubt(case, case.doubt)
            else:
                await self._ask(case, order)
        except errors.Superseded:
            pass  # the world has moved on while the client waited: decide anew
        except errors.ApiError as refusal:
            return Requeue(self._set_back(case, order, refusal))
        if self._is_current(case):
            self._look(case)
        return None

    async def _ask(self, case: _Case, order: _Order) -> None:
        """Ask for the deletion. Raises ApiError; Superseded if time or the world have changed what is to be asked."""
        doomed = case.doomed
        case.doubt = None

        def is_meant() -> bool:
            case.late = max(self._clock.monotonic() - case.due, 0.0)
            case.sent = self._clock.now()
            _, newest = self._judge(doomed, case.sent)
            return self._is_current(case) and newest is not None and newest.grace == order.grace

        self._asking.add(doomed.uid)
        try:
            await self._client.delete(PODS, doomed.key, uid=doomed.uid, grace_seconds=order.grace, is_meant=is_meant)
        except errors.ApiError as refusal:
            if not isinstance(refusal, errors.Superseded | errors.NotLeading):
                self._answers[type(refusal).__name__] += 1
            if not is_over(refusal):
                raise
            self._gone(case)
        else:
            self._answers["Deleted"] += 1
            # An answer may be long on its way: the grace counts from when the server was asked.
            self._agreed(case, order, promised(order.pod, order.grace, case.sent))
        finally:
            self._asking.discard(doomed.uid)

    async def _clear_doubt(self, case: _Case, asked: _Order) -> None:
        """After a failure that may have been a success: look at the pod itself. Raises ApiError."""
        try:
            pod = await self._client.get(PODS, case.doomed.key)
        except errors.NotFound:
            self._gone(case)
            return
        if case.doubt is not asked:
            return  # the watch was faster
        if pod.uid != case.doomed.uid:
            self._gone(case)
        elif is_shown(pod, asked.grace):
            self._agreed(case, asked, given(pod))
        else:
            case.doubt = None

    def _agreed(self, case: _Case, order: _Order, promise: Promise | None) -> None:
        """The server will end the pod as asked; `promise` is what the cache may not show yet."""
        doomed = case.doomed
        if promise is not None:
            self._promises.keep(doomed.uid, doomed.key, promise)
        self._over(case)
        self._late.observe(case.late)
        self._late_maximum = max(self._late_maximum, case.late)
        deletion = Deletion(doomed, order.grace, grace_of(order.pod), given(order.pod), case.late)
        for listener in self._listeners:
            listener.deleted(deletion)

    def _gone(self, case: _Case) -> None:
        self._promises.keep(case.doomed.uid, case.doomed.key, Promise(0, self._clock.now()))
        self._over(case)

    def _over(self, case: _Case) -> None:
        case.backoff = case.doubt = None
        case.not_before = 0.0
        case.close()

    def _set_back(self, case: _Case, order: _Order, refusal: errors.ApiError) -> float:
        """Remember a failure; the seconds until the next try. That is never later than a deadline at which all that is
        left has to go."""
        case.backoff = case.backoff or self._backoff()
        wait = max(case.backoff.next(), patience(refusal))
        left = case.doomed.deadline - self._clock.now()
        if left > HAIR and case.doomed.begins is None:
            wait = min(wait, left)
        case.not_before = self._clock.monotonic() + wait
        if refusal.operation.verb == "delete" and not isinstance(refusal, errors.NotLeading):
            if may_have_happened(refusal):
                case.doubt = order
            for listener in self._listeners:
                listener.not_deleted(case.doomed, refusal)
        case.close()
        return wait


def _places(settings: EvictionSettings) -> int:
    return PLACES_PER_NAMESPACE * CROWDS * settings.max_in_flight


def _is_due(at: float, now: float) -> bool:
    return at - now <= HAIR
