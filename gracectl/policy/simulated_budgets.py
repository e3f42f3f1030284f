"""Budgets in a simulation: what they allow while pods leave, and replacements become Ready.

It decides with `eviction_verdict`; the disruption controller is reduced to the number of healthy pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.policy.budgets import (
    Allowance,
    BudgetKey,
    eviction_verdict,
    evictions_in_flight,
    failure_of,
    has_no_scale,
    is_counted,
)
from gracectl.policy.scenario import Beginning, PodFacts, Scenario

NAMESAKE_TIMEOUT_SECONDS = 120.0
"""Time for which a budget ignores a pod with the name of an evicted one, if it has not seen that one terminate
(DeletionTimeout of kube-controller-manager's disruption controller).
"""

RECREATED_IMMEDIATELY = frozenset({"ReplicaSet", "ReplicationController", "Job"})
"""Controllers that replace a pod as soon as it terminates; others, such as a StatefulSet, replace it when it is
gone."""


def recreated_after(under: Iterable[PodFacts]) -> int:
    """Seconds from the eviction of one of these pods until its controller replaces it, at most."""
    return max((facts.grace for facts in under if facts.kind not in RECREATED_IMMEDIATELY), default=0)


NO_QUEUES: Final[set[int]] = set()


class _Health:
    """State of a budget. `allows`: verdicts about pods by what these depend on; `after`: states by change of health."""

    __slots__ = ("after", "allows", "budget")

    def __init__(self, budget: PodDisruptionBudget) -> None:
        self.budget = budget
        self.allows: dict[tuple[bool, str, int], bool] = {}
        self.after: dict[int, _Health] = {}


class SimulatedBudgets:
    """All budgets of a simulation, by their numbers."""

    def __init__(self, beginning: Beginning, scenario: Scenario) -> None:
        self._now = beginning.at
        self._scenario = scenario
        self._keys = tuple(beginning.budgets)
        self._under = beginning.under
        self._lanes_of = beginning.lanes_of
        self._health = [_Health(budget) for budget in beginning.budgets.values()]
        self._uncounted: set[int] = set()
        self._known: dict[tuple[BudgetKey, int, int], _Health] = {}
        self._takes: dict[int, float] = {}  # seconds of a replacement
        self._replacement_ready: dict[tuple[str, int], float] = {}  # by owner and budget

    def over(self, facts: PodFacts) -> tuple[PodDisruptionBudget, ...]:
        """The budgets that select a pod, as they are now."""
        return tuple(self._health[number].budget for number in facts.numbers)

    def allows(self, facts: PodFacts) -> bool:
        """Whether they allow the eviction of a pod now."""
        verdicts = self._health[facts.numbers[0]].allows
        allows = verdicts.get(facts.charge)
        if allows is None:
            allowance = eviction_verdict(facts.pod, self.over(facts)).allowance
            allows = verdicts[facts.charge] = allowance in (Allowance.UNCHARGED, Allowance.ALLOWED)
        return allows

    def adjust(self, number: int, change: int) -> set[int]:
        """Change the number of healthy pods of a budget, and what it allows; returns the queues to try again."""
        if number in self._uncounted:
            return NO_QUEUES
        health = self._health[number]
        after = health.after.get(change)
        if after is None:
            after = health.after[change] = self._adjusted(health.budget, change)
        self._health[number] = after
        return self._lanes_of[number]

    def _adjusted(self, budget: PodDisruptionBudget, change: int) -> _Health:
        """Never more healthy pods than it expects: the replacement of a pod that was not Ready may be the one that was
        missing.
        """
        most = max(budget.expected_pods, budget.current_healthy)
        healthy = min(max(budget.current_healthy + change, 0), most)
        allowed = max(healthy - budget.desired_healthy, 0) if failure_of(budget) is None else 0
        found = self._known.get((budget.key, healthy, allowed))
        if found is None:
            budget = msgspec.structs.replace(budget, current_healthy=healthy, disruptions_allowed=allowed)
            found = self._known[budget.key, healthy, allowed] = _Health(budget)
        return found

    def recoveries(self, replaced: Mapping[int, Sequence[float]]) -> Iterator[tuple[float, int]]:
        """Instants at which the pods are Ready that budgets lack at present, and their budgets.

        It begins with what the statuses will be: with evictions counted that are only charged now. `replaced`: when
        replacements of pods are Ready that terminate on these nodes.
        """
        for number, health in enumerate(self._health):
            budget = health.budget
            if self._is_uncounted(budget):
                self._uncounted.add(number)
                self._start_uncounted(health)
                continue
            in_flight = evictions_in_flight(budget)
            healthy = budget.current_healthy - in_flight
            health.budget = msgspec.structs.replace(
                budget, observed_generation=budget.generation, current_healthy=healthy
            )
            missing = max(budget.expected_pods - healthy, 0)
            if missing and not self._scenario.never_recovers(budget.key):
                seen = sorted(replaced.get(number, ()))
                late = [*seen, *self._recovering(budget, missing, len(seen), in_flight)]
                for at in [self._now] * missing if self._scenario.pods_recover else late[:missing]:
                    yield at, number

    def _is_uncounted(self, budget: PodDisruptionBudget) -> bool:
        """Whether the status says nothing yet; pods that it can never count are another matter."""
        if failure_of(budget) is not None or is_counted(budget):
            return False
        return not any(has_no_scale(facts.pod, budget) for facts in self._under[budget.key])

    def _start_uncounted(self, health: _Health) -> None:
        """Start with a budget that is being counted: it may allow everything, or nothing."""
        if self._scenario.pods_recover:
            budget = health.budget
            most = len(self._under[budget.key])
            health.budget = msgspec.structs.replace(
                budget, observed_generation=budget.generation, disruptions_allowed=most, expected_pods=most
            )

    def _recovering(self, budget: PodDisruptionBudget, missing: int, seen: int, in_flight: int) -> list[float]:
        """When the pods are Ready that a budget has been missing for no longer than replacements take.

        `seen`: number of them that terminate on these nodes. `in_flight`: evictions that are charged and not counted.
        """
        takes = self._takes_elsewhere(budget.key)
        longest = takes + self._scenario.longest(budget.key) - self._scenario.takes(budget.key)
        since = self._scenario.observed.missing_since.get(budget.key)
        if since is not None:
            return [at + takes for at in since[: max(len(since) - seen, 0)] if at + longest > self._now]
        found = [self._now + takes] * (in_flight - max(seen - (missing - in_flight), 0))
        verdict = budget.verdict
        if verdict is not None and verdict.status != names.TRUE and verdict.last_transition is not None:
            at = verdict.last_transition
            found = [at + takes] * missing if at + longest > self._now else found
        return found

    def _takes_elsewhere(self, key: BudgetKey) -> float:
        """Seconds from an eviction until the replacement is Ready, of a pod that is not seen here."""
        takes = self._scenario.takes(key)
        if self._scenario.is_expected or self._scenario.is_quick(key):
            return takes
        return takes + recreated_after(self._under[key])

    def replacement_ready_at(self, facts: PodFacts, number: int, now: float, ends: float, *, is_evicted: bool) -> float:
        """When the replacement of a pod that is removed `now` is Ready; infinity if there will be none. `ends`: when
        the pod terminates.

        ::

            ReplicaSet, Job   removed ─▶ replacement_seconds ─▶ Ready
            StatefulSet       removed ─▶ terminated ─▶ the one replaced before is Ready ─▶ replacement_seconds ─▶ Ready
            none, DaemonSet   never
        """
        if facts.kind in ("", names.DAEMON_SET):
            return math.inf
        takes = self._takes.get(number)
        if takes is None:
            takes = self._takes[number] = self._scenario.takes(self._keys[number])
        if facts.kind in RECREATED_IMMEDIATELY or self._scenario.is_expected:
            return now + takes  # observed durations count from the eviction
        previous_ready = self._replacement_ready.get((facts.owner, number), -math.inf)
        ready = max(ends, previous_ready) + takes
        if takes and is_evicted and facts.grace == 0:
            # A pod without grace is gone before the disruption controller has seen it terminate, so that the budget may
            # take the replacement, which has the same name, for it.
            ready = max(ready, now + NAMESAKE_TIMEOUT_SECONDS)
        self._replacement_ready[facts.owner, number] = ready
        return ready
