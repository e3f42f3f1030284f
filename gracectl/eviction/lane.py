"""One lane: the pods that wait for the same budget, and the choice of who is asked next.

A lane does no I/O. It is told what the server answered and what the caches show, and says whom to ask, or how long
to sleep. Invariants: a pod that was granted is never chosen again; while the watch has not yet shown what a granted
eviction has cost, that disruption counts as taken; a refused lane does not ask before its backoff is over, unless a
newer state of the budget shows that the world has moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import msgspec

from gracectl.eviction.settings import EvictionSettings
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import FREE_PHASES, BudgetKey, Leave, may_leave
from gracectl.policy.lanes import Turn, turn_of
from gracectl.runtime.backoff import Backoff

_DOUBLINGS = 60
"""More of them than from any shortest wait to any longest."""

UNSHOWN_SECONDS = 2.0
"""A granted pod is on its way, but no budget has moved: after this long it is taken to have cost nothing (it had just
become unready), and the budget is believed as it stands."""


class Candidate(msgspec.Struct, frozen=True):
    """A pod whose turn on its node has come. Times are Unix seconds; `fate`: what is done to the node, for people."""

    namespace: str
    name: str
    uid: str
    node: str
    budgets: tuple[BudgetKey, ...]
    terminating_since: float
    deadline: float | None = None
    fate: str = "is being terminated"

    @property
    def order(self) -> Turn:
        """Who is asked first."""
        return turn_of((self.namespace, self.name), self.deadline, self.terminating_since)


class Ask(msgspec.Struct, frozen=True):
    """Evict this one now. `is_free`: no budget is expected to be charged."""

    candidate: Candidate
    is_free: bool


class Sleep(msgspec.Struct, frozen=True):
    """Nobody can be asked for so many seconds, unless a watch brings news."""

    seconds: float


class Done(msgspec.Struct, frozen=True):
    """The lane is empty."""


class Look(msgspec.Struct, frozen=True):
    """What the caches show: a pod by namespace and name, a budget by its key."""

    pod: Callable[[str, str], Pod | None]
    budget: Callable[[BudgetKey], PodDisruptionBudget | None]

    def living(self, candidate: Candidate) -> Pod | None:
        """The very pod, by UID, unless it is gone or already on its way."""
        pod = self.pod(candidate.namespace, candidate.name)
        if pod is None or pod.uid != candidate.uid or pod.deletion_timestamp is not None:
            return None
        return pod


class _Granted(msgspec.Struct, frozen=True):
    """An eviction whose cost the watch has not shown yet; `versions` of the budgets when it was asked for."""

    candidate: Candidate
    versions: tuple[str, ...]
    overdue: float
    """From this instant on the watch would have shown a cost if there were one."""


class PdbQueue:
    """The queue of one budget, of one pod without a budget, or of pods that the same several budgets select.

    `now` is monotonic seconds everywhere: a wall clock that is set back must not close a lane.
    """

    def __init__(
        self, budgets: tuple[BudgetKey, ...], settings: EvictionSettings, backoff: Backoff, now: float
    ) -> None:
        self.budgets = budgets
        self.waiting: dict[str, Candidate] = {}
        self._sorted: list[Candidate] = []  # may hold some that no longer wait
        self._is_unsorted = False
        self._settings = settings
        self._backoff = backoff
        self._granted: dict[str, _Granted] = {}
        self._later: dict[str, float] = {}  # pods that were refused for themselves: not before this instant
        # Of those that the budget has refused all the same: its versions at that refusal. News of it ends their wait.
        self._refused_free: dict[str, tuple[str, ...]] = {}
        self._refusals: dict[str, int] = {}  # of pods that failed for themselves: the others go first
        self._closed_until = now  # nobody is asked: the server is busy or failing
        self._asleep_until = now  # only free pods are asked: the budget has refused
        self._refused_at: tuple[str, ...] = ()  # versions of the budgets at that refusal
        self._probe_at = now + settings.probe_seconds
        self._seen: tuple[str, ...] = ()

    def configure(self, settings: EvictionSettings) -> None:
        """From now on these settings count; a wait that has begun ends when it would have."""
        self._settings = settings
        self._backoff.configure(settings.backoff_initial_seconds, settings.backoff_maximum_seconds)

    def join(self, candidate: Candidate) -> None:
        """Add a pod, or renew what is known of it."""
        if self.waiting.get(candidate.uid) != candidate:
            self.waiting[candidate.uid] = candidate
            self._is_unsorted = True

    def leave(self, uid: str) -> None:
        """Take a pod out; what its eviction may have cost is still accounted for."""
        self.waiting.pop(uid, None)
        self._later.pop(uid, None)
        self._refused_free.pop(uid, None)
        self._refusals.pop(uid, None)

    @property
    def is_idle(self) -> bool:
        """Nobody waits and nothing is unaccounted: the lane may be forgotten."""
        return not self.waiting and not self._granted

    def decide(self, now: float, look: Look) -> Ask | Sleep | Done:
        """Whom to ask at `now`; those who are gone or on their way are passed over."""
        living = self._living(look)
        budgets = self._budgets(look)
        self._account(now, look, budgets)
        first = next(living, None)
        if first is None:
            return Sleep(self._unshown(now) - now) if self._granted else Done()
        self._note_news(now, _versions(budgets))
        if 0 < len(budgets) < len(self.budgets):
            # One of several budgets is gone: its pods are about to be moved to the lane of what is left, and until
            # then two lanes must not ask under the same budget.
            return Sleep(self._settings.probe_seconds)
        if now < self._closed_until:
            return Sleep(self._closed_until - now)
        return self._choose(now, chain((first,), living), budgets)

    def _living(self, look: Look) -> Iterator[tuple[Candidate, Pod]]:
        """In order; a lane may be long and is looked at with every event, so no more are looked up than are needed."""
        if self._is_unsorted:
            self._sorted = sorted(self.waiting.values(), key=lambda c: (self._refusals.get(c.uid, 0), c.order))
            self._is_unsorted = False
        for candidate in self._sorted:
            if candidate.uid in self.waiting and (pod := look.living(candidate)):
                yield candidate, pod

    def _choose(
        self, now: float, living: Iterable[tuple[Candidate, Pod]], budgets: tuple[PodDisruptionBudget, ...]
    ) -> Ask | Sleep:
        """The first who may be asked; if nobody may, the next instant at which the clock alone changes that."""
        wake = float("inf")
        later = min(self._probe_at, self._unshown(now))
        is_asleep = now < self._asleep_until and _versions(budgets) == self._refused_at
        ordinary: Leave | None = None  # what the budget says of every pod that runs and is ready
        for candidate, pod in living:
            if pod.ready and pod.phase not in FREE_PHASES:
                leave = ordinary = ordinary or may_leave(pod, budgets, taken=len(self._granted)).leave
            else:
                leave = may_leave(pod, budgets, taken=len(self._granted)).leave
            is_free = leave is Leave.FREE
            if is_free:
                due = now
            elif leave in (Leave.ALLOWED, Leave.AMBIGUOUS):
                due = self._asleep_until if is_asleep else now
            else:
                due = later
            due = max(due, self._later.get(candidate.uid, now))
            if due <= now:
                return Ask(candidate, is_free)
            wake = min(wake, due)
        return Sleep(wake - now)

    def _unshown(self, now: float) -> float:
        """When the next granted eviction becomes overdue; what is overdue already waits for the watch, or a probe."""
        coming = (granted.overdue for granted in self._granted.values() if granted.overdue > now)
        return min(coming, default=now + self._settings.probe_seconds)

    # What the server has answered.

    def grant(self, ask: Ask, versions: tuple[str, ...], now: float) -> None:
        """201: the pod goes. `versions` of the budgets were current when it was asked for."""
        self.charge(ask, versions, now)
        self.leave(ask.candidate.uid)
        self._backoff.reset()
        self._asleep_until = now
        self._probe_at = now + self._settings.probe_seconds

    def charge(self, ask: Ask, versions: tuple[str, ...], now: float) -> None:
        """The budget has paid for this pod, whether or not it goes: that counts until the watch has shown it."""
        if not ask.is_free and self.budgets:
            self._granted[ask.candidate.uid] = _Granted(ask.candidate, versions, now + UNSHOWN_SECONDS)

    def refuse(self, ask: Ask, versions: tuple[str, ...], now: float, retry_after: float | None) -> None:
        """429 for the budget: the lane sleeps, not the pod. A budget just edited names `retry_after` (seconds)."""
        wait = self._backoff.next() if retry_after is None else retry_after
        self._probe_at = now + self._settings.probe_seconds
        if ask.is_free:
            if ask.candidate.uid in self.waiting:
                self._later[ask.candidate.uid] = now + wait
                self._refused_free[ask.candidate.uid] = versions
            return
        self._asleep_until = now + wait
        self._refused_at = versions

    def refuse_ambiguous(self, versions: tuple[str, ...], now: float) -> None:
        """500 for several budgets: asked again slowly, or when one of them changes."""
        self._asleep_until = now + self._settings.misconfigured_retry_seconds
        self._refused_at = versions

    def close(self, now: float, seconds: float | None = None) -> None:
        """The server is busy or has failed: nobody asks for `seconds` (None: the lane's own backoff)."""
        self._closed_until = now + (self._backoff.next() if seconds is None else seconds)

    def put_off(self, ask: Ask, now: float, seconds: float = 0.0) -> None:
        """The server will not let this very pod go now (an admission webhook, say): the others need not wait.

        Each refusal doubles the pod's own wait, up to that of what only a person can mend.
        """
        if ask.candidate.uid in self.waiting:
            longest = max(self._settings.misconfigured_retry_seconds, self._settings.backoff_initial_seconds)
            doublings = min(self._refusals.get(ask.candidate.uid, 0), _DOUBLINGS)
            own = min(longest, self._settings.backoff_initial_seconds * 2**doublings)
            self._later[ask.candidate.uid] = now + max(seconds, own)
            self._refused_free.pop(ask.candidate.uid, None)
            self.put_last(ask)

    def put_last(self, ask: Ask) -> None:
        """It went wrong with this pod: next time the others go first, so that it cannot hold them up for ever."""
        if ask.candidate.uid in self.waiting:
            self._refusals[ask.candidate.uid] = self._refusals.get(ask.candidate.uid, 0) + 1
            self._is_unsorted = True

    def _budgets(self, look: Look) -> tuple[PodDisruptionBudget, ...]:
        return tuple(b for key in self.budgets if (b := look.budget(key)))

    def versions(self, look: Look) -> tuple[str, ...]:
        """The versions of the lane's budgets that the cache shows."""
        return _versions(self._budgets(look))

    def _note_news(self, now: float, versions: tuple[str, ...]) -> None:
        if versions != self._seen:
            self._seen = versions
            for uid in [uid for uid, refused_at in self._refused_free.items() if refused_at != versions]:
                del self._refused_free[uid]
                self._later.pop(uid, None)
            self._probe_at = now + self._settings.probe_seconds

    def _account(self, now: float, look: Look, budgets: tuple[PodDisruptionBudget, ...]) -> None:
        """Strike out what the watch has shown: the pod listed as disrupted, or terminating beside a newer budget."""
        versions = _versions(budgets)
        for uid, granted in list(self._granted.items()):
            is_listed = any(granted.candidate.name in b.disrupted_pods for b in budgets)
            is_going = look.living(granted.candidate) is None
            is_settled = is_going and (versions != granted.versions or now >= granted.overdue)
            if is_listed or is_settled or not budgets:
                del self._granted[uid]


def _versions(budgets: tuple[PodDisruptionBudget, ...]) -> tuple[str, ...]:
    return tuple(b.resource_version for b in budgets)
