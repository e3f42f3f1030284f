"""A NodeClaim as decisions see it: the promise of one instance, and how long its end may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gracectl.model.meta import Condition
from gracectl.model.node import Node


class NodeClaim(msgspec.Struct, frozen=True, gc=False):
    """One claim; v1 and v1beta1 read alike."""

    name: str
    uid: str
    resource_version: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    """Only those of names.CLAIM_ANNOTATIONS."""
    created: float = 0.0
    deletion_timestamp: float | None = None
    finalizers: tuple[str, ...] = ()
    termination_grace_period: str | None = None
    """A Go duration as written; None means no deadline."""
    expire_after: str | None = None
    """A Go duration or "Never" as written; None means never."""
    provider_id: str = ""
    """Empty until the instance is launched."""
    node_name: str = ""
    """Empty until the node has registered."""
    conditions: tuple[Condition, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """("", name)."""
        return ("", self.name)


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
