"""Interfaces of sources of notices, and their registry (entry points `gracectl.interruptions`).

A source says what it has heard; the handler makes an annotation of the node of it, and the controllers do the rest.
Three kinds: one that reads nodes (taints, conditions), one that polls another system while this process leads (a
queue), and one that serves in every replica (a webhook). What a source receives is foreign: bounded, decoded, never
trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from gracectl.cloud.provider import installed_class
from gracectl.model.durations import parse_seconds
from gracectl.model.node import Node
from gracectl.policy.interruption import SOURCE, Interruption, Kind
from gracectl.policy.settings import DEFAULT_LEAD_SECONDS

GROUP: Final = "gracectl.interruptions"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What a source has heard about one machine, which one of `provider_id` (verbatim), `instance` (its last part) and
    `node` names.

    `at`: when the machine goes, None if unknown; `issued`: when that was said, None if unknown. Both Unix seconds.
    `text`: foreign.
    """

    kind: Kind
    at: float | None = None
    issued: float | None = None
    provider_id: str = ""
    instance: str = ""
    node: str = ""
    text: str = ""


class Outcome(StrEnum):
    """What has become of a notice. All but the last one are final: the notice may be acknowledged."""

    RECORDED = "recorded"
    REPEATED = "repeated"
    """The node shows all that it says."""
    UNKNOWN = "unknown"
    """No node has this machine."""
    GONE = "gone"
    """The node is gone, or younger than the notice: it has another machine."""
    UNMANAGED = "unmanaged"
    IGNORED = "ignored"
    """It is about nothing that ends a machine."""
    REFUSED = "refused"
    """Invalid, or not from where notices are expected."""


class NodeRef(msgspec.Struct, frozen=True):
    """A node that a notice is about."""

    name: str
    uid: str


class Receipt(msgspec.Struct, frozen=True):
    """What has become of a notice, and the nodes that show it."""

    outcome: Outcome
    nodes: tuple[NodeRef, ...] = ()


class Handler(Protocol):
    """Handler of the notices of one source."""

    def now(self) -> float:
        """Unix seconds, by the API server's clock."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""

    async def receive(self, notice: Notice) -> Receipt:
        """Record a notice; returns when the objects of the cluster show it. Idempotent. Raises ApiError."""

    async def until_drained(self, receipt: Receipt) -> None:
        """Return when each of its nodes is drained, with its volumes detached, or gone."""

    def count(self, outcome: Outcome, kind: Kind | None = None) -> None:
        """Count a notice that the source itself has decided about."""


class Source(Protocol):
    """A source; its class has a nested struct `Options`, which its constructor takes."""

    @property
    def name(self) -> str:
        """Registered name."""


@runtime_checkable
class ReadsNodes(Source, Protocol):
    """Source that is in the nodes themselves. Pure."""

    def notice_of(self, node: Node, now: float) -> Interruption | None:
        """What the node shows at `now`."""


@runtime_checkable
class Polls(Source, Protocol):
    """Source that the leader asks."""

    @property
    def problem(self) -> str:
        """Why it hears nothing at the moment; empty if it does."""

    async def poll(self, handler: Handler) -> None:
        """Hear notices until cancelled. A failure is repaired by calling it again."""


@runtime_checkable
class Serves(Source, Protocol):
    """Source that others call, in every replica."""

    async def open(self, handler: Handler) -> None:
        """Listen. Raises CannotListen."""

    async def serve(self) -> None:
        """Serve until cancelled."""

    async def close(self) -> None:
        """Stop listening."""


class SourceSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Name of a source, and its own options."""

    name: str
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class InterruptionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Where notices are heard, and when a paced termination becomes urgent."""

    sources: tuple[SourceSettings, ...] = ()
    lead_time: str = "15m"
    """A node with a maintenance that is known is terminated without regard to pace and budgets for nodes this long (a
    Go duration) before it."""

    @property
    def lead_seconds(self) -> float:
        """`lead_time` in seconds. ValueError if it cannot be read, or is negative."""
        seconds = parse_seconds(self.lead_time)
        if seconds < 0:
            raise ValueError(f"{self.lead_time!r} is negative; give a duration such as {DEFAULT_LEAD_SECONDS:g}s")
        return seconds

    def validate(self) -> None:
        """Raises ValueError, with the field in front."""
        try:
            _ = self.lead_seconds
        except ValueError as error:
            raise ValueError(f"leadTime: {error}") from error
        names = [each.name for each in self.sources]
        for number, name in enumerate(names):
            if SOURCE.fullmatch(name) is None:
                raise ValueError(f"sources[{number}].name: {name!r} is no name: lower-case letters, digits and hyphens")
            if name in names[:number]:
                raise ValueError(f"sources[{number}].name: {name} is named twice; remove one of them")


def load_source(settings: SourceSettings) -> Source:
    """Create a source. Raises UnknownProvider, msgspec.ValidationError with the path of the invalid option, or
    ValueError with the option in front."""
    class_ = installed_class(GROUP, "source of interruptions", settings.name)
    source: Source = class_(msgspec.convert(dict(settings.options), class_.Options))
    return source


def check_source(settings: SourceSettings) -> None:
    """Raise what `load_source` does, except for errors visible only where the source runs."""
    class_ = installed_class(GROUP, "source of interruptions", settings.name)
    msgspec.convert(dict(settings.options), class_.Options)
