"""Observations of replacements and terminations, for forecasts.

Pure: the caller records each change of a budget's status, and each deleted pod. Invariant: memory is bounded by the
existing budgets.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.answers import NeverCause
from gracectl.policy.budgets import BudgetKey, evictions_in_flight, failure_of, never_allows

REMEMBERED: Final = 50
"""Number of replacements, or terminations, for a median."""

MOST_PODS: Final = 10_000
"""Maximum pods with a remembered last change."""


class Observations(msgspec.Struct, frozen=True):
    """Observations so far. Instants are Unix seconds.

    `missing_since`: by budget, when each missing pod became missing, the earliest first; only observed ones.
    `recoveries`: by budget, seconds from evictions until the replacements counted as healthy. `termination_seconds`:
    the median; None: none observed. `allowing`: budgets that at some time allowed a disruption, or required fewer than
    all of their pods.
    """

    missing_since: Mapping[BudgetKey, tuple[float, ...]] = {}
    recoveries: Mapping[BudgetKey, tuple[float, ...]] = {}
    termination_seconds: float | None = None
    allowing: frozenset[BudgetKey] = frozenset()

    def expected_recovery(self, key: BudgetKey) -> float | None:
        """The median of a budget, or else of all; None: no replacement was seen."""
        seconds = self.recoveries.get(key) or [each for found in self.recoveries.values() for each in found]
        return statistics.median(seconds) if seconds else None

    def longest_recovery(self, key: BudgetKey) -> float:
        """The longest of a budget; 0 without one."""
        return max(self.recoveries.get(key, ()), default=0.0)


NOTHING_OBSERVED: Final = Observations()


class _Watched(msgspec.Struct):
    """Budget: number of healthy pods, instants at which others became missing, and durations of replacements.

    `bounds`: the fields that decide whether it ever allows a disruption; `changed_at`: their last change.
    """

    uid: str
    healthy: int
    missing: deque[float]
    recoveries: deque[float]
    has_allowed: bool = False
    bounds: tuple[object, ...] = ()
    changed_at: float = -math.inf


class ObservationLog:
    """Observations while the cluster is followed. Mutable; one owner."""

    def __init__(self) -> None:
        self._budgets: dict[BudgetKey, _Watched] = {}
        self._terminations: deque[float] = deque(maxlen=REMEMBERED)
        self._pods: OrderedDict[str, float] = OrderedDict()  # by full name, when its protection or labels changed

    def note_budget(self, budget: PodDisruptionBudget, now: float) -> None:
        """Take note of the status of a budget."""
        healthy = budget.current_healthy - evictions_in_flight(budget)
        watched = self._budgets.get(budget.key)
        if watched is None or watched.uid != budget.uid:
            watched = _Watched(budget.uid, healthy, deque(), deque(maxlen=REMEMBERED))
            self._budgets[budget.key] = watched
        counted = (budget.desired_healthy, budget.expected_pods, failure_of(budget))
        if (bounds := (budget.generation, budget.observed_generation, *counted)) != watched.bounds:
            watched.bounds, watched.changed_at = bounds, now
        for _ in range(watched.healthy - healthy):
            watched.missing.append(now)
        for _ in range(min(healthy - watched.healthy, len(watched.missing))):
            watched.recoveries.append(now - watched.missing.popleft())
        while len(watched.missing) > max(budget.expected_pods - healthy, 0):
            watched.missing.popleft()  # scaled down: it is not replaced
        watched.healthy = healthy
        allows = budget.disruptions_allowed > 0 or (budget.expected_pods > 0 and not never_allows(budget))
        watched.has_allowed = watched.has_allowed or allows

    def forget_budget(self, key: BudgetKey) -> None:
        """The budget is deleted."""
        self._budgets.pop(key, None)

    def note_gone(self, pod: Pod, now: float) -> None:
        """Take note of a pod that is gone; only one that was terminating says how long that takes."""
        if pod.deletion_timestamp is not None and pod.deletion_grace_seconds is not None:
            began = pod.deletion_timestamp - pod.deletion_grace_seconds
            self._terminations.append(max(now - began, 0.0))

    def note_pod(self, old: Pod | None, new: Pod | None, now: float) -> None:
        """Take note of a change of a pod."""
        if old is None:
            return
        if new is None:
            self.note_gone(old, now)
        if (
            new is None
            or new.uid != old.uid
            or (new.annotations, new.labels) != (old.annotations, old.labels)
            or (new.deletion_timestamp is None) != (old.deletion_timestamp is None)
        ):
            self._pods[old.full_name] = now
            self._pods.move_to_end(old.full_name)
            if len(self._pods) > MOST_PODS:
                self._pods.popitem(last=False)

    def changed_at(self, cause: NeverCause) -> float:
        """When an object of a cause has changed so that the cause may be another."""
        changed = [self._pods.get(cause.pod, -math.inf)]
        for full_name in cause.budgets:
            namespace, _, name = full_name.partition("/")
            budget = self._budgets.get((namespace, name))
            changed.append(math.inf if budget is None else budget.changed_at)
        return max(changed)

    def observations(self) -> Observations:
        """Observations so far; immutable."""
        budgets = self._budgets.items()
        return Observations(
            missing_since={key: tuple(each.missing) for key, each in budgets if each.missing},
            recoveries={key: tuple(each.recoveries) for key, each in budgets if each.recoveries},
            termination_seconds=statistics.median(self._terminations) if self._terminations else None,
            allowing=frozenset(key for key, each in budgets if each.has_allowed),
        )
