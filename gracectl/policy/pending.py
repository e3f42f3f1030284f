"""Nodes with a pending voluntary termination: their condition, and the cordon of nodes that are labeled terminable or
interrupted.

The cordon is only spec.unschedulable: pods and traffic stay. A record on the node says that the cordon is ours, so that
an operator's cordon stays. Invariant: a node with a record is not cordoned again, so `kubectl uncordon` lasts until the
label is removed. Sources: ADR 0036; Karpenter's graceful termination design ("will cordon but
wait to drain").
"""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark, recorded
from gracectl.policy.disruption import HoldReason, PendingTermination
from gracectl.policy.interruption import interruption_of
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.voluntary import Cause

Patched = dict[str, object]


def requested_by(node: Node) -> str:
    """What requests its termination, for as long as that is there; empty without a request."""
    if interruption_of(node) is not None:
        return "its machine will go"
    is_labeled = node.labels.get(names.LIFECYCLE_PHASE) == names.LIFECYCLE_PHASE_TERMINABLE
    return "labeled terminable" if is_labeled else ""


def is_pending(node: Node) -> bool:
    """Whether its condition says that its termination waits."""
    condition = condition_of(node.conditions, names.TERMINATION_PENDING)
    return node.deletion_timestamp is None and condition is not None and condition.status == names.TRUE


def pending_since(nodes: Iterable[Node], now: float) -> float:
    """Since when a termination of these nodes waits, by their conditions; `now` if none does."""
    shown = (condition_of(node.conditions, names.TERMINATION_PENDING) for node in nodes if is_pending(node))
    turned = [each.last_transition for each in shown if each is not None and each.last_transition is not None]
    return min([*turned, now])


def is_cordon_recorded(node: Node) -> bool:
    """Whether the node was cordoned by us while it waited."""
    return names.PENDING_CORDONED in node.annotations


def accepts_pods(node: Node) -> bool:
    """Whether the node takes pods."""
    return node.ready and not node.unschedulable and node.deletion_timestamp is None


def may_cordon_another(open_nodes: int, managed: int) -> bool:
    """Whether one more schedulable node may be cordoned: at least half of the managed nodes must stay schedulable."""
    return 2 * (open_nodes - 1) >= managed


def cordoned(node: Node, pending: PendingTermination) -> Patched | None:
    """Patch that cordons a pending node and records that; None if it is not wanted, already done, or not ours to do.

    Wanted for nodes with the label or an interruption, and for unhealthy nodes without a provider that replaces them;
    outside of a window, or in a freeze, only with an interruption.
    """
    is_wanted = bool(requested_by(node)) or pending.reason is HoldReason.PROVIDER_NONE
    if not is_wanted or node.deletion_timestamp is not None or is_in_maintenance(node):
        return None
    if pending.is_scheduled and interruption_of(node) is None:
        return None  # a window may open in days, and a freeze stops everything
    if node.unschedulable or is_cordon_recorded(node):
        return None
    record = {names.PENDING_CORDONED: recorded((Mark.UNSCHEDULABLE,))}
    return {"metadata": {"annotations": record}, "spec": {"unschedulable": True}}


def uncordoned(node: Node, pending: PendingTermination | None) -> Patched | None:
    """Patch that removes our cordon from a healthy node without a request; None if there is none, or it must stay.

    A node in maintenance keeps the cordon: the record of the maintenance has it, or will have it.
    """
    if not is_cordon_recorded(node) or node.deletion_timestamp is not None:
        return None
    without: Patched = {"metadata": {"annotations": {names.PENDING_CORDONED: None}}}
    if is_in_maintenance(node):
        return without
    if requested_by(node) or (pending is not None and pending.cause is Cause.UNHEALTHY):
        return None
    return {**without, "spec": {"unschedulable": None}} if node.unschedulable else without
