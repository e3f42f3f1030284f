"""Connection to a cluster for commands: credentials as in kubectl, HTTP, and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio
import msgspec

from gracectl.kube.auth import lookup
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.client import INTERACTIVE, KubeClient
from gracectl.kube.http import HttpTransport
from gracectl.kube.transport import Request, Response, Stream, Transport
from gracectl.kube.transport.operation import operation_of
from gracectl.kube.transport.skew import LARGEST_OFFSET, SkewEstimate
from gracectl.runtime.clock import Clock, SystemClock

T = TypeVar("T")

NOTICE_SECONDS = 3.0
"""Time without an answer after which a command says what it waits for."""


class Connection(msgspec.Struct, frozen=True):
    """Connection to a cluster. Responses of its server set `clock`; `client` has the timeouts of a command."""

    transport: Transport
    clock: Clock
    client: KubeClient
    cluster: ClusterAddress = ClusterAddress()
    skew: SkewEstimate | None = None


@asynccontextmanager
async def connected(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    largest_offset: float = LARGEST_OFFSET,
    notice: Callable[[str], None] | None = None,
) -> AsyncIterator[Connection]:
    """A connection while the block runs; no request is sent yet. Raises CredentialsError.

    `largest_offset`: seconds by which the server's clock may differ from this machine's and still be believed.
    `notice`: called once with the pending request, if it takes more than NOTICE_SECONDS.
    """
    clock = SystemClock()
    skew = SkewEstimate(clock.adjust, largest_offset)
    waiting = _Waiting(notice)
    token = waiting.begin(lambda: "waiting for credentials, as the kubeconfig says")
    try:
        identity = await lookup.load(kubeconfig, context, clock=clock)
    finally:
        waiting.end(token)
    async with closed_despite_cancellation(HttpTransport(identity, clock, skew=skew)) as http:
        transport = _NoticingTransport(http, waiting, identity.cluster.server)
        yield Connection(transport, clock, KubeClient(transport, clock, settings=INTERACTIVE), identity.cluster, skew)


class _Waiting:
    """Reports a slow request once. One timer for all requests: a controller sends thousands a second."""

    def __init__(self, notice: Callable[[str], None] | None) -> None:
        self._notice = notice
        self._messages: dict[object, tuple[float, Callable[[], str]]] = {}  # since when; the oldest first
        self._is_timed = False

    def begin(self, message: Callable[[], str]) -> object:
        """Something is waited for from now on; the result ends that."""
        token = object()
        if self._notice is not None:
            loop = asyncio.get_running_loop()
            self._messages[token] = loop.time(), message
            if not self._is_timed:
                self._is_timed = True
                loop.call_later(NOTICE_SECONDS, self._look, loop)
        return token

    def end(self, token: object) -> None:
        """Record the end of the use."""
        self._messages.pop(token, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_timed = False
        since, message = next(iter(self._messages.values()), (0.0, None))
        if message is None or self._notice is None:
            return
        left = since + NOTICE_SECONDS - loop.time()
        if left > 0:
            self._is_timed = True
            loop.call_later(left, self._look, loop)
        else:
            notice, self._notice = self._notice, None
            self._messages.clear()
            notice(message())


class _NoticingTransport:
    """A transport that says so while the server is silent. A watch may be."""

    def __init__(self, transport: Transport, waiting: _Waiting, url: str) -> None:
        self._transport = transport
        self._waiting = waiting
        self._url = url

    async def send(self, request: Request) -> Response:
        """See Transport."""
        token = self._waiting.begin(lambda: self._message(request))
        try:
            return await self._transport.send(request)
        finally:
            self._waiting.end(token)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """See Transport."""
        return self._transport.stream(request)

    def _message(self, request: Request) -> str:
        return f"waiting for {self._url}: no answer yet to {operation_of(request)}"


@asynccontextmanager
async def closed_despite_cancellation(resource: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Like `async with resource`, but a cancellation does not interrupt its closing: no connection is left behind."""
    opened = await resource.__aenter__()
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            await resource.__aexit__(None, None, None)
