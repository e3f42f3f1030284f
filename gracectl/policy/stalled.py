"""Stalled budgets: no replacement of their pods can be assumed to become Ready, as the objects show.

A forecast assumes that replacements become Ready in time. Three signs refute that: a pod of the budget has no node, a
replacement is late, or no pod of the budget has been Ready yet. Time, an autoscaler or a person may change that, so the
end of what needs a replacement is unknown. It is not "never".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import BudgetKey, failure_of, is_counted
from gracectl.policy.explain import listed
from gracectl.policy.observations import Observations
from gracectl.policy.returning import recreating_controller, workload_of
from gracectl.policy.scenario import Beginning
from gracectl.policy.simulated_budgets import recreated_after
from gracectl.policy.staying import has_allowed

BOUND_SECONDS: Final = 2.0
"""Age from which a pod without a node waits for one, unless replacements were observed to take longer. A scheduler
needs milliseconds, but creation times are whole seconds."""


def is_due(pod: Pod, now: float) -> bool:
    """Whether a starting pod is old enough to be a sign. Younger ones stay out of a forecast, so that it is repeated
    when they are."""
    return pod.created <= now - BOUND_SECONDS


def stalled(beginning: Beginning, replacement_seconds: float, observed: Observations) -> dict[BudgetKey, str]:
    """Find the stalled budgets. Values: what is unknown, in words; empty if the status of the budget says it.

    `replacement_seconds`: maximum seconds until a replacement is Ready, unless others were observed to take longer.
    """
    now, began = beginning.at, math.floor(beginning.since)
    found: dict[BudgetKey, str] = {}
    terminating = Counter(number for facts in beginning.removed for number in facts.numbers)
    for number, (key, budget) in enumerate(beginning.budgets.items()):
        starting, missing = beginning.starting.get(key, ()), observed.missing_since.get(key, ())
        seconds = observed.longest_recovery(key)
        ready_until = now - max(seconds, replacement_seconds)
        if unbound := [pod for pod in starting if not pod.node_name and pod.created <= now - seconds]:
            found[key] = f"when a node takes the Pending pods of {_workloads(unbound)}"
        elif late := [pod for pod in starting if pod.node_name and began <= pod.created < ready_until]:
            found[key] = f"when pods of {_workloads(late)} become Ready"
        elif _was_never_ready(budget, observed):
            found[key] = ""
        elif missing := missing[: max(len(missing) - terminating[number], 0)]:
            evicted_until = ready_until - recreated_after(beginning.under[key])
            if any(began <= at <= evicted_until for at in missing):
                found[key] = ""
    return found


def _was_never_ready(budget: PodDisruptionBudget, observed: Observations) -> bool:
    """Whether no pod of a budget is Ready, and none seems to have been: nothing shows that one can be."""
    if budget.key in observed.recoveries or budget.key in observed.missing_since:
        return False
    is_known = is_counted(budget) and failure_of(budget) is None
    return is_known and budget.current_healthy == 0 and not budget.disrupted_pods and not has_allowed(budget)


def _workloads(pods: Iterable[Pod]) -> str:
    """`Deployment shop/web, Job shop/report`."""
    owners = ((pod, recreating_controller(pod)) for pod in pods)
    return listed(sorted({workload_of(pod, owner) for pod, owner in owners if owner is not None}))
