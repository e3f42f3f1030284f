"""Informers: the reflectors that fill the cluster cache, and their decoders.

Invariants: equal strings and label maps of pods, nodes and claims are kept once for all caches of one owner; what is
large is charged to one quota for all of them.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.kube.cache import T, Writable
from gracectl.kube.cache.identity import ClusterIdentity
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.requests import ALL, Selection, named
from gracectl.kube.resources import (
    BUDGETS,
    CONFIG_MAPS,
    MACHINE_VERSIONS,
    NODE_BUDGETS,
    NODE_CLAIM_VERSIONS,
    NODE_DRAINS,
    NODES,
    PODS,
    VOLUME_ATTACHMENTS,
    Resource,
)
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.decode import BudgetDecoder, ClaimDecoder, NodeBudgetDecoder, NodeDecoder, PodDecoder
from gracectl.model.machine import Machine
from gracectl.model.meta import ConfigMap
from gracectl.model.node import Node
from gracectl.model.nodedrain import NodeDrain, NodeDrainDecoder
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.model.sharing import Sharing
from gracectl.runtime.clock import Clock

MANY = 30
"""Pods of more nodes than these are not listed node by node: a server may scan all pods for each."""


class Sources(msgspec.Struct, frozen=True):
    """The resource of each cache. A cluster serves its node claims in one of several versions, or not at all."""

    nodes: Resource[Node]
    pods: Resource[Pod]
    claims: tuple[Resource[NodeClaim], ...]
    budgets: Resource[PodDisruptionBudget]
    node_budgets: Resource[NodeDisruptionBudget]
    node_drains: Resource[NodeDrain]
    attachments: Resource[VolumeAttachment] = VOLUME_ATTACHMENTS


def new_informers() -> Sources:
    """Resources with decoders that share nothing with other caches."""
    sharing = Sharing()
    return Sources(
        nodes=NODES.read_by(NodeDecoder(sharing)),
        pods=PODS.read_by(PodDecoder(sharing)),
        claims=tuple(version.read_by(ClaimDecoder(sharing)) for version in NODE_CLAIM_VERSIONS),
        budgets=BUDGETS.read_by(BudgetDecoder(sharing)),
        node_budgets=NODE_BUDGETS.read_by(NodeBudgetDecoder(sharing)),
        node_drains=NODE_DRAINS.read_by(NodeDrainDecoder(sharing)),
    )


class Reflectors:
    """Reflectors that keep the caches of `cluster` up to date: one for each kind; for pods see `of_pods`."""

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        clock: Clock,
        *,
        settings: ReflectorSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings or ReflectorSettings()
        self._rng = rng or random.Random()
        self.identity = ClusterIdentity(client, clock)
        self._sources = sources = new_informers()
        optional = msgspec.structs.replace(self._settings, optional=True)
        self.nodes = self._reflector(sources.nodes, cluster.nodes, self._settings)
        self.budgets = self._reflector(sources.budgets, cluster.budgets, self._settings)
        self.attachments = self._reflector(sources.attachments, cluster.attachments, self._settings)
        self.claims = self._reflector(sources.claims, cluster.claims, optional)

    @property
    def whole(self) -> tuple[Reflector[Any], ...]:
        """Reflectors of the kinds that are always cached whole."""
        return (self.nodes, self.budgets, self.attachments, self.claims)

    def of_pods(
        self, into: Writable[Pod], selection: Selection = ALL, *, proven: bool = False, cached: bool = False
    ) -> Reflector[Pod]:
        """Reflector of all pods, or of a selection; `proven` and `cached` as in the settings."""
        proven = proven or self._settings.proven
        settings = msgspec.structs.replace(self._settings, selection=selection, proven=proven, cached=cached)
        return self._reflector(self._sources.pods, into, settings)

    def of_node(self, into: Writable[Node], name: str) -> Reflector[Node]:
        """Reflector of one node; needs no right to list nodes."""
        return self._reflector(self._sources.nodes, into, msgspec.structs.replace(self._settings, name=name))

    def of_budgets(self, into: Writable[PodDisruptionBudget], namespace: str) -> Reflector[PodDisruptionBudget]:
        """Reflector of the budgets of one namespace."""
        settings = msgspec.structs.replace(self._settings, namespace=namespace)
        return self._reflector(self._sources.budgets, into, settings)

    def of_machines(self, into: Writable[Machine]) -> Reflector[Machine]:
        """Reflector of the Machines of Cluster API; empty where the cluster has no such kind."""
        return self._reflector(MACHINE_VERSIONS, into, msgspec.structs.replace(self._settings, optional=True))

    def of_freeze(self, into: Writable[ConfigMap], namespace: str) -> Reflector[ConfigMap]:
        """Reflector of the ConfigMap of a freeze; needs rights to this name only."""
        settings = msgspec.structs.replace(self._settings, namespace=namespace, selection=named(names.FREEZE))
        return self._reflector(CONFIG_MAPS, into, settings)

    def of_node_budgets(self, into: Writable[NodeDisruptionBudget]) -> Reflector[NodeDisruptionBudget]:
        """Reflector of all node disruption budgets; empty where the cluster has no such kind."""
        return self._reflector(self._sources.node_budgets, into, msgspec.structs.replace(self._settings, optional=True))

    def of_node_drains(self, into: Writable[NodeDrain]) -> Reflector[NodeDrain]:
        """Reflector of all NodeDrains; empty where the cluster has no such kind."""
        return self._reflector(self._sources.node_drains, into, msgspec.structs.replace(self._settings, optional=True))

    def _reflector(
        self, resource: Resource[T] | tuple[Resource[T], ...], into: Writable[T], settings: ReflectorSettings
    ) -> Reflector[T]:
        reflector = Reflector(self._client, resource, into, self._clock, settings=settings, rng=self._rng)
        reflector.identity = self.identity
        return reflector
