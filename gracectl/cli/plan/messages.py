"""What is said of a forecast: how and why a pod leaves, when a node is drained, whom a budget holds up.

The reasons are the policy's own; here they become sentences. Invariant: whoever prints, whether into a terminal, a
picture or a page, says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gracectl.cli.format import elapsed, elapsed_span
from gracectl.inspect.forecast import NodeOutlook, Outlook
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.times import format_time
from gracectl.policy.bounds import SAME_SECONDS, PodForecast, Window
from gracectl.policy.budgets import BudgetKey, failure_of
from gracectl.policy.deadlines import Deadline, DeadlineOrigin, grace_of
from gracectl.policy.eviction_queues import QueuePosition, positions_of
from gracectl.policy.plan import Outcome, PodPlan
from gracectl.policy.simulation import PodRemoval, RemovalMethod
from gracectl.policy.warnings import WarningKind


class Ground(msgspec.Struct, frozen=True):
    """What all words refer to: the instant (Unix seconds) that is 0:00, and by pod uid its place in its lane."""

    at: float
    places: Mapping[str, QueuePosition] = {}

    def clock(self, instant: float) -> str:
        """An instant, counted from 0:00."""
        return elapsed(instant - self.at)


def ground_of(outlook: Outlook) -> Ground:
    """The one on which all nodes of an outlook stand."""
    places: dict[str, QueuePosition] = {}
    for budgets, lane in outlook.whole.queues.items():
        if budgets:
            places |= positions_of(lane)
    return Ground(outlook.whole.at, places)


# -- of a pod ----------------------------------------------------------------------------------------------------------


def called(pod: PodForecast) -> str:
    """`shop/web-1`."""
    return f"{pod.entry.pod.namespace}/{pod.entry.pod.name}"


def when_told(told: Window | None, outcome: Outcome, at: float) -> str:
    """When a pod is told to leave: `0:00-5:00`, `never`; one that is on its way leaves `already`."""
    if outcome is Outcome.IGNORED:
        return "stays"
    if told is None and outcome is Outcome.TERMINATING:
        return "already"
    return elapsed_span(told, at)


def how(pod: PodForecast, ground: Ground, *, of_many: bool = False) -> str:
    """How a pod leaves and why, or why it does not. `of_many`: one of several of whom the same is said."""
    if pod.entry.outcome is Outcome.IGNORED:
        return pod.entry.reason
    if pod.entry.pod.deletion_timestamp is not None:
        return _on_its_way(pod, ground)
    if RemovalMethod.EVICTED in pod.methods:
        return _eviction(pod, ground, of_many) + _deletion(pod, ground)
    if RemovalMethod.DELETED in pod.methods:
        return held(pod.entry) + _deletion(pod, ground)
    return f"stays: {held(pod.final_entry or pod.entry)}"


def how_in_short(pod: PodForecast) -> str:
    """The same of many pods, each with its own budget, its own protection and its own grace."""
    entry = pod.entry
    if entry.outcome in (Outcome.IGNORED, Outcome.WAITING) or (entry.outcome is Outcome.TERMINATING):
        kept = "terminating already" if entry.outcome is Outcome.TERMINATING else entry.reason
    elif entry.protection is not None:
        kept = f"protected by {entry.protection.kind}"
    else:
        kept = "two budgets select each" if entry.is_ambiguous else ""
    ways = (
        [f"evicted{' when their budgets allow it' if entry.budgets else ''}"]
        if RemovalMethod.EVICTED in pod.methods
        else []
    )
    ways += ["deleted for the deadline"] if RemovalMethod.DELETED in pod.methods else []
    ways += ["stay"] if not pod.methods and entry.outcome not in (Outcome.IGNORED, Outcome.TERMINATING) else []
    return "; ".join(filter(None, (kept, " or ".join(ways))))


def held(entry: PodPlan) -> str:
    """What keeps a pod where it is; empty if nothing does."""
    if entry.protection is not None:
        until = "" if entry.protection.until is None else f" until {format_time(entry.protection.until)}"
        return f"{entry.protection.description}{until}{entry.protection.limit_note}"
    return "" if entry.outcome is Outcome.DELETE else entry.reason


def _eviction(pod: PodForecast, ground: Ground, of_many: bool) -> str:
    entry = pod.entry
    budget = f" when budget {'/'.join(entry.budgets[0])} allows it" if entry.budgets else ""
    if entry.outcome in (Outcome.WAITING, Outcome.PROTECTED):
        return f"{held(entry)}, then evicted{budget}"
    if entry.outcome is Outcome.EVICT and entry.budgets and pod.is_certain:
        return f"evicted, as budget {'/'.join(entry.budgets[0])} allows it now"
    place = in_lane(entry, ground.places.get(entry.pod.uid), of_many=of_many)
    return f"evicted{budget}{f' ({place})' if place else ''}"


def in_lane(entry: PodPlan, place: QueuePosition | None, *, of_many: bool = False) -> str:
    """`2nd of 3 in its lane, after shop/web-1 on worker-2`; empty for one who waits alone."""
    if place is None or place.of == 1:
        return ""
    if of_many:
        return f"{place.of} in its lane, one after another"
    if place.is_undecided:
        return f"{place.of} in its lane; whose node is looked at first goes first"
    if place.ahead is None:
        return f"1st of {place.of} in its lane"
    ahead = place.ahead.entry.pod
    elsewhere = "" if ahead.node_name == entry.pod.node_name else f" on {ahead.node_name}"
    behind = f"after {ahead.namespace}/{ahead.name}{elsewhere}"
    return f"{ordinal(place.number)} of {place.of} in its lane, {behind}"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `11th`, `23rd`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _deletion(pod: PodForecast, ground: Ground) -> str:
    """What the deadline does to it, behind what was said before."""
    order = next((order for order in pod.removals if order.method is RemovalMethod.DELETED), None)
    if RemovalMethod.DELETED not in pod.methods or order is None:
        if pod.entry.delete_at is None or pod.is_certain:
            return ""
        return f"; deleted at {ground.clock(pod.entry.delete_at)} at the latest"
    lead = ", or " if RemovalMethod.EVICTED in pod.methods else "; " if held(pod.entry) else ""
    when = f"at {ground.clock(order.at)}"
    first = max(pod.entry.delete_at or order.at, ground.at)
    if order.at - first >= SAME_SECONDS:  # later, if those are gone for whom time is kept
        when = f"between {ground.clock(first)} and {ground.clock(order.at)}"
    return f"{lead}deleted {when} for the deadline, {_granted(order, grace_of(pod.entry.pod))}"


def _granted(order: PodRemoval, asked: int) -> str:
    if order.grace >= asked:
        return f"with all of its {asked} s"
    return f"with {order.grace} of its {asked} s"


def _on_its_way(pod: PodForecast, ground: Ground) -> str:
    """One that somebody has told to leave before."""
    words = "terminating already"
    if pod.entry.until is not None:
        words += f", until {ground.clock(pod.entry.until)} at the latest"
    for order in pod.removals:
        words += (
            f"; told again at {ground.clock(order.at)} for the deadline, {_granted(order, grace_of(pod.entry.pod))}"
        )
    return words


# -- of a node ---------------------------------------------------------------------------------------------------------


UNHELD = frozenset({WarningKind.NOT_MANAGED, WarningKind.FINALIZER_MISSING})
"""Of such a node nothing comes true of what is foretold."""


def is_unheld(node: NodeOutlook) -> bool:
    """Nobody would drain it, as things stand."""
    return any(caution.kind in UNHELD for caution in node.cautions)


def drained(node: NodeOutlook, at: float) -> str:
    """`drained between 0:02 and 15:00 after its deletion`."""
    if is_unheld(node):
        return f"nobody would drain it, as things stand; else {_drained(node, at)}"
    return _drained(node, at)


def _drained(node: NodeOutlook, at: float) -> str:
    span, since = node.prospect.drained, "from now" if node.is_begun or node.is_maintenance else "after its deletion"
    if span is None:
        return "never drained"
    earliest = elapsed(span.earliest - at)
    if span.latest is None:
        return f"drained {earliest} {since} at the earliest, perhaps never"
    if span.is_certain:
        return f"drained {earliest} {since}"
    return f"drained between {earliest} and {elapsed(span.latest - at)} {since}"


def deadline(node: NodeOutlook, at: float) -> str:
    """The deadline and where it comes from, or that there is none; empty for a node that stays, which never has one."""
    if node.is_maintenance:
        return ""
    if node.deadline is None:
        return "no deadline: it takes as long as its pods need"
    when = f"{elapsed(node.deadline.at - at)} ({format_time(node.deadline.at)})"
    return f"deadline {when}: {cause_of(node.deadline, node.origin)}"


def cause_of(deadline: Deadline, origin: DeadlineOrigin | None) -> str:
    """`termination grace period 15m0s of NodeClaim worker-1`, or the annotation that demands it."""
    holder = "" if origin is None else f" of {origin.object}"
    if deadline.grace_period is None:
        return f"annotation {names.TERMINATION_TIMESTAMP}{holder}"
    period = format_duration(round(deadline.grace_period) * NANOSECONDS_PER_SECOND)
    return f"termination grace period {period}{holder}"


def ending(node: NodeOutlook, at: float) -> str:
    """Since when it has been ending, or drained; empty if nobody has asked for it yet."""
    if not node.is_begun:
        return ""
    since, what = node.prospect.draining.since, "drained for maintenance" if node.is_maintenance else "ending"
    return f"{what} since {format_time(since)} ({elapsed(at - since)} ago)"


# -- of numbers --------------------------------------------------------------------------------------------------------


def counted(number: int, one: Literal["pod", "node", "budget"]) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def joined(words: tuple[str, ...]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


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
        budgets = {budget.key: budget for each in node.prospect.draining.view.budgets.values() for budget in each}
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
    waiting = [entry for entry in under if entry.is_queued]
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
