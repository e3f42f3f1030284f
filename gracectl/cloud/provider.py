"""What gracectl asks of whatever can end an instance, and what it may rely on.

A provider's calls may be repeated at any time: after a crash, by a new leader, on every reconcile. So `terminate` of an
instance that is already ending is no error, and one that is gone raises InstanceGone, which means: done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from gracectl.kube.client import KubeClient
from gracectl.kube.rbac import Permission
from gracectl.model.foreign import harmless

logger = logging.getLogger(__name__)


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


class NodeIdentity(msgspec.Struct, frozen=True):
    """What the Node object says of the machine behind it.

    A kubelet's credentials are bound to the node's `name`; they may write its `addresses` (those of the status, of
    whatever type: IP addresses and host names), and once its providerID.
    """

    name: str
    addresses: tuple[str, ...] = ()


class Provider(Protocol):
    """Ends instances. `provider_id` is a node's spec.providerID, as written there.

    An exception that is no ProviderError counts as ProviderUnavailable.
    """

    @property
    def name(self) -> str:
        """The name under which it is registered (entry-point group `gracectl.providers`)."""

    @property
    def needs_provider_id(self) -> bool:
        """False for a provider that ends nothing, and so does not mind a node without one."""

    async def state(self, provider_id: str) -> InstanceState:
        """What has become of the instance. Raises ProviderUnavailable or ProviderRefused, never InstanceGone."""

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """Ask for the end of the instance; returns when that is accepted, not when it is over.

        `node`: the node whose end this is, None for a NodeClaim without one. A provider that knows the machine's name
        or addresses compares them, and refuses where the instance belongs to another node.

        Idempotent. Raises InstanceGone when there is nothing left to end, ProviderUnavailable or ProviderRefused when
        it could not be asked for.
        """

    async def aclose(self) -> None:
        """Give back connections."""


@runtime_checkable
class KeysInstances(Protocol):
    """A provider that takes several providerIDs for the same instance. Without this, the trimmed text is the key."""

    def instance_key(self, provider_id: str) -> str:
        """The canonical key of the instance: equal wherever `terminate` would end the same one. Never raises; what is
        none of its instances has the trimmed text as its key."""


InstanceKey = Callable[[str], str]


def instance_key_of(provider: object) -> InstanceKey:
    """How to tell, by two providerIDs, whether they are of one instance."""
    if not isinstance(provider, KeysInstances):
        return str.strip
    keys = provider

    def key(provider_id: str) -> str:
        # It is asked for every node that the watch shows: a fault of a plugin must not end that.
        try:
            return keys.instance_key(provider_id)
        except Exception:
            logger.exception("the provider has no key for providerID %s; its text is taken", harmless(provider_id))
            return provider_id.strip()

    return key


@runtime_checkable
class UsesCluster(Protocol):
    """What a provider may be as well: one that ends instances by objects of the cluster whose nodes end.

    A provider that leaves either method out is not asked for the other.
    """

    def rights(self) -> tuple[Permission, ...]:
        """What it needs there; asked for at the start, beside the controller's own rights."""

    def use(self, client: KubeClient) -> None:
        """Called once, before anything is asked of it. Writes of this client pass through the fence: NotLeading, which
        it must let through, says that they were not sent."""
