"""Verdict of PodDisruptionBudgets about one pod, as the eviction API will give it.

The API server has the last word; this is the same arithmetic over what the watch has shown, so that an eviction is
requested when it will succeed, and `status` can say why it will not. Sources: recordings `eviction` and `pdb-status`,
and `unhealthyPodEvictionPolicy` as Kubernetes documents it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget, UnknownBudget
from gracectl.model.foreign import harmless
from gracectl.model.pod import Pod

BudgetKey = tuple[str, str]
"""(namespace, name)"""

LONGEST_FAILURE = 300
"""Characters of the message of a SyncFailed condition that are shown."""

TOO_MANY_BUDGETS: Final = 2
"""Number of budgets for one pod from which the eviction API refuses evictions."""

UNCHARGED_PHASES = frozenset({names.PENDING, names.SUCCEEDED, names.FAILED})


class Allowance(Enum):
    """How the eviction API would treat a request for a pod now."""

    UNCHARGED = auto()
    """No budget applies, or it is not charged."""
    ALLOWED = auto()
    """The budget has a disruption left, and the eviction takes it."""
    EXHAUSTED = auto()
    """The budget allows none now."""
    NOT_COUNTABLE = auto()
    """The budget allows none, as the server cannot tell how many pods it expects, until that is fixed."""
    NOT_OBSERVED = auto()
    """The budget was just created or edited, and the disruption controller has not observed it yet."""
    AMBIGUOUS = auto()
    """Several budgets select the pod: the API refuses until one is left."""


class EvictionVerdict(msgspec.Struct, frozen=True):
    """Whether a pod may be evicted, and the reason if not."""

    allowance: Allowance
    reason: str = ""


def eviction_verdict(pod: Pod, budgets: tuple[PodDisruptionBudget, ...], *, taken: int = 0) -> EvictionVerdict:
    """Verdict of `budgets` (all that select the pod) about evicting it now.

    `taken` disruptions are spoken for: requested in this round, or granted and not yet shown by the watch.
    """
    if not budgets or pod.phase in UNCHARGED_PHASES or pod.deletion_timestamp is not None:
        return EvictionVerdict(Allowance.UNCHARGED)
    if (unknown := unknown_budget_of(budgets)) is not None:
        reason = f"budget {unknown.full_name} may select it, and is set aside: {unknown.error}"
        return EvictionVerdict(Allowance.NOT_COUNTABLE, reason)
    if len(budgets) >= TOO_MANY_BUDGETS:
        listed = " and ".join(b.full_name for b in budgets[:TOO_MANY_BUDGETS])
        reason = f"budgets {listed} both select it: the eviction API refuses the eviction"
        return EvictionVerdict(Allowance.AMBIGUOUS, reason)
    budget = budgets[0]
    if not pod.ready and allows_unready(budget):
        return EvictionVerdict(Allowance.UNCHARGED)
    # Before the generations: the disruption controller does not write observedGeneration when it fails.
    if (failure := failure_of(budget)) is not None:
        return EvictionVerdict(
            Allowance.NOT_COUNTABLE, f"budget {budget.full_name} allows nothing, as it cannot be counted: {failure}"
        )
    if budget.observed_generation < budget.generation:
        return EvictionVerdict(
            Allowance.NOT_OBSERVED, f"budget {budget.full_name} has just changed and is being counted"
        )
    if budget.disruptions_allowed <= 0:
        if has_no_scale(pod, budget):
            reason = f"budget {budget.full_name} counts no pods without a controller, unless minAvailable is an integer"
            return EvictionVerdict(Allowance.NOT_COUNTABLE, reason)
        health = f"{budget.current_healthy} of {budget.expected_pods} healthy, {budget.desired_healthy} required"
        return EvictionVerdict(Allowance.EXHAUSTED, f"budget {budget.full_name} allows no disruption now ({health})")
    if budget.disruptions_allowed <= taken:
        reason = f"waits for its turn under budget {budget.full_name}, which allows {budget.disruptions_allowed} now"
        return EvictionVerdict(Allowance.EXHAUSTED, reason)
    return EvictionVerdict(Allowance.ALLOWED)


def unknown_budget_of(budgets: Iterable[PodDisruptionBudget]) -> UnknownBudget | None:
    """The first budget that is set aside, so that none of its pods may go: which these are is unknown."""
    return next((each for each in budgets if isinstance(each, UnknownBudget)), None)


def allows_unready(budget: PodDisruptionBudget) -> bool:
    """Whether pods that are not ready are evicted uncharged (unhealthyPodEvictionPolicy)."""
    if budget.unhealthy_pod_eviction_policy == names.ALWAYS_ALLOW:
        return True
    return 0 < budget.desired_healthy <= budget.current_healthy


def is_counted(budget: PodDisruptionBudget) -> bool:
    """Whether the status counts pods by the latest spec; a budget without pods is not counted yet for who sees some."""
    return budget.observed_generation >= budget.generation and budget.expected_pods > 0


def evictions_in_flight(budget: PodDisruptionBudget) -> int:
    """How many evictions the status has charged and not counted: `currentHealthy` still contains their pods.

    The eviction API lowers `disruptionsAllowed` immediately; the disruption controller recounts the rest later.
    """
    if not is_counted(budget) or failure_of(budget) is not None:
        return 0
    return max(budget.current_healthy - budget.desired_healthy - budget.disruptions_allowed, 0)


def missing_pods(budget: PodDisruptionBudget) -> int:
    """Number of expected pods that a budget lacks, including evicted pods that its status still counts."""
    return max(budget.expected_pods - budget.current_healthy + evictions_in_flight(budget), 0)


def is_evicted(pod: Pod, budget: PodDisruptionBudget) -> bool:
    """Whether the status has the eviction of a pod that the watch still shows without one."""
    evicted_at = budget.disrupted_pods.get(pod.name)
    return evicted_at is not None and pod.deletion_timestamp is None and pod.created < evicted_at


def never_allows(budget: PodDisruptionBudget) -> bool:
    """Whether the budget allows no disruption even while all of its pods are healthy."""
    return 0 < budget.expected_pods <= budget.desired_healthy


def is_unhealthy(budget: PodDisruptionBudget) -> bool:
    """Whether none of its pods is Ready, so that it allows nothing until that changes, not even these pods to go."""
    return (
        budget.observed_generation >= budget.generation
        and failure_of(budget) is None
        and budget.unhealthy_pod_eviction_policy != names.ALWAYS_ALLOW
        and budget.expected_pods > 0
        and budget.desired_healthy > 0
        and budget.current_healthy == 0
        and not budget.disrupted_pods
    )


def has_no_scale(pod: Pod, budget: PodDisruptionBudget) -> bool:
    """Whether a counted budget expects no pod at all, as this one has no controller to say how many there should be.

    An integer minAvailable counts the pods that exist; every other bound asks their controllers (getExpectedPodCount).
    """
    return (
        budget.observed_generation >= budget.generation
        and budget.expected_pods == 0
        and not isinstance(budget.min_available, int)
        and pod.controller is None
    )


def failure_of(budget: PodDisruptionBudget) -> str | None:
    """Why the server cannot count the pods of this budget, and so allows nothing; None if it can.

    A failed sync sets disruptionsAllowed to 0 and keeps observedGeneration, which is 0 if the budget was never counted.
    """
    if isinstance(budget, UnknownBudget):
        return harmless(f"it is set aside: {budget.error}", LONGEST_FAILURE)
    verdict = budget.verdict
    if verdict is None or verdict.reason != names.SYNC_FAILED or budget.disruptions_allowed > 0:
        return None
    return harmless(verdict.message, LONGEST_FAILURE) or "(no reason given)"
