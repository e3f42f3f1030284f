"""Queue of the pods that wait for the same PodDisruptionBudget, and the choice of the pod to evict next.

A queue does no I/O. It gets the server's answers and the changed pods, and returns the pod to evict or
how long to wait. Invariants: an evicted pod is never chosen again; until the watch shows what an eviction has cost, its
disruption counts as taken; after a refusal nothing is requested before the backoff is over, unless a newer version of
the budget appears. A decision takes as long in a queue of 5,000 pods as in one of ten.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import takewhile

import msgspec

from gracectl.eviction.settings import EvictionSettings
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import UNCHARGED_PHASES, Allowance, BudgetKey, eviction_verdict, unknown_budget_of
from gracectl.policy.eviction_queues import EvictionRank, eviction_rank
from gracectl.runtime.backoff import Backoff

UNOBSERVED_SECONDS = 2.0
"""An evicted pod terminates but no budget has changed: after this long the eviction is taken to have cost nothing (the
pod had just become unready), and the budget counts as it stands.
"""

MOST_HANGING = 10
"""Maximum evictions of a queue that hang while it continues with other pods; then the queue waits."""


class EvictionCandidate(msgspec.Struct, frozen=True):
    """A pod to evict now. Times are Unix seconds; `node_activity` completes "node worker-1 ..." in
    Events.
    """

    namespace: str
    name: str
    uid: str
    node: str
    budgets: tuple[BudgetKey, ...]
    terminating_since: float
    deadline: float | None = None
    node_activity: str = "is being terminated"

    @property
    def order(self) -> EvictionRank:
        """Position in the queue: lower is earlier."""
        return eviction_rank((self.namespace, self.name), self.deadline, self.terminating_since)


class Evict(msgspec.Struct, frozen=True):
    """Evict this pod now. `is_uncharged`: no budget is expected to be charged."""

    candidate: EvictionCandidate
    is_uncharged: bool


class Wait(msgspec.Struct, frozen=True):
    """No pod can be evicted for this many seconds, unless the watch shows a change."""

    seconds: float


class Idle(msgspec.Struct, frozen=True):
    """The queue is empty."""


class PodLookup(msgspec.Struct, frozen=True):
    """View of the caches: a pod by namespace and name, a budget by its key."""

    pod: Callable[[str, str], Pod | None]
    budget: Callable[[BudgetKey], PodDisruptionBudget | None]

    def find(self, candidate: EvictionCandidate) -> Pod | None:
        """The pod with this UID, unless it is gone or terminating."""
        pod = self.pod(candidate.namespace, candidate.name)
        if pod is None or pod.uid != candidate.uid or pod.deletion_timestamp is not None:
            return None
        return pod


class _UnobservedEviction(msgspec.Struct):
    """An eviction with a cost that the watch has not shown yet."""

    candidate: EvictionCandidate
    overdue: float
    """From this instant on the watch would have shown a cost if there were one."""
    is_going: bool = False
    """The watch has shown that the pod is terminating or gone."""
    versions: tuple[str, ...] = ()
    """Versions of the budgets at that instant: they may be older than the eviction."""


_Place = tuple[float, int, EvictionRank, str]
"""Sort key of a waiting pod: not before this instant (0.0 once that is past), failures, rank, UID."""


class _Line(msgspec.Struct, eq=False):
    """Waiting pods with equal budget results, in the order of eviction. `sample` is one of the pods.

    `postponed`: pods that may not be evicted yet, by the instant from which they may.
    """

    sample: Pod
    # Sorted lists: what has to be moved at a change is a few kilobytes in one piece, even of 5,000 pods.
    ready: list[_Place] = []
    postponed: list[_Place] = []


class PdbQueue:
    """Queue of one budget, of one pod without a budget, or of pods that the same several budgets select.

    `now` is monotonic seconds everywhere: a wall clock that is set back must not pause a queue.
    """

    def __init__(
        self, budgets: tuple[BudgetKey, ...], settings: EvictionSettings, backoff: Backoff, now: float
    ) -> None:
        self.budgets = budgets
        self.waiting: dict[str, EvictionCandidate] = {}
        self._lines: dict[tuple[bool, bool], _Line] = {}  # by what a budget's verdict depends on
        # By pod, where it stands; pods that are gone or terminating stand nowhere.
        self._places: dict[str, tuple[list[_Place], _Place]] = {}
        self._changed: set[str] = set()  # pods with places that may be wrong
        self._settings = settings
        self._backoff = backoff
        self._unobserved: dict[str, _UnobservedEviction] = {}
        self._in_flight: dict[str, EvictionCandidate] = {}
        self._hanging: set[str] = set()  # evictions in flight that the queue no longer waits for
        self._shown: set[str] = set()  # evictions in flight, if the watch has shown what they have cost
        self._shown_versions: tuple[str, ...] = ()  # by which all unobserved evictions were judged
        self._not_before: dict[str, float] = {}  # pods refused for reasons of their own: not before this instant
        # Pods expected to be uncharged that the budget refused: its versions at that refusal. A change ends their wait.
        self._refused_uncharged: dict[str, tuple[str, ...]] = {}
        self._failures: dict[str, int] = {}  # by pod: pods with fewer failures go first
        self._paused_until = now  # no requests: the server is busy or failing
        self._exhausted_until = now  # only uncharged pods: the budget has refused
        self._exhausted_at: tuple[str, ...] = ()  # versions of the budgets at that refusal
        self._probe_at = now + settings.probe_seconds
        self._last_versions: tuple[str, ...] = ()

    def configure(self, settings: EvictionSettings) -> None:
        """Apply new settings; a wait that has begun ends when it would have."""
        self._settings = settings
        self._backoff.configure(settings.backoff_initial_seconds, settings.backoff_maximum_seconds)

    def add(self, candidate: EvictionCandidate) -> None:
        """Add or update a pod."""
        if self.waiting.get(candidate.uid) != candidate:
            self.waiting[candidate.uid] = candidate
            self._changed.add(candidate.uid)

    def pod_changed(self, uid: str, lookup: PodLookup) -> None:
        """The cache shows another state of a pod that waits here or was evicted here."""
        self._changed.add(uid)
        self._note_going(uid, lookup)

    def remove(self, uid: str) -> None:
        """Remove a pod; what its eviction may have cost is still accounted for."""
        self.waiting.pop(uid, None)
        self._unplace(uid)
        self._not_before.pop(uid, None)
        self._refused_uncharged.pop(uid, None)
        self._failures.pop(uid, None)

    @property
    def is_idle(self) -> bool:
        """No pod waits, and no eviction is in flight or unobserved: the queue may be dropped."""
        return not self.waiting and not self._unobserved and not self._in_flight

    def is_unobserved(self, uid: str) -> bool:
        """Whether the watch has not shown yet what the eviction of this pod has cost."""
        return uid in self._unobserved

    def decide(self, now: float, lookup: PodLookup) -> Evict | Wait | Idle:
        """The next action at `now`; pods that are gone or terminating are skipped."""
        budgets = self._budgets(lookup)
        changed = self._place_changed(now, lookup)
        self._forget_observed(now, budgets, changed)
        if not self._places:
            return Wait(self._next_overdue(now) - now) if self._unobserved else Idle()
        self._note_budget_change(now, _versions(budgets))
        if 0 < len(budgets) < len(self.budgets):
            # One of several budgets is gone: its pods are about to move to the queue of the others, and until then two
            # queues must not evict under the same budget.
            return Wait(self._settings.probe_seconds)
        if now < self._paused_until:
            return Wait(self._paused_until - now)
        self._place_changed(now, lookup)
        return self._choose(now, budgets)

    def _place_changed(self, now: float, lookup: PodLookup) -> set[str]:
        """Put each pod that has changed into the place that it has now; returns their UIDs."""
        changed, self._changed = self._changed, set()
        for uid in changed:
            self._unplace(uid)
            self._note_going(uid, lookup)
            candidate = None if uid in self._hanging else self.waiting.get(uid)
            if candidate is not None and (pod := lookup.find(candidate)) is not None:
                self._place(candidate, pod, now)
        return changed

    def _note_going(self, uid: str, lookup: PodLookup) -> None:
        if (granted := self._unobserved.get(uid)) is None:
            return
        # A new list may be older than what was shown before, of pods and of budgets: then nothing is shown yet.
        is_going = lookup.find(granted.candidate) is None
        if is_going and not granted.is_going:
            granted.versions = self.versions(lookup)
        granted.is_going = is_going

    def _place(self, candidate: EvictionCandidate, pod: Pod, now: float) -> None:
        kind = (pod.ready, pod.phase in UNCHARGED_PHASES)
        if (line := self._lines.get(kind)) is None:
            line = self._lines[kind] = _Line(pod)
        not_before = self._not_before.get(candidate.uid, now)
        is_ready = not_before <= now
        places = line.ready if is_ready else line.postponed
        failures = self._failures.get(candidate.uid, 0)
        place = (0.0 if is_ready else not_before, failures, candidate.order, candidate.uid)
        insort(places, place)
        self._places[candidate.uid] = places, place

    def _unplace(self, uid: str) -> None:
        if (known := self._places.pop(uid, None)) is not None:
            places, place = known
            del places[bisect_left(places, place)]

    def _choose(self, now: float, budgets: tuple[PodDisruptionBudget, ...]) -> Evict | Wait:
        """The first pod that may be evicted; if none may, the wait until the clock alone changes that."""
        wake = float("inf")
        probe = min(self._probe_at, self._next_overdue(now))
        is_exhausted = now < self._exhausted_until and _versions(budgets) == self._exhausted_at
        is_set_aside = unknown_budget_of(budgets) is not None
        chosen: tuple[_Place, bool] | None = None
        for line in self._lines.values():
            self._end_postponements(line, now)
            if not line.ready and not line.postponed:
                continue
            leave = eviction_verdict(line.sample, budgets, taken=len(self._unobserved)).allowance
            is_uncharged = leave is Allowance.UNCHARGED
            if is_uncharged:
                due = now
            elif is_set_aside:
                due = float("inf")
            elif leave in (Allowance.ALLOWED, Allowance.AMBIGUOUS):
                due = self._exhausted_until if is_exhausted else now
            else:
                due = probe
            if not line.ready:
                wake = min(wake, max(due, line.postponed[0][0]))
            elif due > now:
                wake = min(wake, due)
            elif chosen is None or line.ready[0] < chosen[0]:
                chosen = line.ready[0], is_uncharged
        if chosen is None:
            return Wait(wake - now)
        (*_, uid), is_uncharged = chosen
        return Evict(self.waiting[uid], is_uncharged)

    def _end_postponements(self, line: _Line, now: float) -> None:
        while line.postponed and line.postponed[0][0] <= now:
            place: _Place = (0.0, *line.postponed.pop(0)[1:])
            insort(line.ready, place)
            self._places[place[-1]] = line.ready, place

    def _next_overdue(self, now: float) -> float:
        """When the next unobserved eviction becomes overdue; one that already is waits for the watch, or a probe."""
        coming = (granted.overdue for granted in self._unobserved.values() if granted.overdue > now)
        return next(coming, now + self._settings.probe_seconds)

    # What an eviction costs: the server lists the pod in its budget before it deletes it, and the disruption controller
    # strikes it off when it has seen the pod terminate. The watch shows both versions, in order.

    def begin(self, candidate: EvictionCandidate) -> None:
        """The eviction of this pod is about to be requested: the watch may be faster than the response."""
        self._in_flight[candidate.uid] = candidate

    def has_room_to_hang(self) -> bool:
        """Whether the queue need not wait for an eviction that hangs."""
        return bool(self.budgets) and len(self._hanging) < MOST_HANGING

    def leave(self, candidate: EvictionCandidate) -> None:
        """The eviction of this pod hangs: choose others until it has ended. It has most likely cost nothing so far: a
        server calls webhooks before it looks at budgets."""
        self._hanging.add(candidate.uid)
        self._unplace(candidate.uid)

    def is_hanging(self, uid: str) -> bool:
        """Whether the eviction of this pod is in flight, and others are chosen meanwhile."""
        return uid in self._hanging

    def end(self, uid: str) -> None:
        """The eviction of this pod is no longer in flight."""
        self._in_flight.pop(uid, None)
        self._shown.discard(uid)
        self._hanging.discard(uid)
        self._changed.add(uid)

    def budget_changed(self, budget: PodDisruptionBudget) -> None:
        """The watch shows this version of one of the budgets; call it with each."""
        names = budget.disrupted_pods
        if not names:
            return
        self._shown |= {uid for uid, candidate in self._in_flight.items() if candidate.name in names}
        for uid in [uid for uid, granted in self._unobserved.items() if granted.candidate.name in names]:
            del self._unobserved[uid]

    # Responses of the server.

    def on_evicted(self, request: Evict, now: float) -> None:
        """201: the pod was evicted."""
        self.on_charged(request, now)
        self.remove(request.candidate.uid)
        self._backoff.reset()
        self._exhausted_until = now
        self._probe_at = now + self._settings.probe_seconds

    def on_charged(self, request: Evict, now: float) -> None:
        """The budget was charged for this pod, which may not terminate: that counts until the watch has shown it."""
        uid = request.candidate.uid
        if self.budgets and not request.is_uncharged and uid not in self._shown:
            self._unobserved.pop(uid, None)  # so that the first of them is overdue first
            self._unobserved[uid] = _UnobservedEviction(request.candidate, now + UNOBSERVED_SECONDS)
            self._changed.add(uid)

    def on_budget_exhausted(
        self, request: Evict, versions: tuple[str, ...], now: float, retry_after: float | None
    ) -> None:
        """429 of the budget: the whole queue waits, not the pod. For a budget just edited the server sends
        `retry_after` (seconds).
        """
        wait = self._backoff.next() if retry_after is None else retry_after
        self._probe_at = now + self._settings.probe_seconds
        if request.is_uncharged:
            if request.candidate.uid in self.waiting:
                self._not_before[request.candidate.uid] = now + wait
                self._refused_uncharged[request.candidate.uid] = versions
                self._changed.add(request.candidate.uid)
            return
        self._exhausted_until = now + wait
        self._exhausted_at = versions

    def on_multiple_budgets(self, versions: tuple[str, ...], now: float) -> None:
        """500 for several budgets: retried slowly, or when one budget changes."""
        self._exhausted_until = now + self._settings.misconfigured_retry_seconds
        self._exhausted_at = versions

    def pause(self, now: float, seconds: float | None = None) -> None:
        """The server is busy or has failed: no request for `seconds` (None: the queue's own backoff)."""
        self._paused_until = now + (self._backoff.next() if seconds is None else seconds)

    def postpone(self, request: Evict, now: float, seconds: float = 0.0) -> None:
        """The server refuses this pod only (an admission webhook, say): the others need not wait.

        Each refusal doubles the pod's own wait, up to that for misconfigurations.
        """
        if request.candidate.uid in self.waiting:
            initial = self._settings.backoff_initial_seconds
            own = Backoff(initial, max(self._settings.misconfigured_retry_seconds, initial), jitter=0.0)
            failures = self._failures.get(request.candidate.uid, 0) + 1
            self._not_before[request.candidate.uid] = now + max(seconds, own.after(failures))
            self._refused_uncharged.pop(request.candidate.uid, None)
            self.move_to_back(request)

    def move_to_back(self, request: Evict) -> None:
        """After a failure of this pod the others go first, so that it cannot block them indefinitely."""
        if request.candidate.uid in self.waiting:
            self._failures[request.candidate.uid] = self._failures.get(request.candidate.uid, 0) + 1
            self._changed.add(request.candidate.uid)

    def _budgets(self, lookup: PodLookup) -> tuple[PodDisruptionBudget, ...]:
        return tuple(b for key in self.budgets if (b := lookup.budget(key)))

    def versions(self, lookup: PodLookup) -> tuple[str, ...]:
        """The resource versions of the queue's budgets in the cache."""
        return _versions(self._budgets(lookup))

    def _note_budget_change(self, now: float, versions: tuple[str, ...]) -> None:
        if versions != self._last_versions:
            self._last_versions = versions
            for uid in [uid for uid, refused_at in self._refused_uncharged.items() if refused_at != versions]:
                del self._refused_uncharged[uid]
                self._not_before.pop(uid, None)
                self._changed.add(uid)
            self._probe_at = now + self._settings.probe_seconds

    def _forget_observed(self, now: float, budgets: tuple[PodDisruptionBudget, ...], changed: set[str]) -> None:
        """Forget evictions of pods that terminate, but that no budget has listed: the budget has changed since, so a
        new list skipped that version, or its time has expired.
        """
        versions = _versions(budgets)
        if versions != self._shown_versions:
            self._shown_versions = versions
            uids = tuple(self._unobserved)
        else:  # a large budget may have granted hundreds
            uids = (*changed, *takewhile(lambda uid: self._unobserved[uid].overdue <= now, self._unobserved))
        for uid in uids:
            if (granted := self._unobserved.get(uid)) is None:
                continue
            if not budgets or (granted.is_going and (versions != granted.versions or now >= granted.overdue)):
                del self._unobserved[uid]


def _versions(budgets: tuple[PodDisruptionBudget, ...]) -> tuple[str, ...]:
    return tuple(b.resource_version for b in budgets)
