"""An API server that follows a script: what it answers, when, and how its streams end."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import anyio
import msgspec

from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import operation_of
from gracectl.runtime.clock import Clock

# What a step of a script may be: an answer, a failure, seconds to let pass first, or a function of the request.
Step = Response | Exception | float | Callable[[Request], Response]
# What a stream may bring: a line, a failure, or seconds of silence. When it runs out the server ends the stream.
Item = bytes | Exception | float
FOREVER = float("inf")


def answer(body: Any = None, status: int = 200, **headers: str) -> Response:
    """An answer with a JSON body (`retry_after="1"` becomes the header Retry-After)."""
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body if body is not None else {})
    return Response(status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=encoded)


def refusal(status: int, reason: str = "", message: str = "because", **details: Any) -> Response:
    """An answer with a Status; `details` as the API spells them."""
    return answer(
        {
            "kind": "Status",
            "status": "Failure",
            "code": status,
            "reason": reason,
            "message": message,
            "details": details,
        },
        status,
    )


def lease(name: str, version: int, *, uid: str = "", holder: str = "") -> dict[str, Any]:
    """A small object to list and watch: a Lease of namespace `n`."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": "n", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
        "spec": {"holderIdentity": holder},
    }


def page(version: int, *items: Mapping[str, Any], token: str = "") -> Response:
    """One page of a list."""
    return answer({"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(items)})


def event(type_: str, thing: Mapping[str, Any]) -> bytes:
    """One line of a watch."""
    return msgspec.json.encode({"type": type_, "object": thing}) + b"\n"


def bookmark(version: int) -> bytes:
    """A bookmark as a real server writes it (recording `watch-versions`)."""
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return event("BOOKMARK", {"kind": "Lease", "metadata": meta, "spec": {}})


def expired() -> bytes:
    """The ERROR event of lost history."""
    return event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


class ScriptedStream:
    """A stream that brings `items`."""

    def __init__(self, clock: Clock, items: list[Item], status: int = 200, body: bytes = b"") -> None:
        self._clock = clock
        self._items = items
        self._body = body
        self.status = status
        self.headers: Mapping[str, str] = {}

    async def lines(self) -> AsyncGenerator[bytes, None]:
        for item in self._items:
            if isinstance(item, bytes):
                yield item
            elif isinstance(item, Exception):
                raise item
            elif item == FOREVER:
                await anyio.sleep_forever()
            else:
                await self._clock.sleep(item)

    async def read(self) -> bytes:
        return self._body


class ScriptedTransport:
    """Plays `answers` one after the other, and `streams` likewise; remembers what was asked, and when.

    Once the streams are used up, further ones stay open and silent.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.answers: deque[Step] = deque()
        self.streams: deque[list[Item] | Response | Exception] = deque()
        self.asked: list[tuple[float, Request]] = []

    async def send(self, request: Request) -> Response:
        self.asked.append((self.clock.monotonic(), request))
        while True:
            step = self.answers.popleft()
            if isinstance(step, float):
                await self.clock.sleep(step)
            elif isinstance(step, Exception):
                raise step
            else:
                return step if isinstance(step, Response) else step(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        self.asked.append((self.clock.monotonic(), request))
        script: list[Item] | Response | Exception = self.streams.popleft() if self.streams else [FOREVER]
        if isinstance(script, Exception):
            raise script
        if isinstance(script, Response):
            yield ScriptedStream(self.clock, [], script.status, script.body)
        else:
            yield ScriptedStream(self.clock, script)

    @property
    def instants(self) -> list[float]:
        """When the requests came."""
        return [instant for instant, _ in self.asked]

    @property
    def story(self) -> list[str]:
        """What the requests were: `list leases`, `watch leases @7`."""
        return [_summary(request) for _, request in self.asked]

    def body(self, index: int = -1) -> Any:
        """The decoded body of one request."""
        return msgspec.json.decode(self.asked[index][1].body or b"null")


def _summary(request: Request) -> str:
    operation = operation_of(request)
    query = dict(request.query)
    place = f" {quote(operation.name)}" if operation.name else ""
    version = f" @{query['resourceVersion']}" if "resourceVersion" in query else ""
    token = f" {query['continue']}" if "continue" in query else ""
    return f"{operation.verb} {operation.resource}{place}{version}{token}"
