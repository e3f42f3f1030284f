"""Nodes that are drained for maintenance and stay: what asks for it, what their cordon has added, what takes it back.

All of that stands on the node, so that anybody can read it, change it with kubectl, and take over from us. Who asks
annotates the node; what the cordon has added is recorded beside it in the same write. It is taken back by taking the
request off, or by making the node schedulable (`kubectl uncordon`): then what was recorded comes off again.

Invariants: a node is either kept, or being given back, or neither; one that is being deleted is neither.
Source: ADR 0014.
"""

from __future__ import annotations

from gracectl.model import names
from gracectl.model.node import Node
from gracectl.model.times import parse_time
from gracectl.policy.cordon import Mark, marks_in


def is_maintenance_requested(node: Node) -> bool:
    """Whether it is to be drained and to stay so: somebody asks for that, and nobody has uncordoned it since."""
    return node.deletion_timestamp is None and names.KEEP_DRAINED in node.annotations and not is_uncordoned(node)


def is_maintenance_ending(node: Node) -> bool:
    """Whether it was kept, and what is left of that is to come off."""
    return node.deletion_timestamp is None and names.CORDONED in node.annotations and not is_maintenance_requested(node)


def is_in_maintenance(node: Node) -> bool:
    """Whether somebody works on it, as far as we have not taken note that it was given back."""
    return is_maintenance_requested(node) or is_maintenance_ending(node)


def is_uncordoned(node: Node) -> bool:
    """Whether somebody has made schedulable what we had made unschedulable."""
    return Mark.UNSCHEDULABLE in recorded_marks(node) and not node.unschedulable


def recorded_marks(node: Node) -> frozenset[Mark]:
    """What is recorded on it."""
    return marks_in(node.annotations.get(names.CORDONED, ""))


def maintenance_since(node: Node, now: float) -> float:
    """The instant of the request (Unix seconds); `now` if nobody can read it, or if it lies ahead."""
    asked = _instant(node, names.KEEP_DRAINED)
    return now if asked is None else min(asked, now)


def maintenance_ended_at(node: Node) -> float | None:
    """When it was given back though it was unhealthy, last; None if it never was."""
    return _instant(node, names.UNCORDONED)


def _instant(node: Node, annotation: str) -> float | None:
    try:
        return parse_time(node.annotations[annotation])
    except (KeyError, ValueError):
        return None
