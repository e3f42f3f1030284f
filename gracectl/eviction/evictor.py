"""Evictor: a serial queue for each PodDisruptionBudget over all nodes, a bounded parallel queue for pods without one.

`set_pods` says which pods of a node are to be evicted now, as a whole set each time; the evictor sorts them into PDB
queues, each of which evicts one pod at a time. PDB queues are keys of a work queue, so "one in flight per budget" is
the work queue's guarantee, and a PDB queue without changes costs nothing. An eviction that takes longer than
SLOW_SECONDS, behind a webhook, is left in flight, and the queue goes on with the next pod. Invariant: a pod that the
server has agreed to evict is never requested again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, Protocol, get_args

import anyio
import msgspec

from gracectl.eviction.fairness import Workload, namespace_of, workload_of
from gracectl.eviction.pdb_queue import Evict, EvictionCandidate, Idle, PdbQueue, PodLookup, Wait
from gracectl.eviction.settings import PLACES_PER_NAMESPACE, EvictionSettings
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.requests import named
from gracectl.kube.resources import PODS
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.foreign import harmless
from gracectl.model.pod import Pod
from gracectl.policy.budgets import BudgetKey
from gracectl.runtime.background import Background
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram, empty_distribution
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.shares import SLOW_SECONDS, Shares, Slow
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.telemetry.metrics import PDB_QUEUE_WAIT

QueueKey = tuple[BudgetKey, ...] | str
"""The budgets that its pods share or, for a pod without a budget, the pod's UID."""

BudgetCount = Literal["one", "several", "none"]
"""How many budgets select the pods of a queue; with several the eviction API refuses."""

BUDGET_COUNTS: Final[tuple[BudgetCount, ...]] = get_args(BudgetCount)

NAMESPACE_TERMINATING_SECONDS = 5.0
"""A namespace that is being deleted refuses evictions; its own controller deletes the pods meanwhile."""


LONGEST_REFUSAL: Final = 300
"""Maximum characters of a server's message."""


class EvictionListener(Protocol):
    """Receives the outcome of each eviction; must not block."""

    def evicted(self, candidate: EvictionCandidate) -> None:
        """The server has agreed; the pod has its full grace."""

    def refused(self, candidate: EvictionCandidate, error: errors.ApiError) -> None:
        """The server did not agree this time; the pod stays in its queue."""


class EvictorStatistics(msgspec.Struct, frozen=True):
    """Snapshot for metrics, `status` and tests. `results` counts requests by result.

    `pdb_queues` counts the queues of budgets, `longest` the pods in the longest queue. By number of budgets: `pods`
    wait now, the first of them for `oldest` seconds; `waits` are the seconds from joining a queue to the eviction.
    """

    pdb_queues: int = 0
    waiting: int = 0
    results: Mapping[str, int] = msgspec.field(default_factory=dict)
    longest: int = 0
    pods: Mapping[BudgetCount, int] = msgspec.field(default_factory=lambda: dict.fromkeys(BUDGET_COUNTS, 0))
    oldest: Mapping[BudgetCount, float] = msgspec.field(default_factory=lambda: dict.fromkeys(BUDGET_COUNTS, 0.0))
    waits: Mapping[BudgetCount, Distribution] = msgspec.field(
        default_factory=lambda: dict.fromkeys(BUDGET_COUNTS, empty_distribution(PDB_QUEUE_WAIT.buckets))
    )

    @property
    def requests(self) -> int:
        """Number of evictions requested."""
        return sum(self.results.values())


