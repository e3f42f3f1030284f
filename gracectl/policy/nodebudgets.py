"""Verdict of a NodeDisruptionBudget about the termination of one node.

A node is available while it is Ready and not deleted. Terminating one that is not changes no count, and is always
allowed. The budget's status keeps the count, as it does for PodDisruptionBudgets: an admission writes the node into
`disruptedNodes` and subtracts it from what is available and allowed in the same write, under the budget's version;
the controller recounts when the deletion is observed, or after a timeout. Source: Karpenter's graceful
termination design.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget, UnknownBudget, scaled_value
from gracectl.model.node import Node
from gracectl.policy.budgets import Allowance, EvictionVerdict

ADMITTED_SECONDS: Final = 60.0
"""Time after which an admitted termination that was not observed no longer counts. After our response a DELETE waits
for other webhooks (at most 30 s, the maximum timeoutSeconds) and for its write; API servers end a request after 60 s.
"""

UNOBSERVED_NODE_SECONDS: Final = 5.0
"""Time for which the termination of a node counts that is not in the cache yet."""


class NodeCounts(msgspec.Struct, frozen=True):
    """Counts of a budget: selected, available and required nodes."""

    expected: int
    available: int
    desired: int

    @property
    def allowed(self) -> int:
        """How many more may become unavailable now."""
        return max(self.available - self.desired, 0) if self.expected else 0


def is_available(node: Node) -> bool:
    """Whether a budget counts the node as available."""
    return node.ready and node.deletion_timestamp is None


def selects_node(budget: NodeDisruptionBudget, node: Node) -> bool:
    """Whether the budget selects the node. An absent or empty selector selects none (the design says that this "differs
    from standard behavior").
    """
    selector = budget.selector
    return (
        selector is not None
        and bool(selector.match_labels or selector.match_expressions)
        and selector.matches(node.labels)
    )


def invalid_reason(budget: NodeDisruptionBudget) -> str | None:
    """Why the budget cannot be counted, with the field in front and what would be right; None if it can."""
    if budget.selector_error:
        return f"spec.selector: {budget.selector_error}"
    bounds = {"minAvailable": budget.min_available, "maxUnavailable": budget.max_unavailable}
    given = {field: value for field, value in bounds.items() if value is not None}
    if not given:
        return "spec: minAvailable and maxUnavailable are missing; set one of them"
    if len(given) > 1:
        return "spec: minAvailable and maxUnavailable are both set; remove one of them"
    [(field, value)] = given.items()
    try:
        least = scaled_value(value, 1, round_up=True)
    except ValueError as error:
        return f"spec.{field}: {error}"
    return f"spec.{field}: {value!r} is negative; give 0 or more" if least < 0 or str(value).startswith("-") else None


def bound_of(budget: NodeDisruptionBudget | PodDisruptionBudget) -> str:
    """`minAvailable 80%`: the bound of a budget of either kind, as written."""
    if isinstance(budget, UnknownBudget):
        return "unknown"
    if budget.min_available is not None:
        return f"minAvailable {budget.min_available}"
    return "no bound" if budget.max_unavailable is None else f"maxUnavailable {budget.max_unavailable}"


def desired_of(budget: NodeDisruptionBudget, expected: int) -> int:
    """Number of `expected` nodes that must be available; percentages round up, as in PodDisruptionBudgets.
    All nodes if the budget is invalid.
    """
    if invalid_reason(budget) is not None:
        return expected
    if budget.min_available is not None:
        return scaled_value(budget.min_available, expected, round_up=True)
    assert budget.max_unavailable is not None
    return max(expected - scaled_value(budget.max_unavailable, expected, round_up=True), 0)


def is_admitted(budget: NodeDisruptionBudget, node: Node, now: float) -> bool:
    """Whether the termination of this node has been admitted by the budget already, and still counts."""
    at = budget.disrupted_nodes.get(node.name)
    return at is not None and node.created <= at and now < at + ADMITTED_SECONDS


def count_nodes(budget: NodeDisruptionBudget, nodes: Iterable[Node], now: float) -> NodeCounts:
    """Count by the budget; `nodes` may be more than it selects."""
    selected = [node for node in nodes if selects_node(budget, node)]
    available = sum(is_available(node) and not is_admitted(budget, node, now) for node in selected)
    return NodeCounts(len(selected), available, desired_of(budget, len(selected)))


def current_disruptions(budget: NodeDisruptionBudget, nodes: Mapping[str, Node], now: float) -> dict[str, float]:
    """Entries of `disruptedNodes` that still count; `nodes` by name, at least the nodes of the budget.

    An entry expires when its node is seen to be deleted (which counts from then on), was replaced by another node of
    the same name, or was not seen for too long.
    """
    current = {}
    for name, at in budget.disrupted_nodes.items():
        node = nodes.get(name)
        if node is None:
            is_current = now < at + UNOBSERVED_NODE_SECONDS
        else:
            is_current = node.deletion_timestamp is None and is_admitted(budget, node, now)
        if is_current:
            current[name] = at
    return current


def disruption_verdict(budget: NodeDisruptionBudget, node: Node, now: float) -> EvictionVerdict:
    """Verdict of a budget's status about terminating a selected node now.

    UNCHARGED: it changes no count, or is already counted; ALLOWED: it must be written to the status first.
    """
    if not is_available(node) or is_admitted(budget, node, now):
        return EvictionVerdict(Allowance.UNCHARGED)
    allowance = allowance_of(budget)
    match allowance:
        case Allowance.NOT_OBSERVED:
            reason = f"node disruption budget {budget.name} has just changed and is being counted"
        case Allowance.NOT_COUNTABLE:
            problem = invalid_reason(budget)
            reason = f"node disruption budget {budget.name} cannot be counted and allows nothing: {problem}"
        case Allowance.EXHAUSTED:
            reason = explain(budget)
        case _:
            reason = ""
    return EvictionVerdict(allowance, reason)


def allowance_of(budget: NodeDisruptionBudget) -> Allowance:
    """Verdict about an available node that is not counted yet."""
    if budget.observed_generation < budget.generation:
        return Allowance.NOT_OBSERVED
    if invalid_reason(budget) is not None:
        return Allowance.NOT_COUNTABLE
    return Allowance.ALLOWED if budget.disruptions_allowed > 0 else Allowance.EXHAUSTED


def may_unblock(old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> bool:
    """Whether a budget that was `old` and is `new` (None: it is gone) may now allow nodes that it blocked before."""
    if old is None or new is None:
        return new is None
    return new.disruptions_allowed > 0 or (new.selector, new.windows) != (old.selector, old.windows)


def explain(budget: NodeDisruptionBudget) -> str:
    """Why a budget that is spent allows nothing, with its figures."""
    figures = (
        f"{budget.current_available} of {budget.expected_nodes} available, "
        f"{budget.desired_available} required by {bound_of(budget)}"
    )
    return f"node disruption budget {budget.name} allows no termination now ({figures})"


def remedy_of(budget: NodeDisruptionBudget, allowance: Allowance) -> str:
    """Remedy for a node that the budget blocks."""
    if allowance is Allowance.NOT_OBSERVED:
        return "try again in a moment (a gracectl controller counts it)"
    if allowance is Allowance.NOT_COUNTABLE:
        return "fix or delete the budget"
    if budget.expected_nodes and budget.desired_available >= budget.expected_nodes:
        return "change or delete the budget, which never allows a termination"
    return "wait until more of its nodes are Ready, or change the budget"
