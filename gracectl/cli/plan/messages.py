"""Texts of a forecast: how and why each pod leaves, when a node is drained, which pods a budget blocks.

The reasons are the policy's own. Invariants: terminal, SVG and HTML say the same; budgets that are not shown are
counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gracectl.cli.format import (
    NO_DEADLINE,
    blocked_by,
    deadline_cause,
    drained_in,
    elapsed,
    elapsed_answer,
    joined,
    queue_text,
)
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.meta import natural_key
from gracectl.model.times import format_time
from gracectl.policy.answers import SAME_SECONDS, Answer, Window
from gracectl.policy.budgets import BudgetKey, failure_of
from gracectl.policy.deadlines import grace_of
from gracectl.policy.eviction_queues import QueuePosition, positions_of
from gracectl.policy.explain import counted
from gracectl.policy.forecast import PodForecast
from gracectl.policy.plan import Blocker, Outcome
from gracectl.policy.scenario import PodRemoval, RemovalMethod
from gracectl.policy.warnings import WarningKind

MANY = 16
"""More budgets than these are too many to read."""

SHORT = 48
"""Characters: the names of nodes that take more are counted."""


class TimeOrigin(msgspec.Struct, frozen=True):
    """The instant (Unix seconds) that is 0:00 in all texts, and the queue position of each pod by uid."""

    at: float
    positions: Mapping[str, QueuePosition] = {}

    def clock(self, instant: float) -> str:
        """An instant, counted from 0:00."""
        return elapsed(instant - self.at)


def time_origin_of(forecast: DrainForecast) -> TimeOrigin:
    """The origin of all texts about a forecast."""
    positions: dict[str, QueuePosition] = {}
    for budgets, lane in forecast.whole.queues.items():
        if budgets:
            positions |= positions_of(lane)
    return TimeOrigin(forecast.whole.at, positions)


# -- pods --------------------------------------------------------------------------------------------------------------


def pod_name(pod: PodForecast) -> str:
    """`shop/web-1`."""
    return f"{pod.entry.pod.namespace}/{pod.entry.pod.name}"


def removal_time(leaves: Answer | None, outcome: Outcome, at: float) -> str:
    """When a pod is evicted or deleted: `0:00-5:00`, `unknown`, `never`, `already`, or `stays`."""
    if leaves is None:
        return "stays" if outcome is Outcome.IGNORED else "already"
    return elapsed_answer(leaves, at)


def removal_text(pod: PodForecast, origin: TimeOrigin, *, of_many: bool = False) -> str:
    """How and why a pod leaves, or why it does not. `of_many`: the text is for a group."""
    if pod.entry.outcome is Outcome.IGNORED:
        return pod.entry.reason
    if pod.entry.pod.deletion_timestamp is not None:
        return _terminating(pod, origin)
    if RemovalMethod.EVICTED in pod.methods:
        return _eviction(pod, origin, of_many) + _deletion(pod, origin)
    if RemovalMethod.DELETED in pod.methods:
        return blocked_by(pod.entry) + _deletion(pod, origin)
    if pod.entry.blocker is Blocker.REPLACEMENT:
        return f"{blocked_by(pod.entry)}, then evicted" + _deletion(pod, origin)
    return f"stays: {blocked_by(pod.final_entry or pod.entry)}"


def short_removal_text(pod: PodForecast) -> str:
    """Removal text that fits many pods, each with its own budget, protection and grace."""
    entry = pod.entry
    if entry.outcome in (Outcome.IGNORED, Outcome.WAITING) or (entry.outcome is Outcome.TERMINATING):
        blocked = "terminating already" if entry.outcome is Outcome.TERMINATING else entry.reason
    elif entry.protection is not None:
        blocked = f"protected by {entry.protection.kind}"
    else:
        blocked = "two budgets select each" if entry.is_ambiguous else ""
    can_evict, can_delete = RemovalMethod.EVICTED in pod.methods, RemovalMethod.DELETED in pod.methods
    methods = [f"evicted{' when their budgets allow it' if entry.budgets else ''}"] if can_evict else []
    methods += ["deleted for the deadline"] if can_delete else []
    methods += ["stay"] if not pod.methods and entry.outcome not in (Outcome.IGNORED, Outcome.TERMINATING) else []
    return "; ".join(filter(None, (blocked, " or ".join(methods))))


def _eviction(pod: PodForecast, origin: TimeOrigin, of_many: bool) -> str:
    entry = pod.entry
    budget = f" when budget {'/'.join(entry.budgets[0])} allows it" if entry.budgets else ""
    if entry.outcome in (Outcome.WAITING, Outcome.PROTECTED):
        return f"{blocked_by(entry)}, then evicted{budget}"
    if entry.outcome is Outcome.EVICT and entry.budgets and pod.is_certain:
        return f"evicted, as budget {'/'.join(entry.budgets[0])} allows it now"
    queued = queue_text(entry, origin.positions.get(entry.pod.uid), of_many=of_many)
    return f"evicted{budget}{f' ({queued})' if queued else ''}"


def _deletion(pod: PodForecast, origin: TimeOrigin) -> str:
    """Suffix about the deletion for the deadline."""
    request = next((request for request in pod.removals if request.method is RemovalMethod.DELETED), None)
    if RemovalMethod.DELETED not in pod.methods or request is None:
        if pod.entry.deleted_by is None or pod.is_certain:
            return ""
        return f"; deleted by {origin.clock(pod.entry.deleted_by)}"
    lead = ", or " if RemovalMethod.EVICTED in pod.methods else "; " if blocked_by(pod.entry) else ""
    when = f"at {origin.clock(request.at)}"
    first = max(pod.entry.delete_at or request.at, origin.at)
    if request.at - first >= SAME_SECONDS:  # later, if the pods are gone for which time is reserved
        when = f"between {origin.clock(first)} and {origin.clock(request.at)}"
    return f"{lead}deleted {when} for the deadline ({_grace(request, pod)})"


def _grace(request: PodRemoval, pod: PodForecast) -> str:
    whole = grace_of(pod.entry.pod)
    return f"grace {whole} s" if request.grace >= whole else f"grace {request.grace} of {whole} s"


def _terminating(pod: PodForecast, origin: TimeOrigin) -> str:
    until = "" if pod.entry.until is None else f" until {origin.clock(pod.entry.until)} at the latest"
    return f"terminating{until or ' already'}" + "".join(
        f"; deleted again at {origin.clock(request.at)} for the deadline ({_grace(request, pod)})"
        for request in pod.removals
    )


# -- nodes -------------------------------------------------------------------------------------------------------------


UNMANAGED = frozenset({WarningKind.NOT_MANAGED, WarningKind.FINALIZER_MISSING})
"""Kinds of warnings about nodes that no controller drains."""


def is_unmanaged(node: NodeDrainForecast) -> bool:
    """Whether no controller would drain the node in its current state."""
    return any(warning.kind in UNMANAGED for warning in node.warnings)


def drained_text(node: NodeDrainForecast, at: float) -> str:
    """`drained 0:02-15:00 after its deletion`."""
    if is_unmanaged(node):
        why = "not managed; if it were" if node.owner is None else "no finalizer; with it"
        return f"not drained: {why}: {_drained(node, at)}"
    return _drained(node, at)


def _drained(node: NodeDrainForecast, at: float) -> str:
    answer = node.forecast.drained
    if not isinstance(answer, Window):
        return drained_in(answer, at)
    since = "from now" if node.is_requested or node.is_maintenance else "after its deletion"
    return f"drained {elapsed_answer(answer, at)} {since}"


def deadline_text(node: NodeDrainForecast, at: float) -> str:
    """The deadline and its origin, or that there is none; for maintenance, which seldom has one, empty then."""
    if node.deadline is None:
        return "" if node.is_maintenance else NO_DEADLINE
    when = f"{elapsed(node.deadline.at - at)} ({format_time(node.deadline.at)})"
    return f"deadline: {when}, {deadline_cause(node.deadline, node.deadline_origin)}"


def owner_text(node: NodeDrainForecast) -> str:
    """Which other controller drains it; empty if gracectl does."""
    if node.owner is None:
        return ""
    return f"{node.owner}; gracectl {'assists' if node.is_assisted else 'does not assist'}"


def since_text(node: NodeDrainForecast, at: float) -> str:
    """Since when it has been terminating, or drained; empty if neither is requested yet."""
    if not node.is_requested:
        return ""
    since, what = node.forecast.draining.since, "drained for maintenance" if node.is_maintenance else "terminating"
    return f"{what} since {format_time(since)} ({elapsed(at - since)} ago)"


# -- budgets -----------------------------------------------------------------------------------------------------------


class BudgetLine(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget. `blocks`: number of pods that it blocks now."""

    name: str
    text: str
    blocks: int


