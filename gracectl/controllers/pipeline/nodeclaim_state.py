"""The end of one claim while it is under way: its nodes, and what was asked of them (see Ending)."""

from __future__ import annotations

import msgspec

from gracectl.controllers.cluster.tracked import AnyHeld, Held
from gracectl.controllers.pipeline.state import Ending, InstanceWait, Progress
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node


class ClaimEnding(Ending[NodeClaim]):
    """The memory of one claim's end."""

    kind = "nodeclaim"
    looks_first = True

    def __init__(self, resource: Resource[NodeClaim], claim: NodeClaim, instance: InstanceWait, now: float) -> None:
        super().__init__(Held(resource, claim), instance, now)
        self.nodes: tuple[Node, ...] = ()
        self.deleted: set[str] = set()  # the UIDs of nodes of which the server has taken the deletion
        self.next_deletion = 0.0  # before this instant (monotonic) a node that could not be deleted is let be
        self.budgets: set[str] = set()  # the budgets for nodes that do not allow yet what is to be deleted
        self.told_of_budgets = ""  # the gist of what people have been told of them
        self.has_seen_node = False  # the one that its status names; or the server has said that it is not there
        self._named: Node | None = None  # the last node of it that named an instance

    @property
    def claim(self) -> NodeClaim:
        """The claim as fresh as we know it."""
        return self.held.state

    @property
    def lack(self) -> str:
        """See Ending."""
        return f"node claim {self.claim.name} has no status.providerID"

    @property
    def provider_id(self) -> str:
        """Which instance: the claim's, else that of the node that was last seen; empty when none was launched."""
        return self.claim.provider_id or (self._named.provider_id if self._named else "")

    @property
    def source(self) -> Node | None:
        """See Ending. What the claim says itself no kubelet has written."""
        return None if self.claim.provider_id else self._named

    @property
    def objects(self) -> tuple[AnyHeld, ...]:
        """The claim alone: the nodes tell people themselves."""
        return (self.held,)

    def see(self, nodes: tuple[Node, ...]) -> None:
        """These nodes are to end before the claim does."""
        self.nodes = nodes
        self.has_seen_node |= any(node.name == self.claim.node_name for node in nodes)
        self._named = next((node for node in nodes if node.provider_id), self._named)

    def progress(self, now: float) -> Progress:
        """Where it stands at `now`."""
        nodes = tuple(sorted(node.name for node in self.nodes))
        return msgspec.structs.replace(super().progress(now), nodes=nodes)
