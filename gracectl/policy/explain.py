"""Explanations of a plan: why a node is not drained yet, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.times import format_time
from gracectl.policy.deadlines import asked_at
from gracectl.policy.plan import Blocker, Outcome, Plan, PodPlan

# Outcomes on which a person can act come first.
URGENCY = (
    Outcome.BLOCKED,
    Outcome.PROTECTED,
    Outcome.RETURN,
    Outcome.REPLACING,
    Outcome.REPLACE,
    Outcome.DELETE,
    Outcome.TERMINATING,
    Outcome.EVICT,
    Outcome.WAITING,
)

_FIRST = (Blocker.UNDECODABLE, Blocker.RETURNED, Blocker.SETTLING)
"""Blockers on which a person must also act, although their pods are not in a queue."""

HELD = (Outcome.BLOCKED, Outcome.PROTECTED, Outcome.REPLACING, Outcome.WAITING)
"""Outcomes for which messages add when the deadline ends them."""


def explain(plan: Plan, *, shown: int = 3) -> str:
    """`5 pods left: shop/web-1 (budget …), …, and 2 more; node deadline …`: the first `shown`, what blocks first."""
    left = by_urgency(plan.left)
    if not left:
        return "all pods are gone"
    ends = f"; node deadline {format_time(plan.deadline)}" if plan.deadline is not None else ""
    words = [explain_pod(entry) for entry in left[:shown]]
    return f"{counted(len(left), 'pod')} left: {listed(words, shown, of=len(left))}{ends}"


def by_urgency(entries: Iterable[PodPlan]) -> list[PodPlan]:
    """Sort by urgency: pods on which a person can act come first."""
    return sorted(entries, key=urgency_of)


def urgency_of(entry: PodPlan) -> int:
    """Sort key: pods on which a person can act come first."""
    return 0 if entry.blocker in _FIRST else URGENCY.index(entry.outcome)


def left_behind(plan: Plan, *, shown: int = 3) -> str:
    """`the deadline … has passed with 5 pods left: shop/web-1 (running), …, and 2 more`; empty when there are none."""
    if plan.deadline is None or not plan.left:
        return ""
    names = [
        f"{entry.pod.full_name} ({'running' if entry.pod.deletion_timestamp is None else 'terminating'})"
        for entry in plan.left
    ]
    pods = counted(len(names), "pod")
    return f"the deadline {format_time(plan.deadline)} has passed with {pods} left: {listed(names, shown)}"


def counted(number: int, one: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def agreed(things: Sized, one: str, many: str) -> str:
    """`one` for a single thing, else `many`: `is` or `are`, `its` or `their`."""
    return one if len(things) == 1 else many


def listed(words: Sequence[str], shown: int = 3, *, of: int | None = None) -> str:
    """`a, b, c, and 2 more`: the first `shown`. `of`: how many there are, where only these are given."""
    number = len(words) if of is None else of
    more = [f"and {number - shown} more"] if number > shown else []
    return ", ".join([*words[:shown], *more])


def summarize(plan: Plan) -> str:
    """The most urgent pod, its reason first, for a line that may be cut off: `budget … – shop/web-1 and 4 more`."""
    if not plan.left:
        return ""
    first = min(plan.left, key=urgency_of)
    others = f" and {len(plan.left) - 1} more" if len(plan.left) > 1 else ""
    return f"{_reason(first)} – {first.pod.full_name}{others}"


def stuck_text(plan: Plan, *, shown: int = 3) -> str:
    """`shop/db-0 may still run: terminating, more than a minute past its grace, and its kubelet is alive`; empty when
    no pod is stuck."""
    names = [entry.pod.full_name for entry in plan.stuck]
    its = agreed(names, "its", "their")
    state = f"terminating, more than a minute past {its} grace, and the kubelet is alive"
    return f"{listed(names, shown)} may still run: {state}" if names else ""


def blocked_since(entry: PodPlan, budgets: Sequence[PodDisruptionBudget], began: float) -> float:
    """Start (Unix seconds) of a pod's current state in a plan, as far as the objects show it.

    `budgets`: the budgets that select the pod. `began`: when the drain of its node was requested. A terminating pod:
    its deletion. A pod blocked by a budget: when the budget last allowed a disruption. Others: `began`.
    """
    if entry.pod.deletion_timestamp is not None:
        return asked_at(entry.pod)
    since = max(began, entry.pod.created)
    verdict = budgets[0].verdict if len(budgets) == 1 and entry.outcome is Outcome.BLOCKED else None
    if verdict is None or verdict.last_transition is None or budgets[0].disruptions_allowed > 0:
        return since
    return max(since, verdict.last_transition)


def explain_pod(entry: PodPlan) -> str:
    """`shop/web-1 (protected by do-not-disrupt "4h" until 2026-01-01T14:00:00Z)`."""
    return f"{entry.pod.full_name} ({_reason(entry)})"


def _reason(entry: PodPlan) -> str:
    until = f" until {format_time(entry.until)}" if entry.until is not None else ""
    if entry.protection is not None:
        until += entry.protection.limit_note
    forced = ""
    if entry.deleted_by is not None and entry.outcome in HELD:
        forced = f"; it is deleted at {format_time(entry.deleted_by)} at the latest"
    return (entry.reason or "is being evicted") + until + forced
