"""Cordon of a node: its marks, the marks that are present, and patches that add and remove them.

The changes are operations of a JSON patch (RFC 6902), computed from the state that they change: the patch names its
version. Invariant: taints, labels and annotations of others are left as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

from gracectl.model import names
from gracectl.model.meta import condition_of, pointer
from gracectl.model.node import DISRUPTED_TAINT, Node

Operation = dict[str, object]


class Mark(StrEnum):
    """Mark that a cordon adds, and an uncordon removes."""

    TAINT = "taint"
    LABEL = "label"
    UNSCHEDULABLE = "unschedulable"


EVERY_MARK: Final = frozenset(Mark)
"""Cordon that keeps DaemonSet pods off, too: they do not tolerate the taint."""

OPEN_TO_DAEMON_SETS: Final = EVERY_MARK - {Mark.TAINT}
"""Cordon that new DaemonSet pods pass: the DaemonSet controller lets them tolerate
node.kubernetes.io/unschedulable, the taint that kube-controller-manager derives from spec.unschedulable."""

KUBECTL_MARKS: Final = frozenset({Mark.UNSCHEDULABLE})
"""Cordon of a command without a controller: `kubectl uncordon` removes all of it."""

SPELT = {
    Mark.TAINT: f"the taint {names.DISRUPTED_TAINT_KEY}",
    Mark.LABEL: f"the label {names.EXCLUDE_FROM_LOAD_BALANCERS}",
    Mark.UNSCHEDULABLE: "spec.unschedulable",
}
"""Descriptions for messages."""


def missing_marks(node: Node, marks: Collection[Mark] = EVERY_MARK) -> dict[Mark, Operation]:
    """The missing ones of these marks of a cordon, with the operations that add them.

    A taint of that key and effect counts regardless of its value: the API server allows only one.
    """
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
    return {mark: operation for mark, operation in found.items() if mark in marks}


def takes_pods(node: Node) -> bool:
    """Whether no mark of a cordon keeps new pods off, except pods that tolerate the taint."""
    return not node.unschedulable and _taint(node) is None


def is_drain_begun(node: Node) -> bool:
    """Whether the cordon of a drain is on the node. spec.unschedulable alone may be an operator's.

    The condition counts, too: a webhook may remove the other marks, and the drain continues without them.
    """
    drained = condition_of(node.conditions, names.DRAINED)
    is_reported = drained is not None and drained.reason != names.STEP_FAILING
    record = marks_in(node.annotations.get(names.CORDONED, ""))
    is_recorded = names.KEEP_DRAINED in node.annotations and record == KUBECTL_MARKS  # by a command
    return not takes_pods(node) and (is_reported or is_recorded or bool({Mark.TAINT, Mark.LABEL} & set(marks_on(node))))


def removals(node: Node, marks: Iterable[Mark]) -> list[Operation]:
    """Operations that remove the marks that are still present."""
    wanted, paths = set(marks), []
    if Mark.UNSCHEDULABLE in wanted and node.unschedulable:
        paths.append("/spec/unschedulable")
    if Mark.TAINT in wanted and (place := _taint(node)) is not None:
        paths.append(pointer("spec", "taints", str(place)))
    if Mark.LABEL in wanted and names.EXCLUDE_FROM_LOAD_BALANCERS in node.labels:
        paths.append(pointer("metadata", "labels", names.EXCLUDE_FROM_LOAD_BALANCERS))
    return [{"op": "remove", "path": path} for path in paths]


def marks_on(node: Node) -> tuple[Mark, ...]:
    """The marks of a cordon on a node, set by anything."""
    absent = missing_marks(node)
    return tuple(mark for mark in Mark if mark not in absent)


def recorded(marks: Iterable[Mark]) -> str:
    """`taint,label,unschedulable`: as `marks_in` parses it."""
    return ",".join(mark for mark in Mark if mark in set(marks))


def marks_in(record: str) -> frozenset[Mark]:
    """Marks in a record; unknown words are ignored."""
    words = {word.strip() for word in record.split(",")}
    return frozenset(mark for mark in Mark if mark in words)


def annotation(key: str, value: str) -> Operation:
    """Operation that sets an annotation of a node that has at least one."""
    return {"op": "add", "path": pointer("metadata", "annotations", key), "value": value}


def without(key: str) -> Operation:
    """Operation that removes an annotation."""
    return {"op": "remove", "path": pointer("metadata", "annotations", key)}


def _taint(node: Node) -> int | None:
    """Index of our taint."""
    ours = (DISRUPTED_TAINT.key, DISRUPTED_TAINT.effect)
    return next((place for place, taint in enumerate(node.taints) if (taint.key, taint.effect) == ours), None)


def _label(node: Node, key: str, value: str) -> Operation:
    if node.labels:
        return {"op": "add", "path": pointer("metadata", "labels", key), "value": value}
    return {"op": "add", "path": "/metadata/labels", "value": {key: value}}
