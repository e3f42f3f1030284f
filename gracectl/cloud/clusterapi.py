"""Provider for nodes of Cluster API: deletes their Machines, so that Cluster API terminates the infrastructure behind
them.

A Machine is found by its providerID, mostly with one read of one object. Invariant: absence is accepted only with
proof. A list without the Machine may come from another management cluster, a wrong namespace, or one that has moved
its Machines away; a node may never have had a Machine. Treating that as the end of the instance would leak it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Annotated, Final

import anyio
import msgspec

from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable
from gracectl.kube import errors
from gracectl.kube.auth.credentials import CredentialsError
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import connected
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.rbac import Permission
from gracectl.kube.requests import MergePatch, Selection
from gracectl.kube.resources import MACHINE_VERSIONS, MACHINES, NODES, Resource
from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.machine import Machine, Membership, decode_membership

VERBS: Final = ("get", "list", "patch", "delete")
_NEEDED: Final = f"its role needs {', '.join(VERBS)} of {MACHINES.qualified}"
_UNPAUSE: Final = (
    f"remove the annotation {names.CLUSTER_API_PAUSED} from it, or spec.paused from its Cluster; if it has moved, set "
    "its new management cluster as provider.options.kubeconfig"
)


class ClusterApiProvider:
    """Terminates a node by deleting the Machine with its providerID, in its own or a configured cluster."""

    name = "clusterapi"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`kubeconfig` and `context`: management cluster, if it is not the nodes' own; `namespace` and `clusterName`
        (of a Cluster) restrict where Machines are looked up.

        The two `exclude…` set the annotation of that name before the DELETE. A Machine that has been terminating for
        `stuckSeconds` is reported, with the status of Cluster API.
        """

        namespace: str = ""
        cluster_name: str = ""
        kubeconfig: str = ""
        context: str = ""
        exclude_node_draining: bool = True
        exclude_wait_for_node_volume_detach: bool = True
        stuck_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 600.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._node_cluster: KubeClient | None = None
        self._management_cluster: KubeClient | None = None
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._finder = MachineFinder(Scope(options.namespace, options.cluster_name), self._client, self._nodes)
        self._since: dict[str, float] = {}

    def rights(self) -> tuple[Permission, ...]:
        """See UsesCluster. Permissions in another cluster are not checked in advance."""
        if self._has_management_cluster:
            return ()
        place = self._options.namespace
        return tuple(Permission(verb, MACHINES.plural, MACHINES.group, namespace=place) for verb in VERBS)

    def use(self, client: KubeClient) -> None:
        """See UsesCluster."""
        self._node_cluster = client

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider. A deleted Machine that is paused is refused, one that is stuck unavailable: both with the
        status of Cluster API."""
        with self._translate_errors():
            machine = await self._finder.find(provider_id)
        if machine is None or not machine.is_deleted:
            self._since.pop(provider_id, None)
            return InstanceState.GONE if machine is None else InstanceState.RUNNING
        self._check_progress(machine)
        return InstanceState.ENDING

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider. A paused Machine is not touched: it may be moving to another management cluster; one that
        belongs to another node is refused."""
        with self._translate_errors():
            machine = await self._finder.find(provider_id)
            if machine is not None and not machine.is_deleted:
                await self._check_belongs(node, machine)
                machine = await self._delete(machine)
        if machine is None:
            self._since.pop(provider_id, None)
            raise InstanceGone(f"no Machine has providerID {provider_id} now")

    async def aclose(self) -> None:
        """Close the connection to the management cluster, if it is a configured one."""
        async with self._opening:
            await self._opened.aclose()
            self._management_cluster = None

    async def _check_belongs(self, node: NodeIdentity | None, machine: Machine) -> None:
        """Raise ProviderRefused if Cluster API has set another node for the Machine, and that node exists."""
        other = machine.node_name
        if node is None or not other or other == node.name:
            return
        try:
            await self._nodes().get(NODES, ("", other))
        except errors.NotFound:
            return  # the node was renamed: Cluster API sets it once
        shown = harmless(other, 253)
        raise ProviderRefused(
            f"{machine} belongs to another node: {shown}, and not to {node.name}",
            f"check spec.providerID of the node, which its kubelet has written; or delete node {shown} if it is a "
            "leftover",
        )

    async def _delete(self, machine: Machine) -> Machine | None:
        """The Machine after its DELETE; None if it is gone already."""
        if machine.is_paused:
            message = f"{machine} is paused: Cluster API would not terminate it, and may be moving it"
            raise ProviderRefused(message, _UNPAUSE)
        client, resource = await self._client(), await self._finder.resource()
        annotated = await patch_with_retry(client, resource, machine, self._annotations_patch)
        if annotated is None:
            return None
        try:
            await client.delete(resource, annotated.key, uid=annotated.uid)
        except errors.NotFound:
            return None
        except errors.Conflict as conflict:
            if conflict.uid_mismatch:
                return None
            raise
        terminating = msgspec.structs.replace(annotated, is_deleted=True)
        self._finder.remember(terminating)
        return terminating

    def _annotations_patch(self, machine: Machine) -> MergePatch | None:
        """Patch with the annotations that tell Cluster API what gracectl has done already."""
        wanted = {
            names.EXCLUDE_NODE_DRAINING: self._options.exclude_node_draining,
            names.EXCLUDE_VOLUME_DETACH: self._options.exclude_wait_for_node_volume_detach,
        }
        missing = [name for name, is_wanted in wanted.items() if is_wanted and name not in machine.annotations]
        return MergePatch({"metadata": {"annotations": dict.fromkeys(missing, "true")}}) if missing else None

    def _check_progress(self, machine: Machine) -> None:
        """Raise if the Machine's termination makes no progress."""
        if machine.is_paused:
            raise ProviderRefused(f"{machine} is being deleted, but paused: Cluster API does not act on it", _UNPAUSE)
        now = anyio.current_time()
        seconds = now - self._since.setdefault(machine.provider_id, now)
        if seconds >= self._options.stuck_seconds:
            status = machine.deletion_message or "Cluster API reports no reason"
            message = f"{machine} has been terminating for {seconds / 60:.0f} min: {status}"
            raise ProviderUnavailable(message)

    @property
    def _has_management_cluster(self) -> bool:
        return bool(self._options.kubeconfig or self._options.context)

    def _nodes(self) -> KubeClient:
        """Client for the cluster of the nodes."""
        if self._node_cluster is None:
            raise RuntimeError("provider clusterapi: no cluster set (see UsesCluster)")
        return self._node_cluster

    async def _client(self) -> KubeClient:
        """Client for the cluster of the Machines. Raises CredentialsError."""
        if not self._has_management_cluster:
            return self._nodes()
        async with self._opening:
            if self._management_cluster is None:
                chosen = connected(self._options.kubeconfig or None, self._options.context or None)
                self._management_cluster = (await self._opened.enter_async_context(chosen)).client
            return self._management_cluster

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate API errors to provider errors; NotLeading passes, as it says nothing about the instance."""
        try:
            yield
        except errors.NotLeading:
            raise
        except errors.NotServed as error:
            self._finder.forget_version()
            raise ProviderUnavailable(str(error)) from error
        except (errors.Forbidden, errors.Unauthorized) as error:
            raise ProviderRefused(str(error), _NEEDED) from error
        except (errors.AdmissionDenied, errors.Invalid) as error:
            raise ProviderRefused(str(error), "check which webhook or validation rejects it") from error
        except CredentialsError as error:
            message = f"management cluster of provider.options.kubeconfig: {error}"
            raise ProviderRefused(message, "mount credentials that are valid there") from error
        except errors.ApiError as error:
            raise ProviderUnavailable(str(error)) from error


_NODES: Final = NODES.read_by(decode_membership)
_MANUALLY: Final = f"if its instance is certainly gone, remove the {names.OUR_FINALIZER} from the node"
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
        except errors.NotFound:
            return None
        return current if (current.uid, current.provider_id) == (seen.uid, seen.provider_id) else None

    async def _list_begun_after(self, number: int) -> Sequence[Machine]:
        """All Machines of the scope. Concurrent callers share a list that starts while all callers wait."""
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
        """Check the annotations of Cluster API on a node that has no Machine. Raises ProviderError."""
        if node.owner_kind == "MachinePool":
            message = f"node {node.name} belongs to a MachinePool of Cluster API, and has no Machine"
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
