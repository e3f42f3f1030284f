"""Maintenance of a node that is drained and stays: its request, what its cordon added, and its end.

All state is on the node, so that it can be read, changed with kubectl, and taken over by another process. An
annotation requests it; what the cordon has added is recorded in another one in the same write. It ends when the
request is removed, or the node made schedulable (`kubectl uncordon`): then what was recorded is removed again.

    requested ──▶ cordoned, drained ──▶ request removed or uncordoned: ending ──▶ nothing recorded
    is_maintenance_requested            is_maintenance_ending
    └──────────────── is_in_maintenance ─────────────────┘

Invariants: a node is in at most one of these states; one that is being deleted is in none. Source: ADR 0014.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gracectl.model import names
from gracectl.model.meta import Condition, condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time, parse_time
from gracectl.policy.cordon import KUBECTL_MARKS, Mark, marks_in
from gracectl.policy.deadlines import Deadline, written_deadline
from gracectl.policy.finalizers import has_finalizer


def is_maintenance_requested(node: Node) -> bool:
    """Whether maintenance is requested, and the node has not been uncordoned since."""
    return node.deletion_timestamp is None and names.KEEP_DRAINED in node.annotations and not is_uncordoned(node)


def is_maintenance_ending(node: Node) -> bool:
    """Whether maintenance has ended, and its marks must be removed."""
    return node.deletion_timestamp is None and names.CORDONED in node.annotations and not is_maintenance_requested(node)


def is_in_maintenance(node: Node) -> bool:
    """Whether its maintenance is requested, or has not been ended by us yet."""
    return is_maintenance_requested(node) or is_maintenance_ending(node)


def is_uncordoned(node: Node) -> bool:
    """Whether it was made schedulable after we had made it unschedulable."""
    return Mark.UNSCHEDULABLE in recorded_marks(node) and not node.unschedulable


def is_termination_begun(conditions: Iterable[Condition]) -> bool:
    """Whether conditions of a node or claim that is being deleted show that a controller has begun with it.

    Those of a maintenance before the deletion say nothing about that.
    """
    shown = tuple(each for each in conditions if each.type in names.TERMINATION_CONDITIONS)
    drained = condition_of(shown, names.DRAINED)
    return bool(shown) and (drained is None or drained.reason not in names.MAINTENANCE_REASONS)


def is_begun_by_another(node: Node) -> bool:
    """Whether a controller has begun the termination or the maintenance of a node that is not managed here."""
    if node.deletion_timestamp is not None:
        return has_finalizer(node) and is_termination_begun(node.conditions)
    return is_maintenance_requested(node) and bool(recorded_marks(node))


def is_drained_by_command(node: Node) -> bool:
    """Whether a command drains the node, or has drained it, without a controller: it leaves no condition."""
    is_of_command = is_maintenance_requested(node) and recorded_marks(node) == KUBECTL_MARKS
    return is_of_command and condition_of(node.conditions, names.DRAINED) is None


def recorded_marks(node: Node) -> frozenset[Mark]:
    """The marks recorded on it."""
    return marks_in(node.annotations.get(names.CORDONED, ""))


def drain_deadline(node: Node) -> Deadline | None:
    """The deadline of a requested maintenance; None without one. It may be moved later or removed, as the request can
    be withdrawn."""
    at = written_deadline(node, names.DRAIN_DEADLINE)
    if at is None or not is_maintenance_requested(node):
        return None
    return Deadline(float(math.floor(at)), annotation=names.DRAIN_DEADLINE)


def maintenance_request(node: Node, now: float, seconds: float | None = None) -> dict[str, str | None]:
    """Annotations to write (None: to remove) so that maintenance is requested at `now`, with a deadline after `seconds`
    unless an earlier one is written. A deadline that has passed, or of an earlier maintenance, does not count: it would
    force the pods now."""
    annotations: dict[str, str | None] = {}
    known = written_deadline(node, names.DRAIN_DEADLINE)
    if not is_maintenance_requested(node):
        annotations[names.KEEP_DRAINED] = format_time(now)
        if names.DRAIN_DEADLINE in node.annotations:
            annotations[names.DRAIN_DEADLINE], known = None, None
    if seconds is not None and (known is None or known <= now or now + seconds < known):
        annotations[names.DRAIN_DEADLINE] = format_time(now + seconds)
    return annotations


def maintenance_since(node: Node, now: float) -> float:
    """Instant of the request (Unix seconds); `now` if it cannot be parsed, or is in the future."""
    requested = _instant(node, names.KEEP_DRAINED)
    return now if requested is None else min(requested, now)


def maintenance_ended_at(node: Node) -> float | None:
    """When its last maintenance ended although it was unhealthy; None if none did."""
    return _instant(node, names.UNCORDONED)


def _instant(node: Node, annotation: str) -> float | None:
    try:
        return parse_time(node.annotations[annotation])
    except (KeyError, ValueError):
        return None
