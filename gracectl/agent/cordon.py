"""What is on a node while its machine shuts down: the cordon of a termination, and a record of what of it is ours.

A machine that shuts down mostly comes back. So what the cordon has added is recorded on the node, in the same write,
and comes off when the machine is up again, or when it does not go down after all. Invariant: what was there before, and
what somebody else still needs, is left on it.
"""

from __future__ import annotations

from gracectl.kube.requests import JsonPatch, MergePatch
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark, annotation, lacking, marks_in, recorded, removals, without
from gracectl.policy.kept import is_in_maintenance, marks_of


def is_marked(node: Node) -> bool:
    """Whether a shutdown has left its marks on it."""
    return names.SHUTDOWN_CORDONED in node.annotations


def marking(node: Node) -> MergePatch | None:
    """The patch that opens the record; None when there is one. It comes first, as a patch by places cannot add an
    annotation to a node that has none."""
    return None if is_marked(node) else MergePatch({"metadata": {"annotations": {names.SHUTDOWN_CORDONED: ""}}})


def cordoning(node: Node) -> JsonPatch | None:
    """The patch that cordons a node whose record is open; None when nothing is missing."""
    added = lacking(node)
    if not added:
        return None
    record = recorded({*_ours(node), *added})
    return JsonPatch([*added.values(), annotation(names.SHUTDOWN_CORDONED, record)])


def giving_back(node: Node) -> JsonPatch | None:
    """The patch that takes off what a shutdown has put on a node; None when there is nothing of it.

    A node that is being deleted keeps its cordon. One that is drained for maintenance does, too: what we have added is
    entered there as to be taken off when it is given back.
    """
    if not is_marked(node) or node.deletion_timestamp is not None:
        return None
    closed = without(names.SHUTDOWN_CORDONED)
    if is_in_maintenance(node):
        record = recorded({*marks_of(node), *_ours(node), Mark.UNSCHEDULABLE})
        return JsonPatch([annotation(names.CORDONED, record), closed])
    return JsonPatch([*removals(node, _ours(node)), closed])


def _ours(node: Node) -> frozenset[Mark]:
    return marks_in(node.annotations.get(names.SHUTDOWN_CORDONED, ""))
