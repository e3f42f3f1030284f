"""Transports: a request is a value, and a transport is anything that can send one.

Building a request (`requests.py`) knows Kubernetes and no sockets; sending one (`http.py`, or an in-process
API server) knows sockets and no Kubernetes. A new way to reach a server is one small class with two methods.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

LARGEST_ANSWER: Final = 64 * 1024 * 1024
"""Bytes: far more than one object can have, or anything that we ask for and is no list."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request; `path` begins with a slash, `query` is not escaped yet, `timeout` is in seconds.

    `timeout` bounds a whole `send`, and the time to the first header of a `stream`. The client enforces it; a
    transport need not. Requests of one `pool` never wait for a connection that those of another have. An answer of more
    than `largest` bytes is not read to its end: a transport raises `errors.TooLarge` instead. `impersonate`: the user
    to impersonate; "" is the user of the credentials.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    body: bytes | None = None
    timeout: float = 30.0
    pool: str = ""
    largest: int = LARGEST_ANSWER
    impersonate: str = ""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer; headers are found by their lower-case names."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Stream(Protocol):
    """Response with a streamed body."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, found by their lower-case names."""

    def lines(self) -> AsyncGenerator[bytes, None]:
        """The body line by line; ends when the server ends it. A line that is too long is a `watch.OversizeLine`.

        Raises `errors.Unreachable` when the connection breaks.
        """

    async def read(self) -> bytes:
        """The whole body: the explanation of a stream that was refused."""


class Transport(Protocol):
    """Sends requests. An answer of any status is an answer, not an error."""

    async def send(self, request: Request) -> Response:
        """The answer to `request`. Raises `errors.Unreachable` when there is none."""

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """The answer to `request` while it arrives. Raises `errors.Unreachable` on entering when there is none."""
