"""What a cordon puts on a node, what of it is there, and what takes it off again.

The changes are operations of a JSON patch (RFC 6902), computed from the very state that they change: whoever writes
them names its version. Invariant: taints, labels and annotations of others are left exactly as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from gracectl.model import names
from gracectl.model.meta import pointer
from gracectl.model.node import DISRUPTED_TAINT, Node

Operation = dict[str, object]


class Mark(StrEnum):
    """What a cordon adds, and an uncordon takes off."""

    TAINT = "taint"
    LABEL = "label"
    UNSCHEDULABLE = "unschedulable"


SPELT = {
    Mark.TAINT: f"the taint {names.DISRUPTED_TAINT_KEY}",
    Mark.LABEL: f"the label {names.EXCLUDE_FROM_LOAD_BALANCERS}",
    Mark.UNSCHEDULABLE: "spec.unschedulable",
}
"""For people."""


def lacking(node: Node) -> dict[Mark, Operation]:
    """What a cordon lacks. A taint of that key and effect counts whatever its value: the API server takes no two."""
    found: dict[Mark, Operation] = {}
    if not node.unschedulable:
        found[Mark.UNSCHEDULABLE] = {"op": "add", "path": "/spec/unschedulable", "value": True}
    if _taint(node) is None:
        taint = {"key": DISRUPTED_TAINT.key, "effect": DISRUPTED_TAINT.effect}
        # "-" appends, but only to a list that exists; an empty one is not stored.
        path, value = ("/spec/taints/-", taint) if node.taints else ("/spec/taints", [taint])
        found[Mark.TAINT] = {"op": "add", "path": path, "value": value}
    if names.EXCLUDE_FROM_LOAD_BALANCERS not in node.labels:
        found[Mark.LABEL] = _label(node, names.EXCLUDE_FROM_LOAD_BALANCERS, "")
    return found


def takes_pods(node: Node) -> bool:
    """Whether nothing of a cordon keeps new pods off, but for those that tolerate the taint."""
    return not node.unschedulable and _taint(node) is None


def removals(node: Node, marks: Iterable[Mark]) -> list[Operation]:
    """What takes off what is still there of these marks."""
    wanted, paths = set(marks), []
    if Mark.UNSCHEDULABLE in wanted and node.unschedulable:
        paths.append("/spec/unschedulable")
    if Mark.TAINT in wanted and (place := _taint(node)) is not None:
        paths.append(pointer("spec", "taints", str(place)))
    if Mark.LABEL in wanted and names.EXCLUDE_FROM_LOAD_BALANCERS in node.labels:
        paths.append(pointer("metadata", "labels", names.EXCLUDE_FROM_LOAD_BALANCERS))
    return [{"op": "remove", "path": path} for path in paths]


def marks_on(node: Node) -> tuple[Mark, ...]:
    """What of a cordon is on a node, whoever has put it there."""
    absent = lacking(node)
    return tuple(mark for mark in Mark if mark not in absent)


def recorded(marks: Iterable[Mark]) -> str:
    """`taint,label,unschedulable`: as `marks_in` reads it."""
    return ",".join(mark for mark in Mark if mark in set(marks))


def marks_in(record: str) -> frozenset[Mark]:
    """What such a record names; words that nobody knows are passed over."""
    words = {word.strip() for word in record.split(",")}
    return frozenset(mark for mark in Mark if mark in words)


def annotation(key: str, value: str) -> Operation:
    """The change that writes an annotation of a node that has at least one."""
    return {"op": "add", "path": pointer("metadata", "annotations", key), "value": value}


def without(key: str) -> Operation:
    """The change that takes an annotation off."""
    return {"op": "remove", "path": pointer("metadata", "annotations", key)}


def _taint(node: Node) -> int | None:
    """Where our taint stands."""
    ours = (DISRUPTED_TAINT.key, DISRUPTED_TAINT.effect)
    return next((place for place, taint in enumerate(node.taints) if (taint.key, taint.effect) == ours), None)


def _label(node: Node, key: str, value: str) -> Operation:
    if node.labels:
        return {"op": "add", "path": pointer("metadata", "labels", key), "value": value}
    return {"op": "add", "path": "/metadata/labels", "value": {key: value}}
