"""Provider for EC2: nodes of EKS, kOps, Cluster API, and any other kubelets on EC2 instances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal

import anyio
import msgspec

from gracectl.cloud.aws.clients import CLOSED, Call, Clients
from gracectl.cloud.aws.region import Instance, InstanceId, Region, check_ownership, instance_of, refuse_owner
from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.rbac import Permission
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.runtime.batches import BatcherClosed
from gracectl.runtime.clock import LoopClock

STATES: Final = {
    "pending": InstanceState.RUNNING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.RUNNING,
    "stopped": InstanceState.RUNNING,
    "shutting-down": InstanceState.ENDING,
    "terminated": InstanceState.GONE,
}
"""A stopped instance exists, with its disks and its bill: it is still to be terminated."""

REMEMBERED: Final = 100_000
"""Number of instances that are remembered: more than can be active."""


class _CallerIdentity(msgspec.Struct, frozen=True, rename="pascal"):
    account: str


class AwsProvider:
    """Terminates instances by TerminateInstances, or through their Auto Scaling group."""

    name = "aws"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
        """See docs/aws.md. `region`: for providerIDs without a zone; `accountId`: the only account that is used;
        `timeoutSeconds`: limit of one call, repetitions included; `verifyNode`: see check_ownership."""

        region: Annotated[str, msgspec.Meta(pattern="^([a-z]+(-[a-z]+)+-[0-9]+)?$")] = ""
        profile: Annotated[str, msgspec.Meta(min_length=1)] | None = None
        endpoint_url: Annotated[str, msgspec.Meta(pattern="^https?://")] | None = None
        account_id: Annotated[str, msgspec.Meta(pattern="^[0-9]{12}$")] | None = None
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, lt=60)] = 30.0
        auto_scaling_groups: Literal["keep", "lower", "ignore"] = "keep"
        verify_node: bool = True

    def __init__(self, options: Options) -> None:
        self._options = options
        self._clock = LoopClock()
        self._clients = Clients(
            seconds=options.timeout_seconds, profile=options.profile, endpoint_url=options.endpoint_url
        )
        self._regions: dict[str, Region] = {}
        self._account = ""
        self._verifying = anyio.Lock()
        self._seen: dict[str, None] = {}
        self._cluster: KubeClient | None = None

    def rights(self) -> tuple[Permission, ...]:
        """See UsesCluster. The controller itself needs all permissions on nodes."""
        return ()

    def use(self, client: KubeClient) -> None:
        """See UsesCluster."""
        self._cluster = client

    def instance_key(self, provider_id: str) -> str:
        """See KeysInstances."""
        try:
            instance = instance_of(provider_id.strip(), self._options.region)
        except ProviderRefused:
            return provider_id.strip()
        return f"{instance.region}/{instance.name}"

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider.state."""
        instance = instance_of(provider_id, self._options.region)
        with self._timeout(instance):
            region = await self._region(instance)
            found = await self._describe(region, instance)
        return InstanceState.GONE if found is None else STATES.get(found.state, InstanceState.UNKNOWN)

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider.terminate. An instance of another node is refused."""
        instance = instance_of(provider_id, self._options.region)
        mode = self._options.auto_scaling_groups
        with self._timeout(instance):
            region = await self._region(instance)
            found = await self._describe(region, instance)
            if found is not None and found.state == "terminated":
                raise InstanceGone(f"instance {instance.name} is terminated")
            if found is not None and found.state == "shutting-down":
                return
            if found is not None and node is not None and self._options.verify_node:
                check_ownership(node, instance, found)
                await self._check_names(node, found)
            if found is not None and found.group and mode != "ignore":
                await region.terminate_in_group(found, mode)
            else:
                await region.terminate(instance.name)  # raises InstanceGone if there is none

    async def aclose(self) -> None:
        """Cancel calls in progress and close all connections."""
        for region in list(self._regions.values()):
            await region.aclose()
        await self._clients.aclose()

    async def _check_names(self, node: NodeIdentity, instance: Instance) -> None:
        """Raise ProviderRefused if another Node that is not being deleted has a name of the instance.

        Such a Node may be without providerID for a moment, or be NotReady. No kubelet can take another node's name.
        """
        if self._cluster is None:
            return
        for name in instance.node_names:
            if name == node.name:
                continue
            try:
                other = await self._cluster.get(NODES, ("", name))
            except NotFound:
                continue
            except NotLeading:
                raise
            except ApiError as error:
                raise ProviderUnavailable(f"instance {instance.id}: node {name} cannot be read: {error}") from error
            if other.deletion_timestamp is None:
                raise refuse_owner(node, instance, other.name)

    async def _describe(self, region: Region, instance: InstanceId) -> Instance | None:
        """EC2's description of the instance; None: it is gone. Raises ProviderRefused if that is unknown.

        EC2 forgets an instance an hour after its termination, but never knows instances of other accounts: so one is
        gone only if it was seen before, or if the account is verified.
        """
        found = await region.describe(instance.name)
        if found is not None:
            self._remember(instance.name)
        elif not self._account and instance.name not in self._seen:
            raise ProviderRefused(
                f"EC2 in {instance.region} has no instance {instance.name}, but it may belong to another account",
                "set provider.options.accountId to the account of the nodes, then unknown instances count as gone; or "
                f"make sure that the instance is terminated, and remove the {names.OUR_FINALIZER} from its node",
            )
        return found

    def _remember(self, name: str) -> None:
        """Remember an instance as seen; the oldest is forgotten first."""
        self._seen.pop(name, None)
        self._seen[name] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]

    @contextmanager
    def _timeout(self, instance: InstanceId) -> Iterator[None]:
        seconds = self._options.timeout_seconds
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError as error:
            raise ProviderUnavailable(f"instance {instance.name}: no response of AWS within {seconds:g} s") from error
        except BatcherClosed as error:
            raise ProviderUnavailable(CLOSED) from error

    async def _region(self, instance: InstanceId) -> Region:
        if self._options.account_id:
            await self._verify(self._options.account_id, instance.region)
        if instance.region not in self._regions:
            self._regions[instance.region] = Region(instance.region, self._clients, self._clock)
        return self._regions[instance.region]

    async def _verify(self, wanted: str, region: str) -> None:
        """Check the account, once: credentials are renewed, but never for another account."""
        async with self._verifying:
            if not self._account:
                call = Call(service="sts", region=region, operation="GetCallerIdentity")
                self._account = (await self._clients.request(call, _CallerIdentity)).account
        if self._account != wanted:
            message = f"the credentials belong to account {self._account}, but provider.options.accountId is {wanted}"
            raise ProviderRefused(message, "use a role of that account, or correct accountId")
