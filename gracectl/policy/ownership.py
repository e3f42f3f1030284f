"""Which claim a node belongs to, and which nodes a claim has.

A claim is the promise of one instance. The providerID names the instance, so it decides wherever both sides have one: a
node that came back under the name of another is another instance. Before that, the claim's status names its node.
"""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node


def belongs(node: Node, claim: NodeClaim) -> bool:
    """Whether this node stands for the instance that the claim promises."""
    if node.provider_id and claim.provider_id:
        return node.provider_id == claim.provider_id
    return bool(claim.node_name) and claim.node_name == node.name


def living_beside(node: Node, others: Iterable[Node]) -> tuple[Node, ...]:
    """Those of `others`, nodes of the same claim or instance, that live on when `node` goes: then it is left over, and
    goes alone.

    A machine that came back under another name has two nodes, of which the one that is Ready is the machine's; where
    both are, or neither, nothing is ended under the one that has not been deleted.
    """
    return tuple(
        other
        for other in others
        if other.uid != node.uid and other.deletion_timestamp is None and (other.ready or not node.ready)
    )


def only_claim(claims: Iterable[NodeClaim]) -> NodeClaim | None:
    """The claim of a node to which `claims` belong: with several, nobody knows which is meant, and it has none."""
    found = tuple(claims)
    return found[0] if len(found) == 1 else None
