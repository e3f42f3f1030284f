"""EC2 instances of one region: described and terminated in batches, because EC2 limits calls, not instances; and their
providerIDs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias
from weakref import WeakValueDictionary

import anyio
import msgspec

from gracectl.cloud.aws.clients import Call, Clients, InvalidRequest
from gracectl.cloud.provider import NodeIdentity, ProviderError, ProviderRefused, ProviderUnavailable
from gracectl.model.foreign import harmless
from gracectl.runtime.batches import Batcher
from gracectl.runtime.clock import Clock

Mode: TypeAlias = Literal["keep", "lower"]
"""Effect on the desired capacity of a group when one of its instances is terminated."""

WINDOW_SECONDS: Final = 0.05
DESCRIBED_AT_ONCE: Final = 200
"""Number of values in a filter of EC2."""
TERMINATED_AT_ONCE: Final = 50
MEMBERS_AT_ONCE: Final = 50
"""Limit of DescribeAutoScalingInstances."""
ALONE_AT_ONCE: Final = 5
GROUP_TAG: Final = "aws:autoscaling:groupName"

NOT_MANAGED: Final = "Instance Id not found"


class _Named(msgspec.Struct, frozen=True, rename="pascal"):
    name: str


class _Tag(msgspec.Struct, frozen=True, rename="pascal"):
    key: str
    value: str


class _Placement(msgspec.Struct, frozen=True, rename="pascal"):
    availability_zone: str = ""


class _Ipv6(msgspec.Struct, frozen=True):
    address: str = msgspec.field(default="", name="Ipv6Address")


class _Private(msgspec.Struct, frozen=True, rename="pascal"):
    private_ip_address: str = ""
    private_dns_name: str = ""


class _Interface(msgspec.Struct, frozen=True, rename="pascal"):
    private_ip_addresses: tuple[_Private, ...] = ()
    ipv6: tuple[_Ipv6, ...] = msgspec.field(default=(), name="Ipv6Addresses")


class Instance(msgspec.Struct, frozen=True, rename="pascal"):
    """EC2's description of an instance, as far as needed."""

    id: str = msgspec.field(name="InstanceId")
    state_name: _Named = msgspec.field(name="State")
    tags: tuple[_Tag, ...] = ()
    placement: _Placement = _Placement()
    private_ip_address: str = ""
    private_dns_name: str = ""
    network_interfaces: tuple[_Interface, ...] = ()

    @property
    def zone(self) -> str:
        """Availability zone; "" if unknown."""
        return self.placement.availability_zone

    @property
    def addresses(self) -> frozenset[str]:
        """Private IP addresses and host names, in lower case."""
        found = [self.private_ip_address, self.private_dns_name]
        for interface in self.network_interfaces:
            found += [address.address for address in interface.ipv6]
            for each in interface.private_ip_addresses:
                found += [each.private_ip_address, each.private_dns_name]
        return frozenset(address.lower() for address in found if address)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names that its Node has by default: the private host name, with and without domain, or the id."""
        host = self.private_dns_name.lower()
        return tuple(dict.fromkeys(name for name in (host, host.partition(".")[0], self.id) if name))

    @property
    def state(self) -> str:
        """`pending`, `running`, `shutting-down`, `terminated`, `stopping` or `stopped`."""
        return self.state_name.name

    @property
    def group(self) -> str:
        """Auto Scaling group that created it, or ""."""
        return next((tag.value for tag in self.tags if tag.key == GROUP_TAG), "")


class _Reservation(msgspec.Struct, frozen=True, rename="pascal"):
    instances: tuple[Instance, ...] = ()


# Required fields have no default: a page of a proxy must not be read as "no such instance".


class _Instances(msgspec.Struct, frozen=True, rename="pascal"):
    reservations: tuple[_Reservation, ...]
    next_token: str | None = None


class _Member(msgspec.Struct, frozen=True, rename="pascal"):
    instance_id: str
    lifecycle_state: str


class _Members(msgspec.Struct, frozen=True, rename="pascal"):
    auto_scaling_instances: tuple[_Member, ...]


class _Terminated(msgspec.Struct, frozen=True, rename="pascal"):
    terminating_instances: tuple[object, ...]


class _TerminatedInGroup(msgspec.Struct, frozen=True, rename="pascal"):
    activity: object


class Region:
    """Instances of a region. All methods raise ProviderUnavailable and ProviderRefused."""

    def __init__(self, name: str, clients: Clients, clock: Clock) -> None:
        self._name = name
        self._clients = clients
        self._descriptions: Batcher[str, Instance | None] = Batcher(
            clock, self._describe, seconds=WINDOW_SECONDS, limit=DESCRIBED_AT_ONCE
        )
        self._terminations: Batcher[str, None] = Batcher(
            clock, self._terminate_batch, seconds=WINDOW_SECONDS, limit=TERMINATED_AT_ONCE
        )
        self._members: Batcher[str, str] = Batcher(
            clock, self._lifecycles, seconds=WINDOW_SECONDS, limit=MEMBERS_AT_ONCE
        )
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def describe(self, instance: str) -> Instance | None:
        """Description; None: unknown to EC2, or no longer known."""
        return await self._descriptions.get(instance)

    async def terminate(self, instance: str) -> None:
        """Terminate it. Raises InstanceGone if there is none."""
        await self._terminations.get(instance)

    async def terminate_in_group(self, instance: Instance, mode: Mode) -> None:
        """Terminate it through its Auto Scaling group, once; an instance that has left its group is terminated
        directly."""
        lock = self._locks.setdefault(instance.id, anyio.Lock())
        async with lock:  # a second caller sees the effect of the first
            await self._terminate_member(instance, mode)

    async def aclose(self) -> None:
        """Cancel all calls."""
        for batches in (self._descriptions, self._terminations, self._members):
            await batches.aclose()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _describe(self, names: Sequence[str]) -> Mapping[str, Instance | Exception | None]:
        # Through a filter: a missing instance is no error then.
        found: dict[str, Instance | Exception | None] = dict.fromkeys(names)
        call = self._call("ec2", "DescribeInstances", names)
        page: dict[str, str] = {}
        while True:
            response = await self._clients.request(
                call, _Instances, Filters=[{"Name": "instance-id", "Values": list(names)}], **page
            )
            found.update({each.id: each for one in response.reservations for each in one.instances})
            if not response.next_token:
                return found
            page = {"NextToken": response.next_token}

    async def _terminate_batch(self, names: Sequence[str]) -> Mapping[str, Exception | None]:
        try:
            await self._terminate(names)
        except ProviderUnavailable:
            raise
        except ProviderError as error:
            if len(names) == 1:
                return {names[0]: error}
            return await self._terminate_one_by_one(names)
        return dict.fromkeys(names)

    async def _terminate_one_by_one(self, names: Sequence[str]) -> Mapping[str, Exception | None]:
        """Terminate one by one: an instance that may not be terminated makes its whole call fail."""
        outcomes: dict[str, Exception | None] = {}
        few = anyio.CapacityLimiter(ALONE_AT_ONCE)

        async def one(name: str) -> None:
            async with few:
                outcomes[name] = None
                try:
                    await self._terminate([name])
                except ProviderError as error:
                    outcomes[name] = error

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, name)
        return outcomes

    async def _terminate(self, names: Sequence[str]) -> None:
        call = self._call("ec2", "TerminateInstances", names)
        await self._clients.request(call, _Terminated, InstanceIds=list(names))

    async def _lifecycles(self, names: Sequence[str]) -> Mapping[str, str | Exception]:
        call = self._call("autoscaling", "DescribeAutoScalingInstances", names)
        response = await self._clients.request(call, _Members, InstanceIds=list(names))
        states = {each.instance_id: each.lifecycle_state for each in response.auto_scaling_instances}
        return {name: states.get(name, "") for name in names}

    async def _terminate_member(self, instance: Instance, mode: Mode) -> None:
        lifecycle = await self._members.get(instance.id)
        # `Terminating`, `Terminating:Wait` (a lifecycle hook), `Terminated`, and the same of a warm pool.
        if lifecycle.removeprefix("Warmed:").startswith("Terminat"):
            return
        if not lifecycle or lifecycle.startswith("Detach"):
            await self.terminate(instance.id)
            return
        call = self._call("autoscaling", "TerminateInstanceInAutoScalingGroup", [instance.id])
        lowers = mode == "lower"
        try:
            await self._clients.request(
                call, _TerminatedInGroup, InstanceId=instance.id, ShouldDecrementDesiredCapacity=lowers
            )
        except InvalidRequest as error:
            raise self._refusal(error, instance, mode) from error

    def _refusal(self, error: InvalidRequest, instance: Instance, mode: Mode) -> ProviderError:
        if NOT_MANAGED in error.reason:  # it has just left its group: retry
            return ProviderUnavailable(error.message)
        remedy = (
            f"terminate it outside of the group: aws autoscaling detach-instances --region {self._name} "
            f"--instance-ids {instance.id} --auto-scaling-group-name {instance.group} "
            "--no-should-decrement-desired-capacity"
        )
        if mode == "lower":
            remedy = f"lower the minimum size of {instance.group}, or set provider.options.autoScalingGroups to keep"
        return ProviderRefused(f"{error.message} (Auto Scaling group {instance.group})", remedy)

    def _call(self, service: str, operation: str, names: Sequence[str]) -> Call:
        return Call(service=service, region=self._name, operation=operation, instances=tuple(names))


# Host names that EC2 assigns, of an address or of the instance's id, without the domain.
_ASSIGNED_BY_EC2: Final = re.compile(r"ip-[0-9]+-[0-9]+-[0-9]+-[0-9]+|i-[0-9a-f]{8,17}")

OWNERSHIP_REMEDY: Final = (
    "check spec.providerID of the node, which its kubelet has written; if EC2 does not know the names and addresses "
    "of the nodes, set provider.options.verifyNode to false"
)


def check_ownership(node: NodeIdentity, requested: InstanceId, instance: Instance) -> None:
    """Raise ProviderRefused if the instance is another node's.

    A providerID is written by the kubelet, and so by any holder of its credentials: it may name another node's
    instance. The zone must be the instance's. The node's name, to which the credentials are bound, decides if EC2 has
    assigned it; else the addresses, which the kubelet writes as well.
    """
    if requested.zone and instance.zone and requested.zone != instance.zone:
        raise _refusal(node, instance, f"spec.providerID has zone {harmless(requested.zone)}")
    known = {*instance.addresses, instance.id}
    host = _host(node.name)
    if host in {_host(each) for each in known}:
        return
    if _ASSIGNED_BY_EC2.fullmatch(host):
        raise _refusal(node, instance, "not one of its names")
    if not {address.lower() for address in node.addresses} & known:
        raise _refusal(node, instance, "its name and addresses do not match")


def refuse_owner(node: NodeIdentity, instance: Instance, owner: str) -> ProviderRefused:
    """The refusal where a Node with the instance's own name exists, next to one that claims the instance."""
    theirs, ours = harmless(owner, 253), harmless(node.name, 253)
    return ProviderRefused(
        f"instance {instance.id} belongs to another node: {theirs} has its name, and not {ours}",
        f"check spec.providerID of the node, which its kubelet has written; or delete node {theirs} if it is left over",
    )


