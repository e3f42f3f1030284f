"""Reasons of pods that stay in a forecast: a structural cause, or an unknown.

A cause is structural only if a person must change something. All other causes may end without that, and are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.meta import condition_of
from gracectl.model.pod import Pod
from gracectl.policy.answers import NeverCause, NeverKind
from gracectl.policy.budgets import BudgetKey, failure_of, has_no_scale, is_counted, never_allows
from gracectl.policy.plan import Blocker, NodeView, Outcome, PodPlan
from gracectl.policy.planner import came_late
from gracectl.policy.remedies import JOB
from gracectl.policy.volumes import listed_attachments

FIRST_COUNT_SECONDS: Final = 10.0
"""Time after its creation by which a budget has its first verdict."""

REPORTED = {
    names.EVICTION_REFUSED: "when the server admits evictions that it refuses for no budget",
    names.REPLACING: "when the replacements of its pods are Ready",
    names.BUDGET_SETTLING: "when the pods that have just lost their budget may leave",
}
"""Texts by the reason of a node's condition Drained."""


def unforeseeable(view: NodeView) -> tuple[str, ...]:
    """Text of what blocks a node although each of its pods can leave."""
    found = {}
    for pod in view.pods:
        came = came_late(view, pod) if pod.deletion_timestamp is None else None
        if came is not None:
            found[came.controller] = f"when {came.workload} stops making pods on this node: {came.cause}"
    drained = condition_of(view.node.conditions, names.DRAINED)
    reported = REPORTED.get(drained.reason, "") if drained is not None and drained.status == names.FALSE else ""
    return (*found.values(), *filter(None, (reported,)))


def why_it_stays(
    entry: PodPlan, budgets: tuple[PodDisruptionBudget, ...], stalled: Mapping[BudgetKey, str], *, is_hopeless: bool
) -> NeverCause | str:
    """Reason why a pod stays: a structural cause, or the text of an unknown; empty if it only waits for other pods.

    `entry`: its plan at the end of the simulation; `budgets`: the budgets that select it, as the cluster shows
    them now. `stalled`: budgets without replacements, and what is unknown of them. `is_hopeless`: it stays in every
    scenario; otherwise nothing is structural.
    """
    found = _why(entry, budgets, stalled, is_hopeless)
    return found if isinstance(found, str) or is_hopeless else f"when this ends: {found.reason}"


def _why(
    entry: PodPlan, budgets: tuple[PodDisruptionBudget, ...], stalled: Mapping[BudgetKey, str], is_hopeless: bool
) -> NeverCause | str:
    pod, name = entry.pod, entry.pod.full_name
    if entry.outcome is Outcome.TERMINATING:
        return f"when {name} terminates"
    if entry.blocker is Blocker.REFUSED:
        return f"when the server admits the eviction of {name}"
    if entry.blocker is Blocker.REPLACEMENT:
        return f"when the replacement of {name} is Ready"
    if entry.blocker is Blocker.UNDECODABLE:
        return f"what becomes of {name}: it cannot be decoded"
    if entry.attachments:
        return f"when these volumes are detached: {listed_attachments(entry.attachments)}"
    if entry.outcome is Outcome.PROTECTED:
        return _protected(entry)
    if entry.outcome is not Outcome.BLOCKED or not budgets:
        return ""
    if (end := own_end_of(pod)) is not None:
        return end
    listed = tuple(budget.full_name for budget in budgets)
    if len(budgets) > 1:
        return NeverCause(NeverKind.TWO_BUDGETS, entry.reason, name, listed)
    return _under_budget(entry, budgets[0], stalled.get(budgets[0].key, ""), is_hopeless)


def may_end_anytime(entry: PodPlan) -> bool:
    """Whether a pod may leave at any instant although no simulation shows that: it completes, or is replaced first."""
    if entry.blocker in (Blocker.REPLACEMENT, Blocker.UNDECODABLE):
        return True
    return entry.outcome is Outcome.PROTECTED and own_end_of(entry.pod) is not None


def own_end_of(pod: Pod) -> str | None:
    """`when Job shop/report of shop/report-x7k2p ends`: unknown end of a pod that finishes; None for other pods."""
    if (controller := pod.controller) is not None and controller.kind == JOB:
        return f"when Job {pod.namespace}/{controller.name} of {pod.full_name} ends"
    return f"when {pod.full_name} completes" if pod.completes else None


def _protected(entry: PodPlan) -> NeverCause | str:
    pod, protection = entry.pod, entry.protection
    assert protection is not None
    if (end := own_end_of(pod)) is not None:
        return end
    if protection.is_valid and protection.value != "true":
        return f"when {pod.full_name} starts: its protection counts from then"
    return NeverCause(NeverKind.PROTECTION, protection.description, pod.full_name)


def _under_budget(entry: PodPlan, budget: PodDisruptionBudget, unknown: str, is_hopeless: bool) -> NeverCause | str:
    """`unknown`: what is unknown of its replacements; empty where the status says it."""
    if (failure := failure_of(budget)) is not None:
        reason = f"budget {budget.full_name} allows nothing, as it cannot be counted: {failure}"
        return _because(NeverKind.BUDGET_NOT_COUNTED, reason, entry, budget)
    if has_no_scale(entry.pod, budget):
        return _because(NeverKind.BUDGET_NOT_COUNTED, entry.reason, entry, budget)
    if not is_counted(budget):
        return f"what budget {budget.full_name} allows: it is being counted"
    if never_allows(budget):
        cause = _because(NeverKind.BUDGET_ALLOWS_NOTHING, entry.reason, entry, budget)
        return msgspec.structs.replace(cause, is_settled=requires_all(budget) and not has_allowed(budget))
    if is_hopeless and not entry.pod.owners:
        # Even where every pod becomes Ready and every controller replaces its pods immediately, it stays.
        reason = f"{entry.reason}, and its pods without a controller are not replaced"
        return _because(NeverKind.NOT_REPLACED, reason, entry, budget)
    if unknown:
        return unknown
    unready = budget.expected_pods - budget.current_healthy
    if unready > 0:
        return (
            f"when budget {budget.full_name} recovers: {unready} of {budget.expected_pods} "
            f"pods {'is' if unready == 1 else 'are'} not Ready"
        )
    return f"when budget {budget.full_name} allows a disruption again"


def _because(kind: NeverKind, reason: str, entry: PodPlan, budget: PodDisruptionBudget) -> NeverCause:
    """A cause that a status shows, and so must be seen twice."""
    verdict = budget.verdict
    since = None if verdict is None or verdict.status == names.TRUE else verdict.last_transition
    return NeverCause(kind, reason, entry.pod.full_name, (budget.full_name,), is_settled=False, since=since)


def has_allowed(budget: PodDisruptionBudget) -> bool:
    """Whether a budget that allows nothing seems to have allowed something before.

    One that requires all pods may: it counts what its controllers want, and more pods than that may have its labels.
    """
    since = budget.verdict.last_transition if budget.verdict is not None else None
    return since is not None and since > budget.created + FIRST_COUNT_SECONDS


def requires_all(budget: PodDisruptionBudget) -> bool:
    """Whether a budget requires all of its pods by its spec, however many they are."""
    if budget.max_unavailable is not None:
        return budget.max_unavailable in (0, "0%")
    return budget.min_available == "100%"
