"""Asks pods to leave: a serial lane for every budget over all nodes, a bounded crowd for pods without one.

Nodes say which of their pods' turn it is (`want`), as a whole set each time; the evictor sorts them into lanes, and
each asks for one pod at a time. Lanes are keys of a work queue, so "one in flight per budget" is the queue's promise,
and a lane without news costs nothing. Invariant: a pod that the server has agreed to evict is never asked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, Protocol, get_args

import anyio
import msgspec

from gracectl.eviction.lane import Ask, Candidate, Done, Look, PdbQueue, Sleep
from gracectl.eviction.refusals import is_over
from gracectl.eviction.settings import PLACES_PER_NAMESPACE, EvictionSettings
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.resources import PODS
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import BudgetKey
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution, Histogram, empty_distribution
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.telemetry.metrics import PDB_QUEUE_WAIT

LaneKey = tuple[BudgetKey, ...] | str
"""The budgets that its pods share or, for a pod without a budget, the pod's UID."""

Budgets = Literal["one", "several", "none"]
"""How many budgets the pods of a lane have: with several nobody can evict them."""

BUDGETS: Final[tuple[Budgets, ...]] = get_args(Budgets)

NAMESPACE_PATIENCE_SECONDS = 5.0
"""A namespace that is being deleted refuses evictions; its own controller deletes the pods meanwhile."""


class EvictionListener(Protocol):
    """Is told what became of a pod; must not block."""

    def evicted(self, candidate: Candidate) -> None:
        """The server has agreed; the pod has its full grace."""

    def refused(self, candidate: Candidate, refusal: errors.ApiError) -> None:
        """The server did not agree this time; the pod stays in its lane."""


class EvictorStatistics(msgspec.Struct, frozen=True):
    """A snapshot for metrics, `status` and tests. `answers` counts evictions that were asked for by what came of them.

    `lanes` are those of budgets, `deepest` is how many pods wait in the fullest of them. By how many budgets they have:
    `pods` wait now, the longest for `oldest` seconds; `waits` are the seconds from joining to the server's consent.
    """

    lanes: int = 0
    waiting: int = 0
    answers: Mapping[str, int] = msgspec.field(default_factory=dict)
    budgeted: QueueStatistics = QueueStatistics()
    crowd: QueueStatistics = QueueStatistics()
    deepest: int = 0
    pods: Mapping[Budgets, int] = msgspec.field(default_factory=lambda: dict.fromkeys(BUDGETS, 0))
    oldest: Mapping[Budgets, float] = msgspec.field(default_factory=lambda: dict.fromkeys(BUDGETS, 0.0))
    waits: Mapping[Budgets, Distribution] = msgspec.field(
        default_factory=lambda: dict.fromkeys(BUDGETS, empty_distribution(PDB_QUEUE_WAIT.buckets))
    )

    @property
    def requests(self) -> int:
        """How many evictions the server was asked for."""
        return sum(self.answers.values())


