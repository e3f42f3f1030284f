"""Which Machine of Cluster API stands for a providerID, found with one look at one object, mostly.

Invariant: that there is none is believed only where it is proven. A list that does not hold it may be that of another
management cluster, of a namespace that somebody has misspelt, or of one whose Machines have moved away; a node may
never have had one. To take any of that for the end of the instance would leak it.
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
_BY_HAND: Final = f"if its machine is surely gone, take the finalizer {names.FINALIZER} off the node"
# How many ends are remembered: more than can be under way, and so few that nobody minds.
_REMEMBERED: Final = 10_000


class Scope(msgspec.Struct, frozen=True):
    """Where Machines are looked for; empty means everywhere."""

    namespace: str = ""
    cluster: str = ""

    def __str__(self) -> str:
        place = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{place} (Cluster {self.cluster})" if self.cluster else place


class Machines:
    """The Machines of a scope. `theirs` gives the management cluster, `ours` the one whose nodes they stand for."""

    def __init__(
        self, scope: Scope, theirs: Callable[[], Awaitable[KubeClient]], ours: Callable[[], KubeClient]
    ) -> None:
        self._scope = scope
        self._theirs = theirs
        self._ours = ours
        self._resource: Resource[Machine] | None = None
        self._seen: dict[str, Machine] = {}
        self._ended: dict[str, None] = {}
        self._listing = anyio.Lock()
        self._listed: Sequence[Machine] | None = None
        self._lists = 0

    async def resource(self) -> Resource[Machine]:
        """Machines in the first version that is served. Raises ApiError, ProviderRefused."""
        if self._resource is None:
            client = await self._theirs()
            for version in MACHINE_VERSIONS:
                if await client.serves(version):
                    self._resource = version
                    break
            else:
                raise ProviderRefused(
                    f"the cluster serves no {MACHINES.qualified}",
                    "name the management cluster of Cluster API in provider.options.kubeconfig, or another provider",
                )
        return self._resource

    def forget_version(self) -> None:
        """The version is not served any more: the next call finds out which are left."""
        self._resource = None

    def note(self, machine: Machine) -> None:
        """It is as we have left it."""
        self._seen[machine.provider_id] = self._latest(machine)

    def _latest(self, machine: Machine) -> Machine:
        """What is known of it: an answer that was on its way while it was deleted does not take that back."""
        before = self._seen.get(machine.provider_id)
        if before is None or before.uid != machine.uid or not before.is_deleted:
            return machine
        return msgspec.structs.replace(machine, is_deleted=True)

    async def find(self, provider_id: str) -> Machine | None:
        """The Machine as it is now; None only where it is proven that there is none. Raises ApiError, ProviderError."""
        arrived = self._lists
        seen = self._seen.get(provider_id)
        if seen is not None:
            if (current := await self._again(seen)) is not None:
                self.note(current)
                return current
            if _is_ending(seen):
                self._end(provider_id)
                return None
        machines = await self._list_begun_after(arrived)
        found = [machine for machine in machines if machine.provider_id == provider_id]
        if len(found) > 1:
            listed = ", ".join(sorted(f"{each.namespace}/{each.name}" for each in found))
            raise ProviderRefused(
                f"several Machines have providerID {provider_id}: {listed}",
                "delete the one that does not stand for it, or correct its spec.providerID",
            )
        if found:
            return found[0]
        if provider_id not in self._ended:
            await self._prove_absent(provider_id, machines)
            self._end(provider_id)
        return None

    async def _again(self, seen: Machine) -> Machine | None:
        """The very same Machine, as it is now."""
        client, resource = await self._theirs(), await self.resource()
        try:
            current = await client.get(resource, seen.key)
        except NotFound:
            return None
        return current if (current.uid, current.provider_id) == (seen.uid, seen.provider_id) else None

    async def _list_begun_after(self, number: int) -> Sequence[Machine]:
        """All of them. Several that do not know theirs share a list that was begun while they were all waiting."""
        async with self._listing:
            if self._lists == number or self._listed is None:
                self._lists, self._listed = self._lists + 1, None
                client, resource = await self._theirs(), await self.resource()
                labels = f"{names.CLUSTER_API_CLUSTER}={self._scope.cluster}" if self._scope.cluster else ""
                listed = await read_all(client, resource, Selection(labels=labels), namespace=self._scope.namespace)
                self._take(listed)
                self._listed = listed
            return self._listed

    def _take(self, listed: Sequence[Machine]) -> None:
        times = Counter(machine.provider_id for machine in listed)
        for provider_id in [each for each, seen in self._seen.items() if _is_ending(seen) and not times[each]]:
            self._end(provider_id)
        known = (each for each in listed if each.provider_id and times[each.provider_id] == 1)
        self._seen = {each.provider_id: self._latest(each) for each in known}

    def _end(self, provider_id: str) -> None:
        """It is known to be gone, until a Machine turns up that has its providerID."""
        self._seen.pop(provider_id, None)
        self._ended[provider_id] = None
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _prove_absent(self, provider_id: str, machines: Sequence[Machine]) -> None:
        """ProviderError where its Machine may well be somewhere else, or where there has never been one."""
        nodes = await read_all(self._ours(), _NODES)
        for node in nodes:
            if node.provider_id == provider_id:
                self._judge(node, machines)
        ids = {machine.provider_id for machine in machines if machine.provider_id}
        if not any(node.provider_id in ids for node in nodes):
            raise ProviderRefused(
                f"no Machine has providerID {provider_id}, and of the {len(machines)} Machines {self._scope} none "
                "belongs to a node of this cluster",
                "see that provider.options (kubeconfig, context, namespace, clusterName) name the place where its "
                f"Machines are now; {_BY_HAND}",
            )

    def _judge(self, node: Membership, machines: Sequence[Machine]) -> None:
        """What Cluster API has written on a node for whose providerID there is no Machine. Raises ProviderError."""
        if node.owner_kind == "MachinePool":
            message = f"node {node.name} belongs to a MachinePool of Cluster API, and has no Machine of its own"
            raise ProviderRefused(message, f"shrink the pool by its own means; {_BY_HAND}")
        if not node.machine:
            message = f"node {node.name} has no annotation {names.CLUSTER_API_MACHINE}: Cluster API has not made it"
            raise ProviderRefused(message, f"end its machine, and leave such nodes out (nodeSelector); {_BY_HAND}")
        for option, wanted, written in (
            ("namespace", self._scope.namespace, node.namespace),
            ("clusterName", self._scope.cluster, node.cluster),
        ):
            if wanted and wanted != written:
                message = f'node {node.name} says that its {option} is "{written}", where nobody looks for its Machine'
                raise ProviderRefused(message, f'correct provider.options.{option}, which is "{wanted}"')
        for machine in machines:
            if machine.key == (node.namespace, node.machine) and not machine.provider_id:
                raise ProviderUnavailable(f"{machine}, which is behind node {node.name}, has no providerID")


def _is_ending(machine: Machine) -> bool:
    """Whether nothing is to be proven when it is there no more: what is paused may move away."""
    return machine.is_deleted and not machine.is_paused