class Evictor:
    """Owner of the PDB queues. `set_pods` and `remove_node` may be called at any time; `run` sends the requests."""

    def __init__(
        self,
        client: KubeClient,
        pods: Cache[Pod],
        budgets: Cache[PodDisruptionBudget],
        clock: Clock,
        settings: EvictionSettings,
        backoff: Callable[[], Backoff],
    ) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._backoff = backoff
        self._lookup = PodLookup(pod=pods.get, budget=lambda key: budgets.get(*key))
        self._queues: dict[QueueKey, PdbQueue] = {}
        self._queue_of: dict[str, QueueKey] = {}  # by pod UID
        # By pod UID, since when (monotonic) it waits, in any queue of that kind.
        self._waiting_since: dict[BudgetCount, dict[str, float]] = {budgets: {} for budgets in BUDGET_COUNTS}
        self._pods_of_node: dict[str, frozenset[str]] = {}  # node to UIDs
        self._shared_queues: dict[BudgetKey, set[QueueKey]] = {}  # by budget, those of several budgets
        self._settled: dict[str, QueueKey] = {}  # by UID, pods that need no eviction any more and are cached
        self._unknown_outcome: set[str] = set()  # UIDs of pods with a failed eviction that may have happened
        self._refusals: dict[str, str] = {}  # by pod UID, what refuses its eviction, if that is no budget
        self._evicting: set[str] = set()  # UIDs of pods that are being evicted
        self._busy: set[QueueKey] = set()  # queues that are evicting a pod
        self._results: Counter[str] = Counter()
        self._waits = {budgets: Histogram(PDB_QUEUE_WAIT.buckets) for budgets in BUDGET_COUNTS}
        self._listeners: list[EvictionListener] = []
        self._budgeted: WorkQueue[QueueKey] = WorkQueue(clock, backoff)
        self._unbudgeted: WorkQueue[QueueKey] = WorkQueue(clock, backoff)
        self._calls = Background()
        self._bucket = TokenBucket(clock, settings.qps, settings.burst)
        places = PLACES_PER_NAMESPACE * settings.max_in_flight
        self._budgeted_shares = Shares[QueueKey](clock, places, self._group_of, namespace_of)
        self._unbudgeted_shares = Shares[QueueKey](clock, places, self._group_of, namespace_of)
        pods.subscribe(self._pod_changed)
        budgets.subscribe(self._budget_changed)

    def listen(self, listener: EvictionListener) -> None:
        """Subscribe to agreed and refused evictions."""
        self._listeners.append(listener)

    def configure(self, settings: EvictionSettings) -> None:
        """Apply new settings. Requests in flight continue, and no state is lost."""
        self._settings = settings
        self._bucket.configure(settings.qps, settings.burst)
        for shares in (self._budgeted_shares, self._unbudgeted_shares):
            shares.resize(PLACES_PER_NAMESPACE * settings.max_in_flight)
        for queue in self._queues.values():
            queue.configure(settings)

    def set_pods(self, node: str, candidates: Iterable[EvictionCandidate]) -> None:
        """Evict these pods of `node`, and no others. Idempotent; pods left out leave their queue."""
        wanted = {c.uid: c for c in candidates if c.uid not in self._settled}
        for uid in self._pods_of_node.get(node, frozenset()) - wanted.keys():
            self._dequeue(uid)
        for candidate in wanted.values():
            self._enqueue(candidate)
        if wanted:
            self._pods_of_node[node] = frozenset(wanted)
        else:
            self._pods_of_node.pop(node, None)

    def remove_node(self, node: str) -> None:
        """Stop evicting pods of `node`."""
        self.set_pods(node, ())

    async def run(self) -> None:
        """Send requests until cancelled; one in flight is finished first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._calls.run)
            group.start_soon(run_workers, self._budgeted, self._process, self._budgeted_shares)
            # A pod without a budget takes next to nothing to decide: what counts is that its places are always taken.
            group.start_soon(
                partial(run_workers, self._unbudgeted, self._process, self._unbudgeted_shares, in_bursts=True)
            )

    def is_evicting(self, uid: str) -> bool:
        """Whether an eviction of this pod is in flight: the watch may show its end before the response arrives."""
        return uid in self._evicting

    def refusal_of(self, uid: str) -> str:
        """Why the server has refused the eviction of this pod, and not for a budget; empty if it has not."""
        return self._refusals.get(uid, "")

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queues, by name."""
        return {
            "evictions-budgeted": self._budgeted.statistics(),
            "evictions-unbudgeted": self._unbudgeted.statistics(),
        }

    def statistics(self) -> EvictorStatistics:
        """Pods that wait, and results so far."""
        now = self._clock.monotonic()
        return EvictorStatistics(
            pdb_queues=sum(not isinstance(key, str) for key in self._queues),
            waiting=len(self._queue_of),
            results=dict(self._results),
            longest=max((len(queue.waiting) for queue in self._queues.values() if queue.budgets), default=0),
            pods={budgets: len(waiting) for budgets, waiting in self._waiting_since.items()},
            oldest={
                budgets: now - min(waiting.values(), default=now) for budgets, waiting in self._waiting_since.items()
            },
            waits={budgets: waits.statistics() for budgets, waits in self._waits.items()},
        )

    # Membership of the queues.

    def _enqueue(self, candidate: EvictionCandidate) -> None:
        key: QueueKey = candidate.budgets or candidate.uid
        before = self._queue_of.get(candidate.uid)
        if before == key and self._queues[key].waiting.get(candidate.uid) == candidate:
            return  # as nearly all pods of a node at nearly all plans of it
        since = self._clock.monotonic() if before is None else self._waiting_since[_budget_count(before)][candidate.uid]
        if before is not None and before != key:
            self._dequeue(candidate.uid)
        self._queue(key, candidate.budgets).add(candidate)
        self._queue_of[candidate.uid] = key
        self._waiting_since[_budget_count(key)][candidate.uid] = since
        if before != key:
            self._wake(key)

    def _queue(self, key: QueueKey, budgets: tuple[BudgetKey, ...]) -> PdbQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PdbQueue(budgets, self._settings, self._backoff(), self._clock.monotonic())
            if len(budgets) > 1:
                for budget in budgets:
                    self._shared_queues.setdefault(budget, set()).add(key)
        return queue

    def _dequeue(self, uid: str) -> None:
        key = self._queue_of.pop(uid, None)
        if key is not None:
            del self._waiting_since[_budget_count(key)][uid]
            self._refusals.pop(uid, None)
            self._queues[key].remove(uid)
            self._forget_if_idle(key)
            if uid in self._evicting:
                self._wake(key)  # the queue to which the pod has moved waits for this response

    def _forget_if_idle(self, key: QueueKey) -> None:
        queue = self._queues.get(key)
        # A queue that waits for a response must remember what that has cost.
        if queue is not None and queue.is_idle and key not in self._busy:
            del self._queues[key]
            for budget in queue.budgets if len(queue.budgets) > 1 else ():
                self._shared_queues[budget].discard(key)
                if not self._shared_queues[budget]:
                    del self._shared_queues[budget]

    def _wake(self, key: QueueKey) -> None:
        # A queue that is evicting a pod decides again when the response arrives.
        if key in self._queues and key not in self._busy:
            (self._unbudgeted if isinstance(key, str) else self._budgeted).add(key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        settled = self._settled.get(pod.uid) if new else self._settled.pop(pod.uid, None)
        waiting = self._queue_of.get(pod.uid)
        if new is None:
            self._unknown_outcome.discard(pod.uid)
        if new is None or new.deletion_timestamp is not None:
            self._dequeue(pod.uid)
        for key in (settled, waiting):
            if key is None or (queue := self._queues.get(key)) is None:
                continue
            # Of an evicted pod nothing matters but that the watch shows it to be going.
            if key == waiting or queue.is_unobserved(pod.uid):
                queue.pod_changed(pod.uid, self._lookup)
                self._wake(key)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        budget = new or old
        if budget is not None:
            for key in ((budget.key,), *self._shared_queues.get(budget.key, ())):
                if new is not None and (queue := self._queues.get(key)) is not None:
                    queue.budget_changed(new)
                self._wake(key)

    # Evicting from a queue.

    def _group_of(self, key: QueueKey) -> Hashable:
        """The workload of a pod without a budget, or of some pod of a queue: a budget is mostly over one workload. For
        a queue with only pods that hung before: the slow part of the group."""
        queue = self._queues.get(key)
        candidate = None if queue is None else next(iter(queue.waiting.values()), None)
        if candidate is None:
            return Workload("" if isinstance(key, str) else key[0][0], "")
        pod = self._lookup.pod(candidate.namespace, candidate.name)
        workload = workload_of(candidate.namespace, candidate.node, pod)
        if (
            not isinstance(key, str)
            and queue is not None
            and all(map(self._budgeted_shares.is_slow_key, queue.waiting))
        ):
            return Slow(workload)
        return workload

    async def _process(self, key: QueueKey) -> Requeue | None:
        queue = self._queues.get(key)
        if queue is None:
            return None
        match queue.decide(self._clock.monotonic(), self._lookup):
            case Idle():
                self._forget_if_idle(key)
                return None
            case Wait(seconds=seconds):
                return Requeue(seconds)
            case Evict() as request if request.candidate.uid in self._evicting:
                return None  # another queue is evicting it; the response wakes this one
            case Evict() as request:
                await self._evict_in_turn(key, queue, request)
                return Requeue(0) if key in self._queues else None

    async def _evict_in_turn(self, key: QueueKey, queue: PdbQueue, request: Evict) -> None:
        """Evict a pod; with a budget, until it is known that this hangs."""
        uid = request.candidate.uid
        self._evicting.add(uid)
        self._busy.add(key)
        eviction = partial(self._evict_to_the_end, key, queue, request)
        if not queue.has_room_to_hang():
            await eviction()
            return
        patience = 0.0 if self._budgeted_shares.is_slow_key(uid) else SLOW_SECONDS
        try:
            await self._calls.join(uid, eviction, patience)
        except TimeoutError:
            if self._calls.is_under_way(uid):
                queue.leave(request.candidate)
                self._busy.discard(key)
                self._budgeted_shares.hand_over(key, uid)

    async def _evict_to_the_end(self, key: QueueKey, queue: PdbQueue, request: Evict) -> None:
        uid = request.candidate.uid
        try:
            if isinstance(key, str) and not self._bucket.take():
                self._unbudgeted_shares.pause(key)
                await self._bucket.acquire()
                self._unbudgeted_shares.resume(key)
            if self._is_current(key, request.candidate):
                await self._evict(key, queue, request)
        finally:
            is_hanging = queue.is_hanging(uid)
            self._evicting.discard(uid)
            queue.end(uid)
            if is_hanging:
                self._budgeted_shares.end(uid, self._clock.monotonic())
                self._budgeted_shares.changed()
                self._wake(key)
            else:
                self._busy.discard(key)
            self._forget_if_idle(key)
            moved_to = self._queue_of.get(uid, key)
            if moved_to != key:
                self._wake(moved_to)

    def _is_current(self, key: QueueKey, candidate: EvictionCandidate) -> bool:
        """Whether this pod still waits in this queue: time may have passed since the queue chose it."""
        return self._queue_of.get(candidate.uid) == key and self._lookup.find(candidate) is not None

    async def _evict(self, key: QueueKey, queue: PdbQueue, request: Evict) -> None:
        pod = request.candidate
        if pod.uid in self._unknown_outcome:
            await self._resolve_outcome(key, queue, request)
            return  # the queue decides again
        versions, since = queue.versions(self._lookup), self._waiting_since[_budget_count(key)][pod.uid]
        queue.begin(pod)
        try:
            await self._client.evict(
                (pod.namespace, pod.name), uid=pod.uid, precondition=lambda: self._is_current(key, pod)
            )
        except errors.Superseded:
            return  # the pod changed while the client waited; the queue decides again
        except errors.NotLeading:
            queue.pause(self._clock.monotonic())  # not sent
        except errors.ApiError as error:
            self._results[type(error).__name__] += 1
            if error.is_gone:
                if isinstance(error, errors.Conflict):
                    queue.on_charged(request, self._clock.monotonic())  # recording eviction-of-another-uid
                self._settle(key, pod)
                return
            self._handle_error(queue, request, versions, error)
            for listener in self._listeners:
                listener.refused(pod, error)
        else:
            self._results["Evicted"] += 1
            self._waits[_budget_count(key)].observe(self._clock.monotonic() - since)
            queue.on_evicted(request, self._clock.monotonic())
            self._settle(key, pod)
            for listener in self._listeners:
                listener.evicted(pod)

    def _settle(self, key: QueueKey, pod: EvictionCandidate) -> None:
        """Mark that the pod no longer needs an eviction; it is not queued again even if a lagging cache shows it."""
        self._dequeue(pod.uid)
        self._unknown_outcome.discard(pod.uid)
        seen = self._lookup.pod(pod.namespace, pod.name)
        if seen is not None and seen.uid == pod.uid:  # else the watch was faster than the answer
            self._settled[pod.uid] = key

    def _handle_error(self, queue: PdbQueue, request: Evict, versions: tuple[str, ...], error: errors.ApiError) -> None:
        """Set how long the queue waits, by what the error means."""
        now = self._clock.monotonic()
        self._note_refusal(request.candidate.uid, error)
        match error:
            case errors.BudgetExhausted(retry_after=retry_after):
                queue.on_budget_exhausted(request, versions, now, retry_after)
            case errors.MultipleBudgets():
                queue.on_multiple_budgets(versions, now)
            case errors.Throttled(delay=delay):
                queue.pause(now, delay)
            case errors.NamespaceTerminating():
                queue.pause(now, NAMESPACE_TERMINATING_SECONDS)
            case errors.Unreachable(sent=False):
                queue.pause(now)
            case errors.ServerError() | errors.RequestTimeout() | errors.Unreachable():
                if queue.is_hanging(request.candidate.uid):
                    queue.postpone(request, now)
                else:
                    queue.pause(now)
                if self._lookup.find(request.candidate) is not None:
                    self._unknown_outcome.add(request.candidate.uid)
            case errors.AdmissionDenied(delay=delay):
                queue.postpone(request, now, delay)
            case errors.Invalid() | errors.Conflict() | errors.OtherNotFound() | errors.Forbidden(rbac=False):
                queue.postpone(request, now)
            case _:
                queue.pause(now)

    def _note_refusal(self, uid: str, error: errors.ApiError) -> None:
        match error:
            case errors.BudgetExhausted() | errors.MultipleBudgets() | errors.NamespaceTerminating():
                self._refusals.pop(uid, None)
            case errors.Throttled() | errors.Unreachable():
                pass  # they say nothing about this pod
            case _:
                self._refusals[uid] = f"{error.meaning}: {harmless(error.status_message, LONGEST_REFUSAL)}".rstrip(": ")

    async def _resolve_outcome(self, key: QueueKey, queue: PdbQueue, request: Evict) -> None:
        """After a failure that may have been a success: read the pod before any other is evicted."""
        candidate = request.candidate
        try:
            pod = await self._read(candidate)
        except errors.ApiError:
            queue.pause(self._clock.monotonic())
        else:
            if pod is None or pod.uid != candidate.uid:
                self._settle(key, candidate)
            elif pod.deletion_timestamp is not None:
                queue.on_evicted(request, self._clock.monotonic())
                self._settle(key, candidate)
            else:
                self._unknown_outcome.discard(candidate.uid)
                queue.move_to_back(request)

    async def _read(self, candidate: EvictionCandidate) -> Pod | None:
        """The pod of that name. A command may lack the right to get pods: then a list is read, of this pod only."""
        try:
            return await self._client.get(PODS, (candidate.namespace, candidate.name))
        except errors.NotFound:
            return None
        except errors.Forbidden:
            found = await read_all(self._client, PODS, named(candidate.name), namespace=candidate.namespace)
            return found[0] if found else None


def _budget_count(key: QueueKey) -> BudgetCount:
    return "none" if isinstance(key, str) else "one" if len(key) == 1 else "several"
