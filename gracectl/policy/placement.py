"""Whether a pod could run on another node, as far as its template and the nodes alone decide it.

Invariant: a node is ruled out only for what the scheduler refuses in any case. Pods on other nodes, topology and
anti-affinity may rule out more: a node that is not ruled out here need not take the pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.node import Node, Taint, tolerates
from gracectl.model.pod import Toleration
from gracectl.model.selectors import Requirement, SelectorError
from gracectl.model.workloads import NodeTerm, PodNeeds

UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect=names.NO_SCHEDULE)
_KNOWN_OPERATORS: Final = ("", "Equal", "Exists")
_REFUSING: Final = (names.NO_SCHEDULE, names.NO_EXECUTE)

_ONE_AND_MANY: Final = {
    "unschedulable": ("is unschedulable", "are unschedulable"),
    "taint": ("has a taint that it does not tolerate", "have taints that it does not tolerate"),
    "selector": ("does not match its nodeSelector", "do not match its nodeSelector"),
    "affinity": ("does not match its node affinity", "do not match its node affinity"),
    "room": ("is too small for its requests", "are too small for its requests"),
}


class OtherNode(msgspec.Struct, frozen=True):
    """A node that stays. `allocatable`: what it has in all for its pods; None: unknown."""

    node: Node
    allocatable: Mapping[str, Fraction] | None = None


def no_node_fits(needs: PodNeeds, tolerations: Collection[Toleration], others: Iterable[OtherNode]) -> str:
    """`2 do not match its nodeSelector, 1 is unschedulable`: why none of the others can take it; empty if one might."""
    found: Counter[str] = Counter()
    for other in others:
        reason = _refusal(needs, tolerations, other)
        if not reason:
            return ""
        found[reason] += 1
    if not found:
        return "there is no other node"
    return ", ".join(f"{number} {_ONE_AND_MANY[reason][number > 1]}" for reason, number in found.most_common())


def _refusal(needs: PodNeeds, tolerations: Collection[Toleration], other: OtherNode) -> str:
    node = other.node
    if node.unschedulable and not _may_tolerate(tolerations, UNSCHEDULABLE):
        return "unschedulable"
    if any(taint.effect in _REFUSING and not _may_tolerate(tolerations, taint) for taint in node.taints):
        return "taint"
    if any(node.labels.get(key) != value for key, value in needs.node_selector.items()):
        return "selector"
    if needs.terms and not any(may_match(term, node) for term in needs.terms):
        return "affinity"
    if other.allocatable and any(
        amount > other.allocatable.get(resource, 0) for resource, amount in needs.requests.items() if amount
    ):
        return "room"
    return ""


def _may_tolerate(tolerations: Collection[Toleration], taint: Taint) -> bool:
    return tolerates(tolerations, taint) or any(each.operator not in _KNOWN_OPERATORS for each in tolerations)


def may_match(term: NodeTerm, node: Node) -> bool:
    """Whether a node selector term matches the node; also if that cannot be decided."""
    if not term.labels and not term.names:
        return False
    of_name = {"metadata.name": node.name}
    return all(_may_meet(each, node.labels) for each in term.labels) and all(
        _may_meet(each, of_name) for each in term.names
    )


def is_pinned(terms: Collection[NodeTerm], node: Node) -> bool:
    """Whether each term names this node and no other, by its name or its host name label."""
    host = node.labels.get(names.HOSTNAME, node.name)
    return bool(terms) and all(
        any(each.operator == "In" and each.values in ((node.name,), (host,)) for each in (*term.labels, *term.names))
        for term in terms
    )


def _may_meet(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    try:
        requirement.validate()
        return requirement.matches(labels)
    except SelectorError:
        return True
