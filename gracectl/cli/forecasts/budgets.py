"""What there is to say of the budgets under a forecast: what each allows, who waits for it, and whom it holds up.

Invariant: budgets that are not told of are counted.
"""

from __future__ import annotations

import msgspec

from gracectl.cli.forecasts.words import counted, joined
from gracectl.inspect.forecast import Outlook
from gracectl.model.budget import PodDisruptionBudget
from gracectl.policy.budgets import BudgetKey, failure_of
from gracectl.policy.plan import Outcome

MANY = 16
"""More budgets than these are too many to read."""

SHORT = 48
"""Characters: the names of nodes that take more are counted."""


class BudgetLine(msgspec.Struct, frozen=True):
    """What there is to say of a budget. `holds_up`: so many pods at this moment."""

    name: str
    says: str
    holds_up: int


def budgets_of(outlook: Outlook) -> list[PodDisruptionBudget]:
    """Those over pods that the nodes which were asked about wait for, by name."""
    found: dict[BudgetKey, PodDisruptionBudget] = {}
    for node in outlook.nodes:
        budgets = {budget.key: budget for each in node.prospect.going.view.budgets.values() for budget in each}
        wanted = {key for pod in node.prospect.pods if pod.is_waited_for for key in pod.entry.budgets}
        found |= {key: budgets[key] for key in wanted}
    return [found[key] for key in sorted(found)]


def budget_line(outlook: Outlook, budget: PodDisruptionBudget) -> BudgetLine:
    under = [
        pod.entry
        for node in outlook.whole.nodes
        for pod in node.pods
        if budget.key in pod.entry.budgets and pod.is_waited_for
    ]
    waiting = [entry for entry in under if entry.wants_out]
    later = [entry for entry in under if entry.outcome in (Outcome.WAITING, Outcome.PROTECTED)]
    # What each node may do for itself may be too much for all of them together.
    beyond = sum(entry.pod.ready for entry in waiting) - budget.disruptions_allowed
    held_up = max(sum(entry.outcome is Outcome.BLOCKED for entry in waiting), beyond)
    parts = [_allowance(budget)]
    if waiting:
        nodes = tuple(dict.fromkeys(entry.pod.node_name for entry in waiting))
        where = joined(nodes) if len(joined(nodes)) <= SHORT else counted(len(nodes), "node")
        parts.append(f"{counted(len(waiting), 'pod')} in its lane, on {where}")
    if later:
        parts.append(f"{counted(len(later), 'pod')} {'comes' if len(later) == 1 else 'come'} to it later")
    if held_up > 0:
        parts.append(f"holds up {counted(held_up, 'pod')} now")
    return BudgetLine("/".join(budget.key), "; ".join(parts), max(held_up, 0))


def tightest(budgets: list[BudgetLine]) -> list[BudgetLine]:
    """Those that hold up most, by name; not too many."""
    tight = sorted((line for line in budgets if line.holds_up), key=lambda line: -line.holds_up)[:MANY]
    return sorted(tight, key=lambda line: line.name)


def the_others(budgets: list[BudgetLine]) -> str:
    """Those that are not shown, counted."""
    held_up = sum(line.holds_up for line in budgets)
    idle = sum(not line.holds_up for line in budgets)
    found = []
    if held_up:
        found.append(f"{counted(len(budgets) - idle, 'budget')} more hold up {counted(held_up, 'pod')}")
    if idle:
        found.append(f"{counted(idle, 'budget')} {'holds' if idle == 1 else 'hold'} up nobody")
    return f"{'; '.join(found)} (-v lists them)" if found else ""


def _allowance(budget: PodDisruptionBudget) -> str:
    if (failure := failure_of(budget)) is not None:
        return f"allows nothing, as it cannot be counted: {failure}"
    health = f"{budget.current_healthy} of {budget.expected_pods} healthy, {budget.desired_healthy} required"
    if budget.observed_generation < budget.generation:
        return f"has just changed and is being counted ({health} before)"
    return f"allows {budget.disruptions_allowed} now ({health})"
