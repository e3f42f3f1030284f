"""Instances of one region: looked at and ended many at a time, for EC2 counts calls, not instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias
from weakref import WeakValueDictionary

import anyio
import msgspec

from gracectl.cloud.aws.clients import Clients
from gracectl.cloud.aws.errors import Call, InvalidRequest
from gracectl.cloud.provider import ProviderError, ProviderRefused, ProviderUnavailable
from gracectl.runtime.batches import Batcher
from gracectl.runtime.clock import Clock

Mode: TypeAlias = Literal["keep", "lower"]
"""What becomes of the size that a group is to have, when one of its instances is ended."""

WINDOW_SECONDS: Final = 0.05
LOOKED_AT_ONCE: Final = 200
"""As many values as a filter of EC2 takes."""
ENDED_AT_ONCE: Final = 50
MEMBERS_AT_ONCE: Final = 50
"""As many as DescribeAutoScalingInstances takes."""
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
    """An instance as EC2 describes it, as far as it is needed here."""

    id: str = msgspec.field(name="InstanceId")
    state_name: _Named = msgspec.field(name="State")
    tags: tuple[_Tag, ...] = ()
    placement: _Placement = _Placement()
    private_ip_address: str = ""
    private_dns_name: str = ""
    network_interfaces: tuple[_Interface, ...] = ()

    @property
    def zone(self) -> str:
        """Its availability zone; "" if EC2 does not say."""
        return self.placement.availability_zone

    @property
    def addresses(self) -> frozenset[str]:
        """Its private IP addresses and host names, in lower case."""
        found = [self.private_ip_address, self.private_dns_name]
        for interface in self.network_interfaces:
            found += [address.address for address in interface.ipv6]
            for each in interface.private_ip_addresses:
                found += [each.private_ip_address, each.private_dns_name]
        return frozenset(address.lower() for address in found if address)

    @property
    def state(self) -> str:
        """`pending`, `running`, `shutting-down`, `terminated`, `stopping` or `stopped`."""
        return self.state_name.name

    @property
    def group(self) -> str:
        """The Auto Scaling group that it was made by, or ""."""
        return next((tag.value for tag in self.tags if tag.key == GROUP_TAG), "")


class _Reservation(msgspec.Struct, frozen=True, rename="pascal"):
    instances: tuple[Instance, ...] = ()


# What an answer must have has no default: a page of some proxy must not be read as "there is no such instance".


class _Instances(msgspec.Struct, frozen=True, rename="pascal"):
    reservations: tuple[_Reservation, ...]
    next_token: str | None = None


class _Member(msgspec.Struct, frozen=True, rename="pascal"):
    instance_id: str
    lifecycle_state: str


class _Members(msgspec.Struct, frozen=True, rename="pascal"):
    auto_scaling_instances: tuple[_Member, ...]


class _Ended(msgspec.Struct, frozen=True, rename="pascal"):
    terminating_instances: tuple[object, ...]


class _EndedInGroup(msgspec.Struct, frozen=True, rename="pascal"):
    activity: object


class Region:
    """See the module. All methods raise ProviderUnavailable and ProviderRefused."""

    def __init__(self, name: str, clients: Clients, clock: Clock) -> None:
        self._name = name
        self._clients = clients
        self._looks: Batcher[str, Instance | None] = Batcher(
            clock, self._describe, seconds=WINDOW_SECONDS, limit=LOOKED_AT_ONCE
        )
        self._ends: Batcher[str, None] = Batcher(clock, self._end, seconds=WINDOW_SECONDS, limit=ENDED_AT_ONCE)
        self._members: Batcher[str, str] = Batcher(
            clock, self._lifecycles, seconds=WINDOW_SECONDS, limit=MEMBERS_AT_ONCE
        )
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def look(self, instance: str) -> Instance | None:
        """What EC2 says of it; None: it knows of none (any more)."""
        return await self._looks.get(instance)

    async def end(self, instance: str) -> None:
        """Terminate it. Raises InstanceGone where there is none."""
        await self._ends.get(instance)

    async def end_in_group(self, instance: Instance, mode: Mode) -> None:
        """Have its Auto Scaling group end it, once; an instance that has left its group ends by itself."""
        turn = self._turns.setdefault(instance.id, anyio.Lock())
        async with turn:  # who comes second sees what the first has done
            await self._end_member(instance, mode)

    async def aclose(self) -> None:
        """Stop all calls."""
        for batches in (self._looks, self._ends, self._members):
            await batches.aclose()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _describe(self, names: Sequence[str]) -> Mapping[str, Instance | Exception | None]:
        # Through a filter: one that does not exist is no error then, but missing.
        found: dict[str, Instance | Exception | None] = dict.fromkeys(names)
        call = self._call("ec2", "DescribeInstances", names)
        page: dict[str, str] = {}
        while True:
            answer = await self._clients.ask(
                call, _Instances, Filters=[{"Name": "instance-id", "Values": list(names)}], **page
            )
            found.update({each.id: each for one in answer.reservations for each in one.instances})
            if not answer.next_token:
                return found
            page = {"NextToken": answer.next_token}

    async def _end(self, names: Sequence[str]) -> Mapping[str, Exception | None]:
        try:
            await self._terminate(names)
        except ProviderUnavailable:
            raise
        except ProviderError as error:
            if len(names) == 1:
                return {names[0]: error}
            return await self._end_alone(names)
        return dict.fromkeys(names)

    async def _end_alone(self, names: Sequence[str]) -> Mapping[str, Exception | None]:
        """One that may not be ended refuses all of its call: none of the others is to wait for that."""
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
        await self._clients.ask(call, _Ended, InstanceIds=list(names))

    async def _lifecycles(self, names: Sequence[str]) -> Mapping[str, str | Exception]:
        call = self._call("autoscaling", "DescribeAutoScalingInstances", names)
        answer = await self._clients.ask(call, _Members, InstanceIds=list(names))
        states = {each.instance_id: each.lifecycle_state for each in answer.auto_scaling_instances}
        return {name: states.get(name, "") for name in names}

    async def _end_member(self, instance: Instance, mode: Mode) -> None:
        lifecycle = await self._members.get(instance.id)
        # `Terminating`, `Terminating:Wait` (a lifecycle hook), `Terminated`, and the same of a warm pool.
        if lifecycle.removeprefix("Warmed:").startswith("Terminat"):
            return
        if not lifecycle or lifecycle.startswith("Detach"):
            await self.end(instance.id)
            return
        call = self._call("autoscaling", "TerminateInstanceInAutoScalingGroup", [instance.id])
        lowers = mode == "lower"
        try:
            await self._clients.ask(call, _EndedInGroup, InstanceId=instance.id, ShouldDecrementDesiredCapacity=lowers)
        except InvalidRequest as error:
            raise self._refusal(error, instance, mode) from error

    def _refusal(self, error: InvalidRequest, instance: Instance, mode: Mode) -> ProviderError:
        if NOT_MANAGED in error.reason:  # it has left its group since we looked: it is looked again
            return ProviderUnavailable(error.message)
        remedy = (
            f"end it outside of the group: aws autoscaling detach-instances --region {self._name} "
            f"--instance-ids {instance.id} --auto-scaling-group-name {instance.group} "
            "--no-should-decrement-desired-capacity"
        )
        if mode == "lower":
            remedy = f"lower the minimum size of {instance.group}, or set provider.options.autoScalingGroups to keep"
        return ProviderRefused(f"{error.message} (Auto Scaling group {instance.group})", remedy)

    def _call(self, service: str, operation: str, names: Sequence[str]) -> Call:
        return Call(service=service, region=self._name, operation=operation, instances=tuple(names))