def _host(name: str) -> str:
    """Host name without its domain, which may be custom; an IP address unchanged."""
    lower = name.lower()
    is_address = ":" in lower or lower.replace(".", "").isdigit()
    return lower if is_address else lower.partition(".")[0]


def _refusal(node: NodeIdentity, instance: Instance, reason: str) -> ProviderRefused:
    name = instance.private_dns_name or instance.private_ip_address or "without a private name"
    facts = f"EC2 has {name} in {instance.zone or 'no zone'}, the node is {harmless(node.name, 253)}"
    return ProviderRefused(f"instance {instance.id} belongs to another node: {facts}: {reason}", OWNERSHIP_REMEDY)


# The region is the zone without its suffix: a letter, or the name of a Local Zone or a Wavelength Zone.
_ZONE = re.compile(r"(?P<region>[a-z]+(?:-[a-z]+)+-[0-9]+)(?:[a-z]|(?:-[a-z0-9]+)+)")
# A node of Fargate has one more part, before its name.
_PROVIDER_ID = re.compile(r"aws:///(?P<zone>[^/]*)/(?:[^/]+/)?(?P<name>[^/]+)")
_INSTANCE = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")

NOT_OURS = "terminate its machine where it was created, or exclude this node with nodeSelector"


class InstanceId(msgspec.Struct, frozen=True):
    """An instance: its region and its name there (`us-west-2`, `i-0123456789abcdef0`).

    `zone` as the providerID has it, which does not identify the instance; "" without one.
    """

    region: str
    name: str
    zone: str = ""