class Evictor:
    """Owns the lanes. `want` and `withdraw` may be called at any time; `run` does the asking."""

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
        self._look = Look(pod=pods.get, budget=lambda key: budgets.get(*key))
        self._lanes: dict[LaneKey, PdbQueue] = {}
        self._lane_of: dict[str, LaneKey] = {}  # by pod UID
        # By pod UID, since when (monotonic) it waits, in whatever lane of its kind.
        self._joined: dict[Budgets, dict[str, float]] = {budgets: {} for budgets in BUDGETS}
        self._of_node: dict[str, frozenset[str]] = {}  # node to UIDs
        self._ambiguous: set[tuple[BudgetKey, ...]] = set()  # the lanes of several budgets
        self._settled: dict[str, LaneKey] = {}  # by UID, pods that need no eviction any more and that the cache shows
        self._doubtful: set[str] = set()  # the UIDs of pods whose eviction has failed, and may have happened
        self._asking: set[str] = set()  # the UIDs of the pods whose turn is being taken
        self._taking: set[LaneKey] = set()  # the lanes that take a turn
        self._answers: Counter[str] = Counter()
        self._waits = {budgets: Histogram(PDB_QUEUE_WAIT.buckets) for budgets in BUDGETS}
        self._listeners: list[EvictionListener] = []
        self._budgeted: WorkQueue[LaneKey] = WorkQueue(clock, backoff)
        self._crowd: WorkQueue[LaneKey] = WorkQueue(clock, backoff)
        self._bucket = TokenBucket(clock, settings.qps, settings.burst)
        places = PLACES_PER_NAMESPACE * settings.max_in_flight
        self._room = Shares[LaneKey](clock, places, self._namespace_of)
        self._crowds_room = Shares[LaneKey](clock, places, self._namespace_of)
        pods.subscribe(self._pod_changed)
        budgets.subscribe(self._budget_changed)

    def listen(self, listener: EvictionListener) -> None:
        """Tell `listener` of every agreed and refused eviction."""
        self._listeners.append(listener)

    def configure(self, settings: EvictionSettings) -> None:
        """From now on these settings count. What is under way goes on, and nothing that is known is forgotten."""
        self._settings = settings
        self._bucket.configure(settings.qps, settings.burst)
        for room in (self._room, self._crowds_room):
            room.resize(PLACES_PER_NAMESPACE * settings.max_in_flight)
        for lane in self._lanes.values():
            lane.configure(settings)

    def want(self, node: str, candidates: Iterable[Candidate]) -> None:
        """These pods of `node`, and no others, have their turn. Idempotent; those left out leave their lane."""
        wanted = {c.uid: c for c in candidates if c.uid not in self._settled}
        for uid in self._of_node.get(node, frozenset()) - wanted.keys():
            self._leave(uid)
        for candidate in wanted.values():
            self._join(candidate)
        if wanted:
            self._of_node[node] = frozenset(wanted)
        else:
            self._of_node.pop(node, None)

    def withdraw(self, node: str) -> None:
        """Nobody of `node` is to be asked any more."""
        self.want(node, ())

    async def run(self) -> None:
        """Ask until cancelled; a request in flight is finished first."""
        async with anyio.create_task_group() as group:
            group.start_soon(run_workers, self._budgeted, self._turn, self._room)
            # A pod without a budget takes next to nothing to decide: what counts is that its room is always full.
            group.start_soon(partial(run_workers, self._crowd, self._turn, self._crowds_room, in_bursts=True))

    def is_asking_for(self, uid: str) -> bool:
        """Whether the server is being asked for this pod's eviction: news of its end may come before the answer."""
        return uid in self._asking

    def statistics(self) -> EvictorStatistics:
        """What waits, and what the server has answered so far."""
        now = self._clock.monotonic()
        return EvictorStatistics(
            lanes=sum(not isinstance(key, str) for key in self._lanes),
            waiting=len(self._lane_of),
            answers=dict(self._answers),
            budgeted=self._budgeted.statistics(),
            crowd=self._crowd.statistics(),
            deepest=max((len(lane.waiting) for lane in self._lanes.values() if lane.budgets), default=0),
            pods={budgets: len(joined) for budgets, joined in self._joined.items()},
            oldest={budgets: now - min(joined.values(), default=now) for budgets, joined in self._joined.items()},
            waits={budgets: waits.statistics() for budgets, waits in self._waits.items()},
        )

    # Who is in which lane.

    def _join(self, candidate: Candidate) -> None:
        key: LaneKey = candidate.budgets or candidate.uid
        before = self._lane_of.get(candidate.uid)
        since = self._clock.monotonic() if before is None else self._joined[_budgets_of(before)][candidate.uid]
        if before is not None and before != key:
            self._leave(candidate.uid)
        self._lane(key, candidate.budgets).join(candidate)
        self._lane_of[candidate.uid] = key
        self._joined[_budgets_of(key)][candidate.uid] = since
        if before != key:
            self._wake(key)

    def _lane(self, key: LaneKey, budgets: tuple[BudgetKey, ...]) -> PdbQueue:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = PdbQueue(budgets, self._settings, self._backoff(), self._clock.monotonic())
            if len(budgets) > 1:
                self._ambiguous.add(budgets)
        return lane

    def _leave(self, uid: str) -> None:
        key = self._lane_of.pop(uid, None)
        if key is not None:
            del self._joined[_budgets_of(key)][uid]
            self._lanes[key].leave(uid)
            self._forget_if_idle(key)
            if uid in self._asking:
                self._wake(key)  # a lane to which the pod had moved meanwhile has waited for the answer

    def _forget_if_idle(self, key: LaneKey) -> None:
        lane = self._lanes.get(key)
        # A lane that waits for an answer must remember what that has cost.
        if lane is not None and lane.is_idle and key not in self._taking:
            del self._lanes[key]
            self._ambiguous.discard(lane.budgets)

    def _wake(self, key: LaneKey) -> None:
        if key in self._lanes:
            (self._crowd if isinstance(key, str) else self._budgeted).add(key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        settled = self._settled.get(pod.uid) if new else self._settled.pop(pod.uid, None)
        waiting = self._lane_of.get(pod.uid)
        if new is None:
            self._doubtful.discard(pod.uid)
        if new is None or new.deletion_timestamp is not None:
            self._leave(pod.uid)
        for key in (settled, waiting):
            if key is not None:
                self._wake(key)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        budget = new or old
        if budget is not None:
            self._wake((budget.key,))
            for key in [key for key in self._ambiguous if budget.key in key]:
                self._wake(key)

    # The turn of a lane.

    def _namespace_of(self, key: LaneKey) -> str:
        if not isinstance(key, str):
            return key[0][0]
        lane = self._lanes.get(key)
        candidate = None if lane is None else lane.waiting.get(key)
        return "" if candidate is None else candidate.namespace

    async def _turn(self, key: LaneKey) -> Requeue | None:
        lane = self._lanes.get(key)
        if lane is None:
            return None
        match lane.decide(self._clock.monotonic(), self._look):
            case Done():
                self._forget_if_idle(key)
                return None
            case Sleep(seconds=seconds):
                return Requeue(seconds)
            case Ask() as ask if ask.candidate.uid in self._asking:
                return None  # it came from another lane, which is asking for it; this one is woken by the answer
            case Ask() as ask:
                await self._take_turn(key, lane, ask)
                return Requeue(0) if key in self._lanes else None

    async def _take_turn(self, key: LaneKey, lane: PdbQueue, ask: Ask) -> None:
        uid = ask.candidate.uid
        self._asking.add(uid)
        self._taking.add(key)
        try:
            if isinstance(key, str):
                self._crowds_room.pause(key)
                await self._bucket.acquire()
                self._crowds_room.resume(key)
            if self._is_meant(key, ask.candidate):
                await self._ask(key, lane, ask)
        finally:
            self._asking.discard(uid)
            self._taking.discard(key)
            self._forget_if_idle(key)
            moved_to = self._lane_of.get(uid, key)
            if moved_to != key:
                self._wake(moved_to)

    def _is_meant(self, key: LaneKey, candidate: Candidate) -> bool:
        """Whether this very pod still waits in this lane: time may have passed since the lane chose it."""
        return self._lane_of.get(candidate.uid) == key and self._look.living(candidate) is not None

    async def _ask(self, key: LaneKey, lane: PdbQueue, ask: Ask) -> None:
        pod = ask.candidate
        if pod.uid in self._doubtful:
            await self._clear_doubt(key, lane, ask)
            return  # the lane decides anew
        versions, since = lane.versions(self._look), self._joined[_budgets_of(key)][pod.uid]
        try:
            await self._client.evict((pod.namespace, pod.name), uid=pod.uid, is_meant=lambda: self._is_meant(key, pod))
        except errors.Superseded:
            return  # the world has moved on while the client waited; the lane decides anew
        except errors.NotLeading:
            lane.close(self._clock.monotonic())  # nobody was asked
        except errors.ApiError as refusal:
            self._answers[type(refusal).__name__] += 1
            if is_over(refusal):
                if isinstance(refusal, errors.Conflict):
                    lane.charge(ask, versions, self._clock.monotonic())  # recording eviction-of-another-uid
                self._settle(key, pod)
                return
            self._set_back(lane, ask, versions, refusal)
            for listener in self._listeners:
                listener.refused(pod, refusal)
        else:
            self._answers["Evicted"] += 1
            self._waits[_budgets_of(key)].observe(self._clock.monotonic() - since)
            lane.grant(ask, versions, self._clock.monotonic())
            self._settle(key, pod)
            for listener in self._listeners:
                listener.evicted(pod)

    def _settle(self, key: LaneKey, pod: Candidate) -> None:
        """The pod needs no eviction any more, and is not asked again even if a cache that lags offers it."""
        self._leave(pod.uid)
        self._doubtful.discard(pod.uid)
        seen = self._look.pod(pod.namespace, pod.name)
        if seen is not None and seen.uid == pod.uid:  # else the watch was faster than the answer
            self._settled[pod.uid] = key

    def _set_back(self, lane: PdbQueue, ask: Ask, versions: tuple[str, ...], refusal: errors.ApiError) -> None:
        """Tell the lane how long to wait, by what the refusal means."""
        now = self._clock.monotonic()
        match refusal:
            case errors.BudgetExhausted(retry_after=retry_after):
                lane.refuse(ask, versions, now, retry_after)
            case errors.MultipleBudgets():
                lane.refuse_ambiguous(versions, now)
            case errors.Throttled(patience=patience):
                lane.close(now, patience)
            case errors.NamespaceTerminating():
                lane.close(now, NAMESPACE_PATIENCE_SECONDS)
            case errors.Unreachable(sent=False):
                lane.close(now)
            case errors.ServerError() | errors.RequestTimeout() | errors.Unreachable():
                lane.close(now)
                if self._look.living(ask.candidate) is not None:
                    self._doubtful.add(ask.candidate.uid)
            case errors.AdmissionDenied(patience=patience):
                lane.put_off(ask, now, patience)
            case errors.Invalid() | errors.Conflict() | errors.Forbidden(rbac=False):
                lane.put_off(ask, now)
            case _:
                lane.close(now)

    async def _clear_doubt(self, key: LaneKey, lane: PdbQueue, ask: Ask) -> None:
        """After a failure that may have been a success: look at the pod itself before anybody is asked for."""
        candidate, versions = ask.candidate, lane.versions(self._look)
        try:
            pod = await self._client.get(PODS, (candidate.namespace, candidate.name))
        except errors.NotFound:
            self._settle(key, candidate)
        except errors.ApiError:
            lane.close(self._clock.monotonic())
        else:
            if pod.uid != candidate.uid:
                self._settle(key, candidate)
            elif pod.deletion_timestamp is not None:
                lane.grant(ask, versions, self._clock.monotonic())
                self._settle(key, candidate)
            else:
                self._doubtful.discard(candidate.uid)
                lane.put_last(ask)


def _budgets_of(key: LaneKey) -> Budgets:
    return "none" if isinstance(key, str) else "one" if len(key) == 1 else "several"
