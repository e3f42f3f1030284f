"""Requests and responses of the API server, with or without sockets.

JSON values are plain Python values. Objects in responses and watch events are the stored values, shared by all readers:
**never change one in place**. The server copies what it receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import orjson

Json = Any
"""Any JSON value: None, bool, int, float, str, list, dict."""

JsonObject = dict[str, Any]
"""A JSON object. Values read from the server are shared and must not be changed in place."""

JSON_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/json"}
"""Headers of an answer with a JSON value, or with a stream of events."""


class Subject(NamedTuple):
    """The subject of a client certificate: its common name and its organisations."""

    name: str
    organisations: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `path` has no query; `query` holds decoded values; header names are lower-case.

    `body` is a JSON value, or raw bytes that the server will parse itself (and refuse with 400 when it cannot).
    `certificate` is set by a face that has verified the client's certificate.
    """

    method: str
    path: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: Json = None
    certificate: Subject | None = None


class StreamEvent:
    """An event of a watch: `type` and `object`. Its wire form is built once and shared by all readers."""

    __slots__ = ("_line", "object", "type")

    def __init__(self, type_: str, object_: JsonObject) -> None:
        self.type = type_
        self.object = object_
        self._line: bytes | None = None

    @property
    def line(self) -> bytes:
        """The event as one line of JSON, with its newline."""
        if self._line is None:
            self._line = orjson.dumps({"type": self.type, "object": self.object}) + b"\n"
        return self._line

    def __repr__(self) -> str:
        metadata = self.object.get("metadata", {})
        return f"<{self.type} {metadata.get('name')} at {metadata.get('resourceVersion')}>"


class EventStream(Protocol):
    """The events of a watch, until the server ends it: iterate with `async for`; close it when you stop reading."""

    def __aiter__(self) -> EventStream: ...

    async def __anext__(self) -> StreamEvent: ...

    def interrupt(self) -> None:
        """Make a read that waits raise Interrupted; nothing is lost by it."""
        ...

    async def aclose(self) -> None:
        """Stop reading. Harmless when the stream has ended."""
        ...


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON `body` (or text, or bytes), or the `stream` of a watch. `cut`: break the connection after this share of
    the body."""

    status: int
    headers: Mapping[str, str] = {}
    body: Json = None
    stream: EventStream | None = None
    cut: float | None = None


class Handler(Protocol):
    """Answers requests: the API server, and other handlers of the same server (the simulated cloud)."""

    async def __call__(self, request: Request) -> Response:
        """Answer one request; failures of the request are answers, never exceptions."""
        ...


class ConnectionLost(Exception):
    """The connection broke before the answer was complete (an injected fault). Perhaps the request was carried out."""


class Interrupted(Exception):
    """A read of a stream was interrupted while it waited. Read again."""