def instance_of(provider_id: str, region: str = "") -> InstanceId:
    """Parse `aws:///us-west-2a/i-0123456789abcdef0`; `region` is for those without a zone.

    Raises ProviderRefused for other than instances of EC2.
    """
    found = _PROVIDER_ID.fullmatch(provider_id)
    if found is None:
        raise ProviderRefused(f"providerID {provider_id} is not of the form aws:///<zone>/i-<id>", NOT_OURS)
    zone, name = found["zone"], found["name"]
    if name.startswith("fargate-"):
        remedy = "delete its pod, with which Fargate terminates the machine, or exclude these nodes with nodeSelector"
        raise ProviderRefused(f"providerID {provider_id} is a Fargate node, not an EC2 instance", remedy)
    if _INSTANCE.fullmatch(name) is None or provider_id != f"aws:///{zone}/{name}":
        raise ProviderRefused(f"providerID {provider_id} has no EC2 instance id ({name})", NOT_OURS)
    if not zone:
        if not region:
            remedy = "set provider.options.region"
            raise ProviderRefused(f"providerID {provider_id} has no region", remedy)
        return InstanceId(region, name)
    matched = _ZONE.fullmatch(zone)
    if matched is None:
        raise ProviderRefused(f"providerID {provider_id} has no AWS zone ({zone})", NOT_OURS)
    return InstanceId(matched["region"], name, zone)
