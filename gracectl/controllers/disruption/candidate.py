"""Candidates for voluntary termination, their state, and an index of their blockers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.tracked import AnyTracked, TrackedObject
from gracectl.kube.resources import NODES, Resource
from gracectl.model.claim import NodeClaim, only_claim
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import grace_period_of
from gracectl.policy.owners import ManagedNodes
from gracectl.policy.settings import PolicySettings
from gracectl.policy.voluntary import VoluntaryBlocker
from gracectl.runtime.backoff import Backoff


class CandidateKey(NamedTuple):
    """Key of the work queue: the object that a DELETE would be sent for, or one of the two checks below. "campaign": a
    node that a NodeDrain terminates; it shares the pace, and is in no queue."""

    kind: Literal["claim", "node", "campaign", "circuit breaker", "pace"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


CIRCUIT_BREAKER: Final = CandidateKey("circuit breaker")
"""Interval of checks whether the circuit breaker has closed."""

PACE: Final = CandidateKey("pace")
"""Check whether candidates that wait for a slot get one."""


class DisruptionCandidate(msgspec.Struct, frozen=True):
    """Objects that are terminated together: a claim with its nodes, or a node without a claim (or with several).

    As the caches show it. `tracked` is the object that the DELETE is for.
    """

    key: CandidateKey
    nodes: tuple[Node, ...]
    claim: NodeClaim | None
    tracked: AnyTracked
    managed: tuple[Node, ...]
    """The nodes that can be a reason for the termination; none of a contested claim."""
    is_contested: bool = False
    """Another claim matches a node of this one."""

    @property
    def created(self) -> float:
        """The creation of its oldest object."""
        created: float = self.tracked.latest.created
        return min([created, *(node.created for node in self.nodes)])

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """The objects that get its Events."""
        nodes = tuple(TrackedObject(NODES, node) for node in self.nodes)
        return nodes if self.claim is None else (*nodes, self.tracked)


class CandidateStatus(msgspec.Struct):
    """Memory of a candidate with a reason to be terminated; nothing in it must survive a restart."""

    uid: str
    retry: Backoff
    has_failed: bool = False
    """The last DELETE was refused or failed."""
    failing_since: float | None = None
    """Monotonic: since when each try has failed, without a refusal; None: the last one has not."""
    pending_since: float | None = None
    """Since when (Unix seconds) its termination is blocked."""
    next_try: float = 0.0
    """Monotonic: no DELETE before, since the server has refused one."""
    accepted_version: str = ""
    """The version of which the server has accepted the DELETE; the watch may not show it yet."""
    reported: dict[EventReason, str] = msgspec.field(default_factory=dict)
    """The gist of the last Event, by reason."""
    timed_blockers: dict[str, VoluntaryBlocker] = msgspec.field(default_factory=dict)
    """Protections with a known end, by pod UID; includes ended protections without an Event."""


def candidate_keys(cluster: ClusterCache) -> Iterator[CandidateKey]:
    """Keys of all that may be a candidate."""
    yield from (CandidateKey("claim", claim.name) for claim in cluster.claims.values())
    yield from (CandidateKey("node", node.name) for node in cluster.nodes.values())


def find_candidate(
    cluster: ClusterCache, managed: ManagedNodes, claims: Resource[NodeClaim], key: CandidateKey
) -> DisruptionCandidate | None:
    """The candidate of this key; None if it is gone, not managed, being deleted, or covered by another key.

    `claims`: the resource as the cluster serves it.
    """
    if key.kind == "node":
        node = cluster.node(key.name)
        if node is None or node.deletion_timestamp is not None or not cluster.manages(managed, node):
            return None
        if cluster.claim_ending_with(node) is not None:
            return None
        return DisruptionCandidate(key, (node,), None, TrackedObject(NODES, node), managed=(node,))
    claim = cluster.claim(key.name)
    if claim is None or claim.deletion_timestamp is not None or not cluster.manages_claim(managed, claim):
        return None
    nodes = cluster.nodes_of(claim)
    if any(node.deletion_timestamp is not None and not cluster.is_left_over(node) for node in nodes):
        return None  # its node's termination deletes the claim
    nodes = tuple(node for node in nodes if node.deletion_timestamp is None)
    is_contested = any(only_claim(cluster.claims_of(node)) is None for node in nodes)
    return DisruptionCandidate(
        key,
        nodes,
        claim,
        TrackedObject(claims, claim),
        managed=() if is_contested else _managed(cluster, nodes, managed),
        is_contested=is_contested,
    )


def _managed(cluster: ClusterCache, nodes: Iterable[Node], managed: ManagedNodes) -> tuple[Node, ...]:
    """A node that is left over is a candidate alone."""
    return tuple(node for node in nodes if cluster.manages(managed, node) and not cluster.is_left_over(node))


def pods_that_may_block(
    cluster: ClusterCache, candidate: DisruptionCandidate, settings: PolicySettings
) -> dict[str, tuple[Pod, ...]]:
    """The pods of its nodes by name of the node, of those without a termination grace period."""
    nodes = (node for node in candidate.nodes if grace_period_of(node, candidate.claim, settings) is None)
    return {node.name: cluster.pods_on(node.name) for node in nodes}


def nodes_of_key(cluster: ClusterCache, managed: ManagedNodes, key: CandidateKey) -> tuple[Node, ...]:
    """The managed nodes of this key, although it has no candidate."""
    found: tuple[Node, ...] = ()
    if key.kind == "node":
        node = cluster.node(key.name)
        if node is not None and only_claim(cluster.claims_of(node)) is None:
            found = (node,)
    elif (claim := cluster.claim(key.name)) is not None:
        found = cluster.nodes_of(claim)
    return tuple(node for node in found if cluster.manages(managed, node))


class WaitIndex:
    """Finds the candidates that wait for the pods of a node, the budgets of a namespace, or a node disruption budget.

    A change wakes only the candidates that wait for it.
    """

    def __init__(self) -> None:
        self._topics: dict[CandidateKey, tuple[tuple[str, str], ...]] = {}
        self._keys: dict[tuple[str, str], dict[CandidateKey, None]] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._topics)

    def put(
        self,
        key: CandidateKey,
        nodes: Iterable[str] = (),
        namespaces: Iterable[str] = (),
        node_budgets: Iterable[str] = (),
    ) -> None:
        """From now on the candidate waits for these, and for nothing that it waited for before."""
        self.drop(key)
        kinds = {"node": nodes, "namespace": namespaces, "node budget": node_budgets}
        topics = tuple((kind, name) for kind, those in kinds.items() for name in those)
        self._topics[key] = topics
        for topic in topics:
            self._keys.setdefault(topic, {})[key] = None

    def drop(self, key: CandidateKey) -> None:
        """The candidate no longer waits."""
        for topic in self._topics.pop(key, ()):
            found = self._keys[topic]
            del found[key]
            if not found:
                del self._keys[topic]

    def on_node(self, node: str) -> tuple[CandidateKey, ...]:
        """Candidates that wait for the pods of a node."""
        return tuple(self._keys.get(("node", node), ()))

    def in_namespace(self, namespace: str) -> tuple[CandidateKey, ...]:
        """Candidates that wait for budgets of a namespace."""
        return tuple(self._keys.get(("namespace", namespace), ()))

    def for_node_budget(self, name: str) -> tuple[CandidateKey, ...]:
        """Candidates that wait for a node disruption budget, the longest waiting first."""
        return tuple(self._keys.get(("node budget", name), ()))

    def for_node_budgets(self) -> int:
        """Number of candidates that wait for node disruption budgets."""
        return sum(any(kind == "node budget" for kind, _ in topics) for topics in self._topics.values())
