"""Lookup of the Cluster API Machine for a providerID, mostly with one read of one object.

Invariant: absence is accepted only with proof. A list without the Machine may be of another management cluster, of a
wrong namespace, or of one whose Machines have moved away; a node may never have had one. Taking any of that for the end
of the instance would leak it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
import msgspec

from gracectl.cloud.provider import ProviderRefused, ProviderUnavailable
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.reading import read_all
from gracectl.kube.requests import Selection
from gracectl.kube.resources import MACHINE_VERSIONS, MACHINES, NODES, Resource
from gracectl.model import names
from gracectl.model.machine import Machine, Membership, decode_membership

_NODES: Final[Resource[Membership]] = Resource(
    group=NODES.group,
    version=NODES.version,
    plural=NODES.plural,
    kind=NODES.kind,
    namespaced=NODES.namespaced,
    decode=decode_membership,
)
_MANUALLY: Final = f"if its instance is certainly gone, remove the finalizer {names.FINALIZER} from the node"
# Number of ended Machines that are remembered: more than can be active.
_REMEMBERED: Final = 10_000


class Scope(msgspec.Struct, frozen=True):
    """Where Machines are looked up; empty: everywhere."""

    namespace: str = ""
    cluster: str = ""

    def __str__(self) -> str:
        place = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{place} (Cluster {self.cluster})" if self.cluster else place


class MachineFinder:
    """Machines of a scope. `management` returns the management cluster, `nodes` the cluster of their nodes."""

    def __init__(
        self, scope: Scope, management: Callable[[], Awaitable[KubeClient]], nodes: Callable[[], KubeClient]
    ) -> None:
        self._scope = scope
        self._management = management
        self._node_cluster = nodes
        self._resource: Resource[Machine] | None = None
        self._seen: dict[str, Machine] = {}
        self._ended: dict[str, None] = {}
        self._listing = anyio.Lock()
        self._listed: Sequence[Machine] | None = None
        self._lists = 0

    async def resource(self) -> Resource[Machine]:
        """Machines in the first served version. Raises ApiError, ProviderRefused."""
        if self._resource is None:
            client = await self._management()
            for version in MACHINE_VERSIONS:
                if await client.serves(version):
                    self._resource = version
                    break
            else:
                raise ProviderRefused(
                    f"the cluster serves no {MACHINES.qualified}",
                    "set the management cluster of Cluster API as provider.options.kubeconfig, or another provider",
                )
        return self._resource

    def forget_version(self) -> None:
        """Find the served version again in the next call."""
        self._resource = None

    def remember(self, machine: Machine) -> None:
        """Remember the state of a Machine."""
        self._seen[machine.provider_id] = self._latest(machine)

    def _latest(self, machine: Machine) -> Machine:
        """Known state: a response that was sent before a deletion does not undo it."""
        before = self._seen.get(machine.provider_id)
        if before is None or before.uid != machine.uid or not before.is_deleted:
            return machine
        return msgspec.structs.replace(machine, is_deleted=True)

    async def find(self, provider_id: str) -> Machine | None:
        """Current Machine; None only if it is proven that there is none. Raises ApiError, ProviderError."""
        arrived = self._lists
        seen = self._seen.get(provider_id)
        if seen is not None:
            if (current := await self._reread(seen)) is not None:
                self.remember(current)
                return current
            if _is_terminating(seen):
                self._mark_gone(provider_id)
                return None
        machines = await self._list_begun_after(arrived)
        found = [machine for machine in machines if machine.provider_id == provider_id]
        if len(found) > 1:
            listed = ", ".join(sorted(f"{each.namespace}/{each.name}" for each in found))
            raise ProviderRefused(
                f"several Machines have providerID {provider_id}: {listed}",
                "delete the wrong one, or correct its spec.providerID",
            )
        if found:
            return found[0]
        if provider_id not in self._ended:
            await self._prove_absent(provider_id, machines)
            self._mark_gone(provider_id)
        return None

    async def _reread(self, seen: Machine) -> Machine | None:
        """Current state of the same Machine."""
        client, resource = await self._management(), await self.resource()
        try:
            current = await client.get(resource, seen.key)
        except NotFound:
            return None
        return current if (current.uid, current.provider_id) == (seen.uid, seen.provider_id) else None

    async def _list_begun_after(self, number: int) -> Sequence[Machine]:
        """All Machines of the scope. Concurrent callers share a list that starts while all of them wait."""
        async with self._listing:
            if self._lists == number or self._listed is None:
                self._lists, self._listed = self._lists + 1, None
                client, resource = await self._management(), await self.resource()
                labels = f"{names.CLUSTER_API_CLUSTER}={self._scope.cluster}" if self._scope.cluster else ""
                listed = await read_all(client, resource, Selection(labels=labels), namespace=self._scope.namespace)
                self._remember_all(listed)
                self._listed = listed
            return self._listed

    def _remember_all(self, listed: Sequence[Machine]) -> None:
        times = Counter(machine.provider_id for machine in listed)
        for provider_id in [each for each, seen in self._seen.items() if _is_terminating(seen) and not times[each]]:
            self._mark_gone(provider_id)
        known = (each for each in listed if each.provider_id and times[each.provider_id] == 1)
        self._seen = {each.provider_id: self._latest(each) for each in known}

    def _mark_gone(self, provider_id: str) -> None:
        """Remember that it is gone, until a Machine with its providerID appears."""
        self._seen.pop(provider_id, None)
        self._ended[provider_id] = None
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _prove_absent(self, provider_id: str, machines: Sequence[Machine]) -> None:
        """Raise ProviderError if its Machine may be elsewhere, or if there has never been one."""
        nodes = await read_all(self._node_cluster(), _NODES)
        for node in nodes:
            if node.provider_id == provider_id:
                self._check_node(node, machines)
        ids = {machine.provider_id for machine in machines if machine.provider_id}
        if not any(node.provider_id in ids for node in nodes):
            raise ProviderRefused(
                f"no Machine has providerID {provider_id}, and of the {len(machines)} Machines {self._scope} none "
                "belongs to a node of this cluster",
                "check that provider.options (kubeconfig, context, namespace, clusterName) are right for its "
                f"Machines; {_MANUALLY}",
            )

    def _check_node(self, node: Membership, machines: Sequence[Machine]) -> None:
        """Check what Cluster API has set on a node whose providerID has no Machine. Raises ProviderError."""
        if node.owner_kind == "MachinePool":
            message = f"node {node.name} belongs to a MachinePool of Cluster API, and has no Machine of its own"
            raise ProviderRefused(message, f"scale the pool down instead; {_MANUALLY}")
        if not node.machine:
            message = f"node {node.name} has no annotation {names.CLUSTER_API_MACHINE}: not created by Cluster API"
            raise ProviderRefused(
                message, f"terminate its instance manually, and exclude such nodes (nodeSelector); {_MANUALLY}"
            )
        for option, wanted, written in (
            ("namespace", self._scope.namespace, node.namespace),
            ("clusterName", self._scope.cluster, node.cluster),
        ):
            if wanted and wanted != written:
                message = f'node {node.name}: its {option} "{written}" is outside of the configured scope'
                raise ProviderRefused(message, f'correct provider.options.{option} "{wanted}"')
        for machine in machines:
            if machine.key == (node.namespace, node.machine) and not machine.provider_id:
                raise ProviderUnavailable(f"{machine} of node {node.name} has no providerID")


def _is_terminating(machine: Machine) -> bool:
    """Whether its absence needs no proof: a paused one may be moving away."""
    return machine.is_deleted and not machine.is_paused