def budgets_of(forecast: DrainForecast) -> list[PodDisruptionBudget]:
    """Budgets that select pods of the chosen nodes, by name."""
    found: dict[BudgetKey, PodDisruptionBudget] = {}
    for node in forecast.nodes:
        budgets = {budget.key: budget for each in node.forecast.draining.view.budgets.values() for budget in each}
        wanted = {key for pod in node.forecast.pods if pod.is_waited_for for key in pod.entry.budgets}
        found |= {key: budgets[key] for key in wanted}
    return sorted(found.values(), key=lambda budget: natural_key(budget.full_name))


def budget_line(forecast: DrainForecast, budget: PodDisruptionBudget) -> BudgetLine:
    """Line with the disruptions that a budget allows, and the pods in its queue."""
    under = [
        pod.entry
        for node in forecast.whole.nodes
        for pod in node.pods
        if budget.key in pod.entry.budgets and pod.is_waited_for
    ]
    waiting = [entry for entry in under if entry.is_queued]
    later = [entry for entry in under if entry.outcome in (Outcome.WAITING, Outcome.PROTECTED)]
    # Each node alone may be allowed more than all nodes together.
    beyond = sum(entry.pod.ready for entry in waiting) - budget.disruptions_allowed
    blocked = max(sum(entry.outcome is Outcome.BLOCKED for entry in waiting), beyond)
    parts = [_allowance(budget)]
    if waiting:
        nodes = tuple(dict.fromkeys(entry.pod.node_name for entry in waiting))
        where = joined(nodes) if len(joined(nodes)) <= SHORT else counted(len(nodes), "node")
        parts.append(f"{counted(len(waiting), 'pod')} in queue on {where}")
    if later:
        parts.append(f"{counted(len(later), 'pod')} later")
    if blocked > 0:
        parts.append(f"blocks {counted(blocked, 'pod')} now")
    return BudgetLine("/".join(budget.key), "; ".join(parts), max(blocked, 0))


def tightest(budgets: list[BudgetLine]) -> list[BudgetLine]:
    """The budgets that block most, by name; not too many."""
    tight = sorted((line for line in budgets if line.blocks), key=lambda line: -line.blocks)[:MANY]
    return sorted(tight, key=lambda line: natural_key(line.name))


def other_budgets(budgets: list[BudgetLine]) -> str:
    """The budgets that are not shown, counted."""
    blocked = sum(line.blocks for line in budgets)
    idle = sum(not line.blocks for line in budgets)
    found = []
    if blocked:
        found.append(f"{counted(len(budgets) - idle, 'budget')} more block {counted(blocked, 'pod')}")
    if idle:
        found.append(f"{counted(idle, 'budget')} {'blocks' if idle == 1 else 'block'} no pod")
    return f"{'; '.join(found)} (-v lists them)" if found else ""


def _allowance(budget: PodDisruptionBudget) -> str:
    if (failure := failure_of(budget)) is not None:
        return f"allows 0 now: {failure}"
    health = f"{budget.current_healthy} of {budget.expected_pods} healthy, {budget.desired_healthy} required"
    if budget.observed_generation < budget.generation:
        return f"status out of date ({health} before)"
    return f"allows {budget.disruptions_allowed} now ({health})"
