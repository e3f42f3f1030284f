"""What gracectl asks of whatever can end an instance, and what it may rely on.

A provider's calls may be repeated at any time: after a crash, by a new leader, on every reconcile. So `terminate` of an
instance that is already ending is no error, and one that is gone raises InstanceGone, which means: done.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

from gracectl.kube.access import Right
from gracectl.kube.client import KubeClient


class InstanceState(StrEnum):
    """What a provider knows about an instance."""

    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"
    UNKNOWN = "unknown"
    """The provider cannot tell (it ends nothing): never a reason to skip a step."""


class ProviderError(Exception):
    """The provider could not do what it was asked to; the message is for people."""


class InstanceGone(ProviderError):
    """There is no such instance any more: what was to be ended has ended."""


class ProviderUnavailable(ProviderError):
    """It did not work this time (throttled, unreachable, a passing fault): it is tried again."""


class ProviderRefused(ProviderError):
    """It will not work until somebody acts (termination protection, missing rights). It is tried again, slowly."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.remedy = remedy


class Provider(Protocol):
    """Ends instances. `provider_id` is a node's spec.providerID, as written there."""

    @property
    def name(self) -> str:
        """The name under which it is registered (entry-point group `gracectl.providers`)."""

    @property
    def needs_provider_id(self) -> bool:
        """False for a provider that ends nothing, and so does not mind a node without one."""

    async def state(self, provider_id: str) -> InstanceState:
        """What has become of the instance. Raises ProviderUnavailable or ProviderRefused, never InstanceGone."""

    async def terminate(self, provider_id: str) -> None:
        """Ask for the end of the instance; returns when that is accepted, not when it is over.

        Idempotent. Raises InstanceGone when there is nothing left to end, ProviderUnavailable or ProviderRefused when
        it could not be asked for.
        """

    async def aclose(self) -> None:
        """Give back connections."""


@runtime_checkable
class UsesCluster(Protocol):
    """What a provider may be as well: one that ends instances by objects of the cluster whose nodes end.

    A provider that leaves either method out is not asked for the other.
    """

    def rights(self) -> tuple[Right, ...]:
        """What it needs there; asked for at the start, beside the controller's own rights."""

    def use(self, client: KubeClient) -> None:
        """Called once, before anything is asked of it. Writes of this client pass through the fence: NotLeading, which
        it must let through, says that they were not sent."""
