"""Simulation of one possible course of events: what becomes of nodes that end, under the assumptions of one scenario.

The decisions are those of `plan`, taken again whenever something has changed, and of `eviction_verdict` along the
queues of budgets; the world around them is reduced to what decisions depend on. Nothing here waits: days are computed
at once. Invariants: a pod is removed by the rules of the controller and by nothing else; time never goes back.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import count
from zlib import crc32

import msgspec

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import FREE_PHASES, Allowance, BudgetKey, eviction_verdict, failure_of
from gracectl.policy.deadlines import grace_of, granted, granted_already
from gracectl.policy.eviction_queues import QueuedPod
from gracectl.policy.plan import NodeView, Outcome, Plan, PodPlan, plan

NAMESAKE_SECONDS = 120.0
"""For so long a budget does not count a pod of the name of one that was evicted, if it has not seen that one go
(DeletionTimeout of kube-controller-manager's disruption controller)."""

RECREATED_AT_ONCE = frozenset({"ReplicaSet", "ReplicationController", "Job"})
"""Whose pods are replaced as soon as one is told to end; a StatefulSet's, and anybody else's, when it is gone."""


class DrainingNode(msgspec.Struct, frozen=True):
    """A node that ends, as the caches show it; `since` when (Unix seconds)."""

    view: NodeView
    since: float


class Scenario(msgspec.Struct, frozen=True):
    """How the world around the controller behaves in one course.

    `uses_grace`: pods need all of their grace to stop, else they stop at once. `replacement_seconds`: from the moment
    in which a pod is replaced until its replacement is Ready. `heals`: pods that are not Ready now are so at once, else
    never. `last_first`: of those whose turn comes in the same instant the last one is the first, as nobody knows whose
    node is seen first. `mixture`: unless 0, about half of the waves, and of the budgets' replacements, are quick all
    the same; another number, another half.
    """

    uses_grace: bool
    replacement_seconds: float
    heals: bool
    last_first: bool = False
    mixture: int = 0

    def is_quick(self, *names: object) -> bool:
        """Whether those who go by these names do not need the time that they have."""
        if not self.mixture:
            return not self.uses_grace
        return bool(crc32(repr((self.mixture, *names)).encode()) & 1)


class RemovalMethod(StrEnum):
    """How a pod is told to leave."""

    EVICTED = "evicted"
    DELETED = "deleted"


class Removal(msgspec.Struct, frozen=True):
    """A pod is told to leave, with so many seconds of grace."""

    at: float
    how: RemovalMethod
    grace: int


class PodResult(msgspec.Struct, frozen=True):
    """What becomes of a pod that holds its node. Instants are Unix seconds.

    `gone`: when its containers have stopped; None: not before the node ends, or never.
    """

    told: tuple[Removal, ...] = ()
    gone: float | None = None


class SimulationResult(msgspec.Struct, frozen=True):
    """What has happened: `fates` by pod uid, `drained` by node (missing: never), `turns`: by pod uid, when its turn on
    its node came. `kept`: by pod uid, what is decided in the end about those that keep their nodes for ever."""

    fates: dict[str, PodResult]
    drained: dict[str, float]
    turns: dict[str, float]
    kept: dict[str, PodPlan]


def simulate(going: Iterable[DrainingNode], now: float, pace: Scenario, rate: EvictionRate) -> SimulationResult:
    """Let these nodes end from `now` on, until nothing changes any more."""
    return _Simulation(tuple(going), now, pace, rate).run()


class _Event(msgspec.Struct, frozen=True, order=True):
    """Something that comes by itself: a pod has stopped, or a budget has one more healthy pod."""

    at: float
    number: int
    uid: str = ""
    budget: BudgetKey | None = None


class _Simulation:
    def __init__(self, going: tuple[DrainingNode, ...], now: float, pace: Scenario, rate: EvictionRate) -> None:
        self._now = now
        self._pace = pace
        self._going = {each.view.node.name: each for each in going}
        self._pods: dict[str, dict[str, Pod]] = {
            name: {pod.uid: pod for pod in each.view.pods} for name, each in self._going.items()
        }
        self._node_of = {uid: name for name, pods in self._pods.items() for uid in pods}
        self._plans: dict[str, Plan] = {}
        self._budgets: dict[BudgetKey, PodDisruptionBudget] = {}
        self._keys: dict[str, tuple[BudgetKey, ...]] = {}  # by pod uid
        self._lanes: dict[tuple[BudgetKey, ...], SimulatedQueue] = defaultdict(SimulatedQueue)
        self._moving: set[tuple[BudgetKey, ...]] = set()  # lanes in which somebody may be able to go now
        self._told: dict[str, list[Removal]] = defaultdict(list)
        self._gone: dict[str, float] = {}
        self._ends: dict[str, float] = {}  # when a pod that was told to leave has stopped
        self._ordered: dict[tuple[str, BudgetKey], float] = {}  # when the last heir of an owner is Ready
        self._drained: dict[str, float] = {}
        self._events: list[_Event] = []
        self._numbers = count()
        self._bucket = RateLimit(rate, now)
        self._wake: float | None = None  # when the bucket has tokens again
        in_order = sorted((pod.key, pod.uid) for pods in self._pods.values() for pod in pods.values())
        self._by_name = {uid: number for number, (_, uid) in enumerate(in_order)}  # instead of names
        self._turns: dict[str, float] = {}
        for each in going:
            for uid, budgets in each.view.budgets.items():
                self._keys[uid] = tuple(budget.key for budget in budgets)
                self._budgets.update({budget.key: budget for budget in budgets})

    def run(self) -> SimulationResult:
        self._begin()
        dirty = set(self._going)
        while True:
            while dirty or self._moving:
                for name in sorted(dirty):
                    self._plan(name)
                dirty = self._delete(dirty) or self._evict()
            following = self._next()
            if following is None:
                break
            self._now = following
            dirty = self._happen()
        fates = {uid: PodResult(tuple(self._told[uid]), self._gone.get(uid)) for uid in {*self._told, *self._gone}}
        kept = {entry.pod.uid: entry for name in self._going if name not in self._drained for entry in self._kept(name)}
        return SimulationResult(fates, self._drained, self._turns, kept)

    def _kept(self, name: str) -> Iterator[PodPlan]:
        """Who is still there on a node; of budgets what they say by now."""
        for entry in self._plans[name].left:
            pod = entry.pod
            if pod.deletion_timestamp is None and entry.wants_out:
                verdict = eviction_verdict(pod, tuple(self._budgets[key] for key in entry.budgets))
                yield msgspec.structs.replace(entry, outcome=Outcome.BLOCKED, reason=verdict.reason)
            else:
                yield entry

    # -- what is so at the beginning -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Those on their way come to their end; what budgets lack at present comes back as the pace says."""
        replaced: dict[BudgetKey, list[float]] = defaultdict(list)
        for pods in self._pods.values():
            for pod in pods.values():
                if pod.deletion_timestamp is not None:
                    # One that is still there after its time may be there for ever.
                    self._stop(pod, pod.deletion_timestamp if pod.deletion_timestamp > self._now else math.inf)
                    for key in self._keys.get(pod.uid, ()):
                        replaced[key].append(self._replaced_at(pod, key))
        for key, budget in self._budgets.items():
            self._budgets[key] = msgspec.structs.replace(budget, observed_generation=budget.generation)
            missing = max(budget.expected_pods - budget.current_healthy, 0)
            for at in [self._now] * missing if self._pace.heals else sorted(replaced[key])[:missing]:
                self._push(at, budget=key)

    def _replaced_at(self, pod: Pod, key: BudgetKey) -> float:
        """When the replacement of a pod that was told to leave is Ready; infinity if there will be none."""
        controller = next((owner for owner in pod.owners if owner.controller), None)
        if controller is None or controller.kind == names.DAEMON_SET:
            return math.inf
        takes = 0.0 if self._pace.mixture and self._pace.is_quick(key) else self._pace.replacement_seconds
        if controller.kind in RECREATED_AT_ONCE:
            return self._now + takes
        # A StatefulSet makes the next pod when all before it are Ready, and none while one of them still terminates.
        begins = max(self._ends.get(pod.uid, math.inf), self._ordered.get((controller.uid, key), -math.inf))
        ready = begins + takes
        if self._is_mistaken_for(pod) and takes:
            ready = max(ready, self._now + NAMESAKE_SECONDS)
        self._ordered[controller.uid, key] = ready
        return ready

    def _is_mistaken_for(self, pod: Pod) -> bool:
        """Whether a budget may take the heir, who has the same name, for the evicted pod itself: one without grace is
        gone before anybody has seen it terminate."""
        told = self._told[pod.uid]
        return bool(told) and told[-1].how is RemovalMethod.EVICTED and grace_of(pod) == 0

    # -- what happens by itself ----------------------------------------------------------------------------------------

    def _push(self, at: float, *, uid: str = "", budget: BudgetKey | None = None) -> None:
        if at < math.inf:
            heapq.heappush(self._events, _Event(max(at, self._now), next(self._numbers), uid, budget))

    def _next(self) -> float | None:
        """The next instant at which anything can change."""
        instants = [decision.next_change for name, decision in self._plans.items() if name not in self._drained]
        instants += [self._wake, self._events[0].at if self._events else None]
        return min((at for at in instants if at is not None), default=None)

    def _happen(self) -> set[str]:
        """Whatever is due now; the nodes that have to be looked at again."""
        dirty = {
            name
            for name, decision in self._plans.items()
            if name not in self._drained and decision.next_change is not None and decision.next_change <= self._now
        }
        if self._wake is not None and self._wake <= self._now:
            self._wake = None
            self._moving.add(())
        while self._events and self._events[0].at <= self._now:
            event = heapq.heappop(self._events)
            if event.budget is not None:
                self._count(event.budget, 1)
            elif self._ends.get(event.uid) == event.at and event.uid not in self._gone:
                name = self._node_of[event.uid]
                self._gone[event.uid] = self._now
                del self._pods[name][event.uid]
                dirty.add(name)
        return dirty

    def _count(self, key: BudgetKey, change: int) -> None:
        """So many pods more, or fewer, are healthy under a budget: it allows accordingly.

        Never more than it expects: the heir of one that was not Ready may be the one that has been missing.
        """
        budget = self._budgets[key]
        most = max(budget.expected_pods, budget.current_healthy)
        healthy = min(max(budget.current_healthy + change, 0), most)
        allowed = max(healthy - budget.desired_healthy, 0) if failure_of(budget) is None else 0
        self._budgets[key] = msgspec.structs.replace(budget, current_healthy=healthy, disruptions_allowed=allowed)
        self._moving.update(keys for keys in self._lanes if key in keys)

    # -- what is decided -----------------------------------------------------------------------------------------------

    def _plan(self, name: str) -> None:
        if name in self._drained:
            return
        going = self._going[name]
        decision = plan(msgspec.structs.replace(going.view, pods=tuple(self._pods[name].values())), self._now)
        before = {entry.pod.uid: entry for entry in self._plans[name].leaving} if name in self._plans else {}
        self._plans[name] = decision
        if decision.drained:
            self._drained[name] = self._now
        for entry in () if decision.drained else decision.leaving:
            known = before.pop(entry.pod.uid, None)
            if known is None or known.deadline != entry.deadline:
                waiting = QueuedPod(name, going.since, entry)
                self._turns.setdefault(entry.pod.uid, self._now)
                self._lanes[entry.budgets].join(waiting, self._place(waiting))
                self._moving.add(entry.budgets)
        for uid, entry in before.items():
            self._lanes[entry.budgets].leave(uid)

    def _delete(self, looked_at: Iterable[str]) -> set[str]:
        """Delete whose time has come for a deadline; their nodes."""
        dirty = set()
        for name in looked_at:
            for entry in self._plans[name].left:
                pod = self._pods[name].get(entry.pod.uid)
                if entry.outcome is not Outcome.DELETE or pod is None or entry.deadline is None:
                    continue
                grace = granted(pod, entry.deadline, self._now)
                if grace is not None and self._tell(pod, RemovalMethod.DELETED, grace):
                    dirty.add(name)
        return dirty

    def _evict(self) -> set[str]:
        """Evict whom budgets and rate let go, lane by lane; their nodes."""
        dirty: set[str] = set()
        for keys in sorted(self._moving):
            lane = self._lanes[keys]
            stay = []
            for waiting in lane.in_order():
                pod = self._pods[waiting.node].get(waiting.entry.pod.uid)
                if pod is None or pod.deletion_timestamp is not None:
                    continue
                if self._may_go(keys, pod):
                    self._tell(pod, RemovalMethod.EVICTED, grace_of(pod))
                    dirty.add(waiting.node)
                    continue
                stay.append(waiting)
                if not keys:
                    break  # the others wait for the same tokens
            for waiting in stay:
                lane.join(waiting, self._place(waiting))
        self._moving.clear()
        return dirty

    def _place(self, waiting: QueuedPod) -> Rank:
        uid = waiting.entry.pod.uid
        place = (*waiting.turn[:2], self._by_name[uid])
        if self._pace.last_first and self._turns[uid] == self._now:
            return (1, *(-each for each in place))
        return (0, *place)

    def _may_go(self, keys: tuple[BudgetKey, ...], pod: Pod) -> bool:
        if not keys:
            at = self._bucket.take(self._now)
            if at is not None:
                self._wake = at
            return at is None
        verdict = eviction_verdict(pod, tuple(self._budgets[key] for key in keys))
        return verdict.leave in (Allowance.FREE, Allowance.ALLOWED)

    def _tell(self, pod: Pod, how: RemovalMethod, grace: int) -> bool:
        """The pod is told to leave, for the first time or with less grace; whether that changes anything."""
        if pod.deletion_timestamp is None:
            ends = math.floor(self._now) + grace
        elif grace < granted_already(pod):
            first = pod.deletion_timestamp - granted_already(pod)
            ends = max(math.floor(first) + grace, math.floor(self._now))
        else:
            return False
        self._told[pod.uid].append(Removal(self._now, how, grace))
        going = msgspec.structs.replace(pod, deletion_timestamp=float(ends), deletion_grace_seconds=grace)
        self._pods[self._node_of[pod.uid]][pod.uid] = going
        self._stop(going, self._now + grace)
        if pod.deletion_timestamp is None:
            self._leave_budgets(pod)
        return True

    def _leave_budgets(self, pod: Pod) -> None:
        for key in self._keys.get(pod.uid, ()):
            if pod.ready:
                self._count(key, -1)
            # Nobody knows whether the heir of a pod that is not Ready will be.
            if pod.ready or self._pace.heals:
                self._push(self._replaced_at(pod, key), budget=key)

    def _stop(self, pod: Pod, latest: float) -> None:
        """A pod that was told to leave stops; its kubelet kills it at `latest`, if there is one that does."""
        view = self._going[self._node_of[pod.uid]].view
        at = latest if view.node.ready else math.inf
        wave = view.settings.order_of(view.node.labels).wave_of(pod)
        if pod.phase in FREE_PHASES or self._pace.is_quick(view.node.name, wave):
            at = self._now
        if at != self._ends.get(pod.uid):
            self._ends[pod.uid] = at
            self._push(at, uid=pod.uid)


ROUNDING = 1e-9
"""Of an eviction: the allowance has come, but for rounding."""

SHORTEST_WAIT_SECONDS = 0.1
"""Thousands of pods that wait for a rate are let go in small groups; no instant is off by more than this."""


class EvictionRate(msgspec.Struct, frozen=True):
    """How fast pods without a budget are evicted: so many a second, after a burst; 0 means no limit."""

    qps: float = 0.0
    burst: int = 1


class RateLimit:
    """Evictions of pods without a budget, as the rate limit lets them pass."""

    def __init__(self, rate: EvictionRate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at = now

    def take(self, now: float) -> float | None:
        """None: one may go; else the instant at which the next one may."""
        if self._rate.qps == 0:
            return None
        self._tokens = min(self._rate.burst, self._tokens + (now - self._at) * self._rate.qps)
        self._at = now
        if self._tokens < 1 - ROUNDING:
            return now + max((1 - self._tokens) / self._rate.qps, SHORTEST_WAIT_SECONDS)
        self._tokens -= 1
        return None


Rank = tuple[float, ...]
"""Sorts those in a lane: less is earlier."""


class SimulatedQueue:
    """Those who wait under the same budgets, in their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, str]] = []
        self._waiting: dict[str, tuple[Rank, QueuedPod]] = {}

    def join(self, waiting: QueuedPod, place: Rank) -> None:
        """Add one, or give him another place."""
        uid = waiting.entry.pod.uid
        heapq.heappush(self._heap, (place, uid))
        self._waiting[uid] = (place, waiting)

    def leave(self, uid: str) -> None:
        """He does not wait any more."""
        self._waiting.pop(uid, None)

    def in_order(self) -> Iterator[QueuedPod]:
        """The first one first; whoever is put back with `join` waits on."""
        while self._heap:
            place, uid = heapq.heappop(self._heap)
            found = self._waiting.get(uid)
            if found is not None and found[0] == place:
                del self._waiting[uid]
                yield found[1]
