"""A request on its way through the server: its user, its target, its warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from kubesim.server.api import JsonObject, Request
from kubesim.server.routing import Route


class User(msgspec.Struct, frozen=True):
    """The user of a request, as authentication found it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


ADMINISTRATOR = User("system:admin", groups=("system:masters", "system:authenticated"))
"""The user of every request where no tokens are asked for."""


class Signature(NamedTuple):
    """The author of a change: its field manager ("" if the request named none), on which path, when (RFC 3339)."""

    manager: str
    route: Route
    now: str


class Call:
    """A request to a resource. `warnings` collects what the answer's Warning headers will say; `past` is the version
    that a read sees which lags behind (0: the newest)."""

    __slots__ = ("past", "request", "route", "user", "warnings")

    def __init__(self, request: Request, route: Route, user: User = ADMINISTRATOR, *, past: int = 0) -> None:
        self.request = request
        self.route = route
        self.user = user
        self.past = past
        self.warnings: list[str] = []

    @property
    def query(self) -> Mapping[str, str]:
        """The decoded query."""
        return self.request.query

    @property
    def field_manager(self) -> str:
        """The field manager of what this call writes: `fieldManager`, else the user agent up to its first slash."""
        request = self.request
        return request.query.get("fieldManager") or request.headers.get("user-agent", "").partition("/")[0]

    def signed(self, now: str) -> Signature:
        """The author of the change that this call makes."""
        return Signature(self.field_manager, self.route, now)

    @property
    def warning(self) -> str:
        """The value of the answer's Warning header (RFC 7234): one `299 - "…"` for each warning."""
        return ", ".join(
            '299 - "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in dict.fromkeys(self.warnings)
        )


Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class Write(NamedTuple):
    """A write that is about to happen, as admission webhooks get it. `options`: as the client gave them."""

    call: Call
    operation: Operation
    dry_run: bool
    options: JsonObject
