"""The provider for nodes that Cluster API has made: it deletes their Machines, and Cluster API ends what is behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Annotated, Final

import anyio
import msgspec

from gracectl.cloud.machines import Machines, Scope
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
    f"take the annotation {names.CLUSTER_API_PAUSED} off it, or spec.paused off its Cluster; if it has moved, name its "
    "new management cluster in provider.options.kubeconfig"
)


class ClusterApiProvider:
    """Ends a node by the Machine that has its providerID, in the cluster of the node or in one that is named."""

    name = "clusterapi"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`kubeconfig` and `context` name a management cluster that is another one than the nodes'; `namespace` and
        `clusterName` (of a Cluster) restrict where Machines are looked for.

        The two `exclude…` set the annotation of that name before the DELETE. A Machine whose end has taken
        `stuckSeconds` is reported, with what Cluster API says of it.
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
        self._here: KubeClient | None = None
        self._there: KubeClient | None = None
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._machines = Machines(Scope(options.namespace, options.cluster_name), self._client, self._nodes)
        self._since: dict[str, float] = {}

    def rights(self) -> tuple[Permission, ...]:
        """See UsesCluster. What it may do in another cluster is found out there, when it is needed."""
        if self._is_elsewhere:
            return ()
        place = self._options.namespace
        return tuple(Permission(verb, MACHINES.plural, MACHINES.group, namespace=place) for verb in VERBS)

    def use(self, client: KubeClient) -> None:
        """See UsesCluster."""
        self._here = client

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider. A Machine that is deleted and paused is refused, one that is stuck unavailable: both with the
        words of Cluster API."""
        with self._translated():
            machine = await self._machines.find(provider_id)
        if machine is None or not machine.is_deleted:
            self._since.pop(provider_id, None)
            return InstanceState.GONE if machine is None else InstanceState.RUNNING
        self._look_for_trouble(machine)
        return InstanceState.ENDING

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider. A Machine that is paused is left alone: it may be on its way to another management cluster; one
        that has another node is refused."""
        with self._translated():
            machine = await self._machines.find(provider_id)
            if machine is not None and not machine.is_deleted:
                await self._check_belongs(node, machine)
                machine = await self._deleted(machine)
        if machine is None:
            self._since.pop(provider_id, None)
            raise InstanceGone(f"there is no Machine with providerID {provider_id} any more")

    async def aclose(self) -> None:
        """Close the connection to the management cluster, if it is another one."""
        async with self._opening:
            await self._opened.aclose()
            self._there = None

    async def _check_belongs(self, node: NodeIdentity | None, machine: Machine) -> None:
        """Raises ProviderRefused where Cluster API has found another node for the Machine, and that is still there."""
        other = machine.node_name
        if node is None or not other or other == node.name:
            return
        try:
            await self._nodes().get(NODES, ("", other))
        except NotFound:
            return  # the machine came back under another name: Cluster API looks for its node once
        shown = harmless(other, 253)
        raise ProviderRefused(
            f"{machine} belongs to another node: {shown}, and not to {node.name}",
            f"check spec.providerID of the node, which its kubelet has written; or delete node {shown} if it is left "
            "over",
        )

    async def _deleted(self, machine: Machine) -> Machine | None:
        """The Machine after its DELETE; None if somebody was faster."""
        if machine.is_paused:
            message = f"{machine} is paused: Cluster API would not end it, and may be moving it to another cluster"
            raise ProviderRefused(message, _UNPAUSE)
        client, resource = await self._client(), await self._machines.resource()
        marked = await patch_with_retry(client, resource, machine, self._missing_marks)
        if marked is None:
            return None
        try:
            await client.delete(resource, marked.key, uid=marked.uid)
        except NotFound:
            return None
        except Conflict as conflict:
            if conflict.uid_mismatch:
                return None
            raise
        ending = msgspec.structs.replace(marked, is_deleted=True)
        self._machines.note(ending)
        return ending

    def _missing_marks(self, machine: Machine) -> MergePatch | None:
        """The annotations that tell Cluster API what we have done already."""
        wanted = {
            names.EXCLUDE_NODE_DRAINING: self._options.exclude_node_draining,
            names.EXCLUDE_VOLUME_DETACH: self._options.exclude_wait_for_node_volume_detach,
        }
        missing = [name for name, is_wanted in wanted.items() if is_wanted and name not in machine.annotations]
        return MergePatch({"metadata": {"annotations": dict.fromkeys(missing, "true")}}) if missing else None

    def _look_for_trouble(self, machine: Machine) -> None:
        """Raises what people should know of an end that does not come."""
        if machine.is_paused:
            raise ProviderRefused(f"{machine} is deleted, but paused: Cluster API does nothing about it", _UNPAUSE)
        now = anyio.current_time()
        seconds = now - self._since.setdefault(machine.provider_id, now)
        if seconds >= self._options.stuck_seconds:
            said = machine.deletion_message or "Cluster API does not say why"
            message = f"{machine} was deleted {seconds / 60:.0f} min ago and still stands: {said}"
            raise ProviderUnavailable(message)

    @property
    def _is_elsewhere(self) -> bool:
        return bool(self._options.kubeconfig or self._options.context)

    def _nodes(self) -> KubeClient:
        """The cluster of the nodes."""
        if self._here is None:
            raise RuntimeError("the provider clusterapi was not told which cluster the nodes are of (see UsesCluster)")
        return self._here

    async def _client(self) -> KubeClient:
        """The cluster of the Machines. Raises CredentialsError."""
        if not self._is_elsewhere:
            return self._nodes()
        async with self._opening:
            if self._there is None:
                chosen = connected(self._options.kubeconfig or None, self._options.context or None)
                self._there = (await self._opened.enter_async_context(chosen)).client
            return self._there

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Whatever an API server says, as a provider says it. That we may not write now is no word of a provider's."""
        try:
            yield
        except NotLeading:
            raise
        except NotServed as error:
            self._machines.forget_version()
            raise ProviderUnavailable(str(error)) from error
        except (Forbidden, Unauthorized) as error:
            raise ProviderRefused(str(error), _NEEDED) from error
        except (AdmissionDenied, Invalid) as error:
            raise ProviderRefused(str(error), "see who refuses that, and why") from error
        except CredentialsError as error:
            message = f"the management cluster of provider.options.kubeconfig: {error}"
            raise ProviderRefused(message, "mount credentials that are good there") from error
        except ApiError as error:
            raise ProviderUnavailable(str(error)) from error
