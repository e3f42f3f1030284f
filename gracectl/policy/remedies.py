"""Remedies: for each cause of blocking, the command that resolves it, and the owner of the workload to ask.

One table by reason, for `status`, `plan` and their JSON. Invariant: names of others are quoted for a shell, and their
texts are harmless.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.foreign import harmless
from gracectl.model.pod import Pod
from gracectl.policy.budgets import failure_of, never_allows
from gracectl.policy.plan import Blocker, Outcome, PodPlan

_LONGER: Final = "give it a longer terminationGracePeriod before it is deleted"

REMEDIES: Final[Mapping[str, str]] = {
    Blocker.BUDGET: "see which of its pods are not Ready: gracectl budgets -n {namespace}",
    Blocker.UNOBSERVED: "wait; if it stays so, kube-controller-manager does not count budgets",
    Blocker.PROTECTION: "end its protection: kubectl {verb} pod -n {namespace} {pod} {key}-",
    Blocker.UNDECODABLE: "fix or delete it: kubectl delete pod -n {namespace} {pod}",
    "MultipleBudgets": "change their selectors so that one is left: kubectl edit pdb -n {namespace} {budgets}",
    "BudgetNotCounted": "fix or delete it: kubectl describe pdb -n {namespace} {budgets}",
    "BudgetAllowsNothing": "widen it, or run more pods: kubectl edit pdb -n {namespace} {budgets}",
    "InvalidProtection": (
        "give it a duration: kubectl annotate pod -n {namespace} {pod} --overwrite " + names.DO_NOT_DISRUPT + "=4h"
    ),
    "NotManaged": "change nodeSelector of the settings, or its labels: kubectl get node {node} --show-labels",
    "FinalizerMissing": "see whether a controller runs and manages it: gracectl doctor",
    "NoController": "see whether a controller runs: gracectl doctor",
    "NodeBudgetBlocks": "see what it counts: gracectl budgets",
    "NeverDrains": "give the node a deadline: kubectl annotate node {node} " + names.TERMINATION_TIMESTAMP + "=TIME",
    "MachineKeepsRunning": "terminate it in the cloud, or set provider.name before",
    "NotReady": "see why: kubectl describe node {node}",
    "SeveralNodeClaims": "delete all but one: kubectl delete nodeclaim NAME",
    "InvalidDeadline": (
        "write it as an instant: kubectl annotate {kind} {name} --overwrite "
        + names.TERMINATION_TIMESTAMP
        + "=2026-01-01T00:00:00Z"
    ),
    "BudgetViolated": _LONGER,
    "GraceShortened": _LONGER,
    "ProtectionOverridden": _LONGER,
    "WavesTooLong": f"give its waves shorter periods, or {_LONGER}",
    "OutOfOrder": "give its wave a longer period",
}
"""By the value of a Blocker or a WarningKind. Causes that are missing have none: they end by themselves."""


LONGEST_NAME: Final = 253
"""Characters of the name of an object."""


def remedy(reason: str, **fields: str) -> str:
    """The remedy of a reason; empty if there is none. `fields`: names of objects."""
    return REMEDIES.get(reason, "").format_map({key: _quoted(value) for key, value in fields.items()})


def pod_remedy(entry: PodPlan, budgets: Sequence[PodDisruptionBudget]) -> str:
    """The owner to ask, and the command that lets a blocked pod go; empty for a pod that is not blocked itself.

    `budgets`: those that select it.
    """
    pod, key = entry.pod, names.DO_NOT_DISRUPT
    if entry.protection is not None and entry.protection.kind == "do-not-evict":
        key = names.DO_NOT_EVICT
    found = remedy(
        _reason(entry, budgets),
        namespace=pod.namespace,
        pod=pod.name,
        budgets=" ".join(budget.name for budget in budgets),
        verb="label" if key in pod.labels and key == names.DO_NOT_EVICT else "annotate",
        key=key,
    )
    owner = owner_of(pod)
    return f"ask {owner}, or {found}" if found and owner else found


def owner_of(pod: Pod) -> str:
    """`payments (label team)`: the owner of a workload, by the first of OWNER_KEYS that it has; else empty."""
    for key in names.OWNER_KEYS:
        for where, texts in (("annotation", pod.annotations), ("label", pod.labels)):
            if text := texts.get(key, "").strip():
                return f"{harmless(text)} ({where} {key})"
    return ""


def _reason(entry: PodPlan, budgets: Sequence[PodDisruptionBudget]) -> str:
    """The reason why a pod is blocked, as REMEDIES has it; empty if it is not, or waits for other pods."""
    if entry.blocker is Blocker.UNDECODABLE:
        return entry.blocker
    if entry.outcome is Outcome.PROTECTED and entry.protection is not None:
        return Blocker.PROTECTION if entry.protection.is_valid else "InvalidProtection"
    if entry.outcome is not Outcome.BLOCKED or not budgets:
        return ""
    if len(budgets) > 1:
        return "MultipleBudgets"
    if failure_of(budgets[0]) is not None:
        return "BudgetNotCounted"
    if entry.blocker is Blocker.UNOBSERVED:
        return entry.blocker
    if never_allows(budgets[0]):
        return "BudgetAllowsNothing"
    return "" if budgets[0].disruptions_allowed > 0 else Blocker.BUDGET  # else it waits for its turn only


def _quoted(text: str) -> str:
    """Words for a shell."""
    return " ".join(shlex.quote(harmless(word, LONGEST_NAME)) for word in text.split())
