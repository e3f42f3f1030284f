"""Who owns the drain of a node: gracectl, or the controller that made the node.

A node or claim of another owner is never ours: no finalizer, cordon, taint, condition or deletion. Karpenter's are
known by what Karpenter itself goes by. Sources: Karpenter 1.15 `pkg/utils/node` (IsManaged), `pkg/apis/v1/labels.go`
(NodeClassLabelKey), `pkg/controllers/nodeclaim/lifecycle/registration.go`; ADR 0079.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.foreign import harmless
from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector

NODE_CLASS: Final = "nodeclass"
"""Last part of the kinds of Karpenter's node classes, in lower case: EC2NodeClass, AKSNodeClass, KWOKNodeClass."""

KARPENTER_GROUPS: Final = ("karpenter.", "karpenter-", "eks.amazonaws.com")
"""First parts of the API groups of Karpenter's node classes; EKS Auto Mode has one of its own."""


class DrainOwner(StrEnum):
    """Controllers that drain nodes, as people know them."""

    KARPENTER = "Karpenter"
    CLUSTER_AUTOSCALER = "Cluster Autoscaler"
    CLUSTER_API = "Cluster API"


class Ownership(msgspec.Struct, frozen=True):
    """Another owner, and the `reason`: what shows it."""

    owner: DrainOwner
    reason: str

    def __str__(self) -> str:
        return f"{self.owner} drains it ({self.reason})"


def other_owner(node: Node, claims: Iterable[NodeClaim]) -> Ownership | None:
    """The other controller that drains this node; None: ours, if the settings select it. `claims`: those of the node,
    as far as they are known; none where Karpenter is not installed."""
    if reason := _karpenter_label(node.labels):
        return Ownership(DrainOwner.KARPENTER, reason)
    if node.taints and any(taint.key == names.UNREGISTERED_TAINT_KEY for taint in node.taints):
        return Ownership(DrainOwner.KARPENTER, f"taint {names.UNREGISTERED_TAINT_KEY}")
    return next((owner for claim in claims if (owner := other_owner_of_claim(claim)) is not None), None)


def other_owner_of_claim(claim: NodeClaim) -> Ownership | None:
    """The other controller that terminates this claim; None: ours, if the settings select it."""
    reason = _karpenter_label(claim.labels)
    if not reason and _is_karpenters(*_group_and_kind(claim.node_class)):
        reason = f"nodeClassRef {claim.node_class}"
    return Ownership(DrainOwner.KARPENTER, harmless(f"NodeClaim {claim.name}: {reason}")) if reason else None


class ManagedNodes(msgspec.Struct, frozen=True):
    """The nodes that gracectl terminates: `selector` matches, and no other controller owns them."""

    selector: LabelSelector
    of_any_owner: bool = False
    """A person has named the nodes: their owner does not matter."""

    def includes(self, node: Node, claims: Iterable[NodeClaim] = ()) -> bool:
        """Whether this node is managed. `claims`: see `other_owner`."""
        return self.selector.matches(node.labels) and (self.of_any_owner or other_owner(node, claims) is None)


EVERY_NODE: Final = ManagedNodes(LabelSelector(), of_any_owner=True)
"""The nodes of a command that a person runs."""


def _karpenter_label(labels: Mapping[str, str]) -> str:
    if names.NODE_POOL in labels:
        return f"label {names.NODE_POOL}={harmless(labels[names.NODE_POOL])}"
    for key in labels if NODE_CLASS in "".join(labels) else ():
        if key.endswith(NODE_CLASS):
            group, _, kind = key.rpartition("/")
            if kind and group.startswith(KARPENTER_GROUPS):
                return f"label {harmless(key)}"
    return ""


def _group_and_kind(node_class: str) -> tuple[str, str]:
    kind, _, group = node_class.partition(".")
    return group, kind


def _is_karpenters(group: str, kind: str) -> bool:
    return kind.lower().endswith(NODE_CLASS) or group.startswith(KARPENTER_GROUPS)
