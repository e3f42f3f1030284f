"""One lane: the pods that wait for the same budget, and the choice of who is asked next.

A lane does no I/O. It is told what the server answered and what the caches show, and says whom to ask, or how long
to sleep. Invariants: a pod that was granted is never chosen again; while the watch has not yet shown what a granted
eviction has cost, that disruption counts as taken; a refused lane does not ask before its backoff is over, unless a
newer state of the budget shows that the world has moved on.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gracectl.eviction.settings import EvictionSettings
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import Leave, may_leave
from gracectl.runtime.backoff import Backoff

BudgetKey = tuple[str, str]


class Candidate(msgspec.Struct, frozen=True):
    """A pod whose turn on its node has come. Times are Unix seconds."""

    namespace: str
    name: str
    uid: str
    node: str
    budgets: tuple[BudgetKey, ...]
    terminating_since: float
    deadline: float | None = None

    @property
    def order(self) -> tuple[float, float, str, str]:
        """Earliest deadline first, then the oldest termination; names make it total."""
        deadline = float("inf") if self.deadline is None else self.deadline
        return (deadline, self.terminating_since, self.namespace, self.name)


class Ask(msgspec.Struct, frozen=True):
    """Evict this one now. `is_free`: no budget is expected to be charged. `is_doubtful`: look at the pod first."""

    candidate: Candidate
    is_free: bool
    is_doubtful: bool = False


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


class Lane:
    """The queue of one budget, of one pod without a budget, or of pods that the same several budgets select."""

    def __init__(
        self, budgets: tuple[BudgetKey, ...], settings: EvictionSettings, backoff: Backoff, now: float
    ) -> None:
        self.budgets = budgets
        self.waiting: dict[str, Candidate] = {}
        self._settings = settings
        self._backoff = backoff
        self._granted: dict[str, _Granted] = {}
        self._doubtful: set[str] = set()
        self._later: dict[str, float] = {}  # free pods that were refused all the same
        self._closed_until = now  # nobody is asked: the server is busy or failing
        self._asleep_until = now  # only free pods are asked: the budget has refused
        self._refused_at: tuple[str, ...] = ()  # versions of the budgets at that refusal
        self._probe_at = now + settings.probe_seconds
        self._seen: tuple[str, ...] = ()

    def join(self, candidate: Candidate) -> None:
        """Add a pod, or renew what is known of it."""
        self.waiting[candidate.uid] = candidate

    def leave(self, uid: str) -> None:
        """Take a pod out; what its eviction may have cost is still accounted for."""
        self.waiting.pop(uid, None)
        self._doubtful.discard(uid)
        self._later.pop(uid, None)

    @property
    def is_idle(self) -> bool:
        """Nobody waits and nothing is unaccounted: the lane may be forgotten."""
        return not self.waiting and not self._granted

    def decide(self, now: float, look: Look) -> Ask | Sleep | Done:
        """Whom to ask at `now` (Unix seconds); those who are gone or on their way are passed over."""
        living = self._living(look)
        budgets = self._budgets(look)
        self._account(look, budgets)
        if not living:
            return Done()
        self._note_news(now, _versions(budgets))
        if now < self._closed_until:
            return Sleep(self._closed_until - now)
        return self._choose(now, living, budgets)

    def _living(self, look: Look) -> list[tuple[Candidate, Pod]]:
        in_order = sorted(self.waiting.values(), key=lambda c: c.order)
        return [(candidate, pod) for candidate in in_order if (pod := look.living(candidate))]

    def _choose(
        self, now: float, living: list[tuple[Candidate, Pod]], budgets: tuple[PodDisruptionBudget, ...]
    ) -> Ask | Sleep:
        wake = self._probe_at
        is_asleep = now < self._asleep_until and _versions(budgets) == self._refused_at
        for candidate, pod in living:
            match may_leave(pod, budgets, taken=len(self._granted)).leave:
                case Leave.FREE if now < (later := self._later.get(candidate.uid, now)):
                    wake = min(wake, later)
                case Leave.FREE:
                    return self._ask(candidate, is_free=True)
                case Leave.ALLOWED | Leave.AMBIGUOUS if is_asleep:
                    wake = min(wake, self._asleep_until)
                case Leave.ALLOWED | Leave.AMBIGUOUS:
                    return self._ask(candidate, is_free=False)
                case _ if now >= self._probe_at:
                    return self._ask(candidate, is_free=False)
        return Sleep(wake - now)

    def _ask(self, candidate: Candidate, *, is_free: bool) -> Ask:
        return Ask(candidate, is_free, is_doubtful=candidate.uid in self._doubtful)

    # What the server has answered.

    def grant(self, ask: Ask, versions: tuple[str, ...], now: float) -> None:
        """201: the pod goes. `versions` of the budgets were current when it was asked for."""
        if not ask.is_free and self.budgets:
            self._granted[ask.candidate.uid] = _Granted(ask.candidate, versions)
        self.leave(ask.candidate.uid)
        self._backoff.reset()
        self._asleep_until = now
        self._probe_at = now + self._settings.probe_seconds

    def refuse(self, ask: Ask, versions: tuple[str, ...], now: float, retry_after: float | None) -> None:
        """429 for the budget: the lane sleeps, not the pod. A budget just edited names `retry_after` (seconds)."""
        wait = self._backoff.next() if retry_after is None else retry_after
        self._probe_at = now + self._settings.probe_seconds
        if ask.is_free:
            self._later[ask.candidate.uid] = now + wait
            return
        self._asleep_until = now + wait
        self._refused_at = versions

    def refuse_ambiguous(self, versions: tuple[str, ...], now: float) -> None:
        """500 for several budgets: asked again slowly, or when one of them changes."""
        self._asleep_until = now + self._settings.misconfigured_retry_seconds
        self._refused_at = versions

    def close(self, now: float, seconds: float | None = None, doubtful: str | None = None) -> None:
        """The server is busy or has failed: nobody asks for `seconds` (None: the lane's own backoff).

        `doubtful`: the UID of a pod that may have been evicted all the same.
        """
        self._closed_until = now + (self._backoff.next() if seconds is None else seconds)
        if doubtful:
            self._doubtful.add(doubtful)

    def trust(self, uid: str) -> None:
        """The pod was looked at and is still there: the failed eviction did not happen."""
        self._doubtful.discard(uid)

    def _budgets(self, look: Look) -> tuple[PodDisruptionBudget, ...]:
        return tuple(b for key in self.budgets if (b := look.budget(key)))

    def versions(self, look: Look) -> tuple[str, ...]:
        """The versions of the lane's budgets that the cache shows."""
        return _versions(self._budgets(look))

    def _note_news(self, now: float, versions: tuple[str, ...]) -> None:
        if versions != self._seen:
            self._seen = versions
            self._probe_at = now + self._settings.probe_seconds

    def _account(self, look: Look, budgets: tuple[PodDisruptionBudget, ...]) -> None:
        """Strike out what the watch has shown: the pod listed as disrupted, or terminating beside a newer budget."""
        for uid, granted in list(self._granted.items()):
            is_listed = any(granted.candidate.name in b.disrupted_pods for b in budgets)
            is_past = look.living(granted.candidate) is None and _versions(budgets) != granted.versions
            if is_listed or is_past or not budgets:
                del self._granted[uid]


def _versions(budgets: tuple[PodDisruptionBudget, ...]) -> tuple[str, ...]:
    return tuple(b.resource_version for b in budgets)
