"""Interface of instance providers, and registry of installed providers (entry points `gracectl.providers`).

Calls may be repeated at any time: after a crash, by a new leader, on every reconcile. So `terminate` of an instance
that is already terminating is no error, and one that is gone raises InstanceGone, which means: done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from gracectl.kube.client import KubeClient
from gracectl.kube.rbac import Permission
from gracectl.model.foreign import harmless

logger = logging.getLogger(__name__)


class InstanceState(StrEnum):
    """State of an instance, as known to a provider."""

    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"
    UNKNOWN = "unknown"
    """The provider cannot tell (it terminates nothing): never a reason to skip a step."""


class ProviderError(Exception):
    """A call failed; the message is displayed."""


class InstanceGone(ProviderError):
    """The instance no longer exists: the termination is complete."""


class ProviderUnavailable(ProviderError):
    """Transient failure (throttled, unreachable): it is retried."""


class ProviderRefused(ProviderError):
    """Permanent failure until an administrator acts (termination protection, missing permissions). It is retried,
    slowly."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.remedy = remedy


class NodeIdentity(msgspec.Struct, frozen=True):
    """Identity of a machine, from its Node object.

    A kubelet's credentials are bound to the node's `name`; they may write its `addresses` (those of the status, of any
    type: IP addresses and host names), and once its providerID.

    `claim`: name of the node's NodeClaim, which no kubelet can write; "" without one, or with several. `conflicts`:
    names of other Nodes of the same instance or claim, all of them being deleted.
    """

    name: str
    addresses: tuple[str, ...] = ()
    claim: str = ""
    conflicts: tuple[str, ...] = ()


class Provider(Protocol):
    """Terminates instances. `provider_id` is a node's spec.providerID, verbatim.

    An exception other than ProviderError counts as ProviderUnavailable.
    """

    @property
    def name(self) -> str:
        """Registered name (entry-point group `gracectl.providers`)."""

    @property
    def needs_provider_id(self) -> bool:
        """False for a provider that terminates nothing, and so accepts a node without one."""

    async def state(self, provider_id: str) -> InstanceState:
        """State of the instance. Raises ProviderUnavailable or ProviderRefused; InstanceGone counts as GONE."""

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """Request the termination of an instance; returns when that is accepted, not when it is complete.

        `node`: the node of the instance, None for a NodeClaim without one. A provider that knows the instance's name or
        addresses compares them, and refuses if the instance belongs to another node.

        Idempotent. Raises InstanceGone if there is nothing to terminate, ProviderUnavailable or ProviderRefused if the
        request failed.
        """

    async def aclose(self) -> None:
        """Close connections."""


@runtime_checkable
class KeysInstances(Protocol):
    """Provider with several providerIDs per instance. Without this, the trimmed text is the key."""

    def instance_key(self, provider_id: str) -> str:
        """Canonical key of the instance: equal if `terminate` would terminate the same one. Never raises; the key
        of a foreign providerID is its trimmed text."""


InstanceKey = Callable[[str], str]


def instance_key_of(provider: object) -> InstanceKey:
    """Key function of a provider, by which two providerIDs are recognised as one instance."""
    if not isinstance(provider, KeysInstances):
        return str.strip
    keys = provider

    def key(provider_id: str) -> str:
        # Called for every node of the watch: a bug in a plugin must not stop it.
        try:
            return keys.instance_key(provider_id)
        except Exception:
            logger.exception("provider: no key for providerID %s; using its text", harmless(provider_id))
            return provider_id.strip()

    return key


@runtime_checkable
class UsesCluster(Protocol):
    """Optional interface of a provider that works through objects of the nodes' cluster.

    A provider with only one of the methods does not get the other called.
    """

    def rights(self) -> tuple[Permission, ...]:
        """Permissions that it needs there; checked at the start, with the controller's own."""

    def use(self, client: KubeClient) -> None:
        """Set the client, once, before any other call. Its writes pass the fence: NotLeading, which the provider must
        not catch, means that a request was not sent."""


TRACEPARENT: Final[ContextVar[str | None]] = ContextVar("traceparent", default=None)
"""W3C trace context of the termination that a call belongs to; providers hand it on to what they call."""

GROUP = "gracectl.providers"

NONE: Final = "none"
"""Name of the provider that terminates nothing; the default."""


class ProviderSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Name of the provider, and its own options (each provider documents and checks them)."""

    name: str = NONE
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class UnknownProvider(LookupError):
    """No installed provider (or source of interruptions) has that name; the message lists the installed ones."""


def load_provider(settings: ProviderSettings) -> Provider:
    """Create the configured provider.

    Raises UnknownProvider, msgspec.ValidationError with the path of the invalid option, or ValueError with the option
    that the provider cannot use (a missing file) in front.
    """
    provider_class = _provider_class(settings)
    provider: Provider = provider_class(_options(provider_class, settings))
    return provider


def check_options(settings: ProviderSettings) -> None:
    """Raise what `load_provider` does, except for errors visible only where the provider runs: its files."""
    _options(_provider_class(settings), settings)


def _provider_class(settings: ProviderSettings) -> Any:
    return installed_class(GROUP, "provider", settings.name)


def installed_class(group: str, noun: str, name: str) -> Any:
    """Class of an entry point; `noun` says in messages what it is. Raises UnknownProvider."""
    installed = {entry.name: entry for entry in entry_points(group=group)}
    entry = installed.get(name)
    if entry is None:
        known = ", ".join(sorted(installed)) or "none"
        raise UnknownProvider(f'unknown {noun} "{name}"; installed: {known}')
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise UnknownProvider(f'{noun} "{name}" cannot be loaded from {entry.value}: {error}') from error


def _options(provider_class: Any, settings: ProviderSettings) -> Any:
    return msgspec.convert(dict(settings.options), provider_class.Options)
