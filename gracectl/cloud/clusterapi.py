"""Provider for nodes of Cluster API: deletes their Machines, so that Cluster API terminates the infrastructure behind
them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Annotated, Final

import anyio
import msgspec

from gracectl.cloud.machines import MachineFinder, Scope
from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import connected
from gracectl.kube.credentials import CredentialsError
from gracectl.kube.errors import (
    AdmissionDenied,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
    NotServed,
    Unauthorized,
)
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.rbac import Permission
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import MACHINES, NODES
from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.machine import Machine

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
            raise InstanceGone(f"no Machine with providerID {provider_id} any more")

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
        except NotFound:
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
        annotated = await patch_with_retry(client, resource, machine, self._missing_annotations)
        if annotated is None:
            return None
        try:
            await client.delete(resource, annotated.key, uid=annotated.uid)
        except NotFound:
            return None
        except Conflict as conflict:
            if conflict.uid_mismatch:
                return None
            raise
        terminating = msgspec.structs.replace(annotated, is_deleted=True)
        self._finder.remember(terminating)
        return terminating

    def _missing_annotations(self, machine: Machine) -> MergePatch | None:
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
        except NotLeading:
            raise
        except NotServed as error:
            self._finder.forget_version()
            raise ProviderUnavailable(str(error)) from error
        except (Forbidden, Unauthorized) as error:
            raise ProviderRefused(str(error), _NEEDED) from error
        except (AdmissionDenied, Invalid) as error:
            raise ProviderRefused(str(error), "check which webhook or validation rejects it") from error
        except CredentialsError as error:
            message = f"management cluster of provider.options.kubeconfig: {error}"
            raise ProviderRefused(message, "mount credentials that are valid there") from error
        except ApiError as error:
            raise ProviderUnavailable(str(error)) from error
