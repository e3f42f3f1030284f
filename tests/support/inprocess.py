"""A Transport straight into an embedded API server: no sockets, and every way in which a connection can fail.

The faults are those of kubesim, but they strike between the controller and the server only: the world around the
server stays well. `before` strikes until the server has looked at a request, `behind` when it has carried it out (so a
Refuse there is a 500 after the deed, a Latency an answer that is late, a Reset one that is lost).
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import NamedTuple

import anyio
import msgspec
import orjson
from kubesim.apiserver import ApiServer
from kubesim.faults import Faults
from kubesim.server import api

from gracectl.kube.errors import Unreachable
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import Operation, operation_of
from gracectl.runtime.clock import Clock

ASKING: ContextVar[Request | None] = ContextVar("ASKING", default=None)
"""The request of a controller that the server carries out at this moment, in the task that does."""

SENDER: ContextVar[str] = ContextVar("SENDER", default="")
"""The process whose connection that request came by."""


class Executed(NamedTuple):
    """A request that the server has carried out, or a watch that it has begun, whatever the client heard of it.
    `instant` is monotonic."""

    instant: float
    request: Request
    operation: Operation
    status: int
    sender: str = ""
    """The process whose connection it came by."""


class Arrived(NamedTuple):
    """A request at which the server is at work, since an instant (monotonic)."""

    instant: float
    operation: Operation
    sender: str


class Stutter(NamedTuple):
    """Before a line of a watch is shown, with this probability, up to so many seconds pass: the watches get out of
    step with each other and with the answers."""

    probability: float = 0.0
    most: float = 0.0


class InProcessTransport:
    """Give each controller its own line (`line`): cutting one is what a kill -9 looks like from the server."""

    def __init__(self, server: ApiServer, clock: Clock, *, seed: int = 0, token: str = "") -> None:
        self._server = server
        self.clock = clock
        self._credentials = {"authorization": f"Bearer {token}"} if token else {}
        rng = random.Random(f"transport/{seed}")
        self.before = Faults(clock, random.Random(rng.random()))
        self.behind = Faults(clock, random.Random(rng.random()))
        self.stutter = Stutter()
        self.executed: list[Executed] = []
        self.in_work: dict[object, Arrived] = {}
        self.listeners: list[Callable[[Arrived, Request], None]] = []
        """Called with each request in the moment in which the server begins with it."""
        self.rng = random.Random(rng.random())
        self.is_listening = True
        self._lines = 0

    def line(self) -> Line:
        """A way to the server that can be cut."""
        self._lines += 1
        return Line(self, f"process-{self._lines}")

    async def send(self, request: Request) -> Response:
        """See Transport."""
        plain = self._translated(request)
        try:
            answer = await self._met(plain) or await self._carried_out(request, plain)
        except api.ConnectionLost as error:
            raise Unreachable(operation_of(request), "the connection was reset", sent=True) from error
        if answer.cut is not None:
            raise Unreachable(operation_of(request), "the answer broke off", sent=True)
        return Response(status=answer.status, headers=answer.headers, body=_encoded(answer))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """See Transport."""
        plain = self._translated(request)
        rules = self.before.striking(plain)
        try:
            answer = await self.before.before(rules, plain)
            if answer is None:
                self._announce(request)
                answer = self.before.after(rules, plain, await self._server.handle(plain))
                self._note(request, answer)
        except api.ConnectionLost as error:
            raise Unreachable(operation_of(request), "the connection was reset", sent=True) from error
        try:
            yield _Lines(self, request, answer)
        finally:
            if answer.stream is not None:
                with anyio.CancelScope(shield=True):
                    await answer.stream.aclose()

    def of(self, verb: str, resource: str) -> list[Executed]:
        """What was carried out: `of("create", "pods/eviction")`."""
        return [each for each in self.executed if (each.operation.verb, each.operation.resource) == (verb, resource)]

    async def _met(self, plain: api.Request) -> api.Response | None:
        return await self.before.before(self.before.striking(plain), plain)

    async def _carried_out(self, request: Request, plain: api.Request) -> api.Response:
        asking, key = ASKING.set(request), object()
        self.in_work[key] = self._announce(request)
        try:
            answer = await self._server.handle(plain)
        finally:
            del self.in_work[key]
            ASKING.reset(asking)
        self._note(request, answer)
        rules = self.behind.striking(plain)
        return await self.behind.before(rules, plain) or self.behind.after(rules, plain, answer)

    def _announce(self, request: Request) -> Arrived:
        arrived = Arrived(self.clock.monotonic(), operation_of(request), SENDER.get())
        for listener in self.listeners:
            listener(arrived, request)
        return arrived

    def _note(self, request: Request, answer: api.Response) -> None:
        done = Executed(self.clock.monotonic(), request, operation_of(request), answer.status, SENDER.get())
        self.executed.append(done)

    def _translated(self, request: Request) -> api.Request:
        if not self.is_listening:
            raise Unreachable(operation_of(request), "connection refused", sent=False)
        headers = {"accept": "application/json", "content-type": request.content_type, **self._credentials}
        if request.impersonate:
            headers["impersonate-user"] = request.impersonate
        return api.Request(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            headers=headers,
            body=request.body,
        )


class Line:
    """One controller's way to the server; after `cut` nothing goes through any more, in neither direction."""

    def __init__(self, transport: InProcessTransport, name: str) -> None:
        self.name = name
        self._transport = transport
        self._cut = anyio.Event()

    def cut(self) -> None:
        """The process at this end is dead: what it has sent may still be carried out, but it hears no answer."""
        self._cut.set()

    async def send(self, request: Request) -> Response:
        """See Transport."""
        answers: list[Response] = []
        failures: list[Exception] = []
        if self._cut.is_set():
            raise Unreachable(operation_of(request), "cut", sent=False)

        async def ask() -> None:
            SENDER.set(self.name)
            try:
                answers.append(await self._transport.send(request))
            except Unreachable as error:
                failures.append(error)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await self._cut.wait()
            group.cancel_scope.cancel()
        if answers:
            return answers[0]
        raise failures[0] if failures else Unreachable(operation_of(request), "cut", sent=True)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """See Transport. A cut ends no stream: nothing reads it any more."""
        if self._cut.is_set():
            raise Unreachable(operation_of(request), "cut", sent=False)
        SENDER.set(self.name)  # of the task that reads the stream: it has no other sender
        async with self._transport.stream(request) as stream:
            yield stream


class _Lines:
    """An answer as a stream."""

    def __init__(self, transport: InProcessTransport, request: Request, answer: api.Response) -> None:
        self._transport = transport
        self._request = request
        self._answer = answer
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """See Stream."""
        if self._answer.stream is None:
            return
        try:
            async for event in self._answer.stream:
                stutter, rng = self._transport.stutter, self._transport.rng
                if stutter.probability and rng.random() < stutter.probability:
                    await self._transport.clock.sleep(rng.uniform(0.0, stutter.most))
                yield event.line
        except api.ConnectionLost as error:
            raise Unreachable(operation_of(self._request), "the stream broke", sent=True) from error

    async def read(self) -> bytes:
        """See Stream."""
        return _encoded(self._answer)


def uid_of(request: Request) -> str:
    """The uid that an eviction or deletion carries as its precondition."""
    body = msgspec.json.decode(request.body or b"{}")
    options = body.get("deleteOptions", body)
    uid: str = options.get("preconditions", {}).get("uid", "")
    return uid


def _encoded(answer: api.Response) -> bytes:
    body = answer.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return b"" if body is None else orjson.dumps(body)
