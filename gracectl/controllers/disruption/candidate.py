"""What ends as one when nobody has asked for it: a claim with its nodes, or a node without a claim."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from gracectl.controllers.cluster.tracked import AnyTracked, TrackedObject
from gracectl.kube.resources import NODES
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node


class CandidateKey(NamedTuple):
    """What ends as one, by the name of the object whose DELETE ends it."""

    kind: Literal["claim", "node", "brake", "pace"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


BRAKE = CandidateKey("brake", "of the unhealthy")
"""Not a unit: the look at whether those that are kept by the brake may go on."""


PACE = CandidateKey("pace", "of voluntary terminations")
"""Not a unit either: the look at whether those that wait for a place may begin."""


class DisruptionCandidate(msgspec.Struct, frozen=True):
    """What ends as one, as the caches show it: a claim with its nodes, or a node that has no claim (or several, of
    which none counts)."""

    key: CandidateKey
    nodes: tuple[Node, ...]
    claim: NodeClaim | None
    tracked: AnyTracked
    """What the DELETE is for."""
    is_contested: bool = False
    """Other claims stand for a node of this one, too."""

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """Where people are told of it."""
        nodes = tuple(TrackedObject(NODES, node) for node in self.nodes)
        return nodes if self.claim is None else (*nodes, self.tracked)
