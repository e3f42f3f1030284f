"""NodeClaim as decisions see it, and the nodes that belong to it.

A claim represents one instance. The providerID names the instance, so it decides if both sides have one: a node
that came back under the name of another is another instance. Before that, the claim's status names its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gracectl.model.meta import ClusterObject, Condition
from gracectl.model.node import Node


class NodeClaim(ClusterObject, frozen=True, gc=False):
    """One claim, v1 or v1beta1."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    """Only the keys of names.CLAIM_ANNOTATIONS."""
    created: float = 0.0
    deletion_timestamp: float | None = None
    finalizers: tuple[str, ...] = ()
    termination_grace_period: str | None = None
    """A Go duration as written; None means no deadline."""
    expire_after: str | None = None
    """A Go duration or "Never" as written; None means never."""
    node_class: str = ""
    """Kind and group of spec.nodeClassRef, `EC2NodeClass.karpenter.k8s.aws`; empty without a kind."""
    provider_id: str = ""
    """Empty until the instance is launched."""
    node_name: str = ""
    """Empty until the node has registered."""
    conditions: tuple[Condition, ...] = ()


def finder_of_claims(claims: Iterable[NodeClaim]) -> Callable[[Node], tuple[NodeClaim, ...]]:
    """Function that finds the claims of a node among these."""
    at: dict[str, dict[str, NodeClaim]] = {}  # by providerID, and by name of the node
    for claim in claims:
        for place in {claim.provider_id, claim.node_name} - {""}:
            at.setdefault(place, {})[claim.uid] = claim

    def find(node: Node) -> tuple[NodeClaim, ...]:
        near = {**at.get(node.provider_id, {}), **at.get(node.name, {})}
        return tuple(claim for claim in near.values() if belongs(node, claim))

    return find


def belongs(node: Node, claim: NodeClaim) -> bool:
    """Whether this node is the instance of the claim."""
    if node.provider_id and claim.provider_id:
        return node.provider_id == claim.provider_id
    return bool(claim.node_name) and claim.node_name == node.name


def surviving_nodes(node: Node, others: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes among `others`, of the same claim or instance, that stay when `node` goes: then it goes alone.

    Whether they are Ready does not count. A kubelet writes its own condition and its providerID, and any node can be
    NotReady for a moment: a copy must not take the instance of such a node.
    """
    return tuple(other for other in others if other.uid != node.uid and other.deletion_timestamp is None)


def only_claim(claims: Iterable[NodeClaim]) -> NodeClaim | None:
    """The claim of a node to which `claims` belong; None with several, since the right one is unknown."""
    found = tuple(claims)
    return found[0] if len(found) == 1 else None
