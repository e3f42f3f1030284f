"""Connections of an HTTP server: accepted one at a time, few at once, each with a deadline for what its client must do.

Clients need no credentials to connect, so whatever a connection holds is bounded: its time in every phase (TLS
handshake, header, body, reading the answer, idle), their number, and the bytes of all bodies together. Invariant: a
client that does its part is not disconnected for one that does not. When there are too many, the peer address with most
connections loses its oldest one that waits for its client; when bodies are too many, the largest unfinished one goes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import anyio
import anyio.lowlevel
import msgspec
from aiohttp import hdrs, web
from anyio.abc import TaskGroup

from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

Phase = Literal["handshake", "header", "body", "answering", "writing", "idle"]

BACKLOG: Final = 128
"""Connections that the kernel keeps until they are accepted."""
DROPPED: Final = ("handshake", "header", "body", "writing", "crowded")
"""Why connections are closed from our side: a deadline of that phase, or too many. The end of an idle one is none."""

_FAILED_ACCEPT_SECONDS: Final = 1.0
"""After an accept that failed for lack of file descriptors or memory."""
_SHUTDOWN_SECONDS: Final = 2.0
"""For the client's part of the end of a TLS connection."""
_MOST_HEADERS: Final = 32


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the connections of one listener may take: their number, seconds for each phase, and bytes of bodies.

    `header`: from the connection, or from the first byte after an answer, to the end of the header; `body`: from there
    to its end; `linger`: for the rest of a body that was refused, so that the client comes to read why; `writing`:
    until it has taken the answer; `idle`: between two requests, longer than the 90 s after which clients in Go close
    their end, so that none is closed under a request.
    """

    connections: int = 64
    handshake: float = 5.0
    header: float = 10.0
    body: float = 10.0
    writing: float = 10.0
    idle: float = 120.0
    linger: float = 2.0
    largest_body: int = 64 * 1024
    bodies: int = 64 * 1024 * 1024


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """How many are open, and how many were closed from our side by cause (DROPPED)."""

    open: int
    dropped: Mapping[str, int]


class BodyRefused(Exception):
    """A body that is not read to its end; the text says why. `status`: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Connections:
    """Connections of one listener. `answer` answers every request; `tls`: the context for the next handshake."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: Limits,
        clock: Clock,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.bodies = Bodies(limits, clock)
        self._answer = answer
        self.limits = limits
        self._clock = clock
        self._tls = tls
        self._seconds: dict[Phase, float] = {
            "handshake": limits.handshake + 1.0,  # the event loop itself ends a handshake, this a loop that does not
            "header": limits.header,
            "body": limits.body + 1.0,  # likewise: Bodies answers before
            "answering": float("inf"),
            "writing": limits.writing,
            "idle": limits.idle,
        }
        self._open: dict[_Entry, None] = {}
        self._dropped = Counter(dict.fromkeys(DROPPED, 0))
        self._freed = anyio.Event()
        self._server: web.Server | None = None
        self._told = False

    def statistics(self) -> ConnectionStatistics:
        """What there is, and what has been closed so far."""
        return ConnectionStatistics(len(self._open), dict(self._dropped))

    async def serve(self, sockets: tuple[socket.socket, ...]) -> None:
        """Accept connections of these listening sockets until cancelled."""
        loop = asyncio.get_running_loop()
        self._server = web.Server(self._answered, request_factory=_Request.of(loop))
        async with anyio.create_task_group() as group:
            for each in sockets:
                group.start_soon(self._accept, each, group)
            group.start_soon(self._watch)

    async def close(self, farewell: float) -> None:
        """Close idle connections at once, others when their request is answered, all after `farewell` seconds."""
        for entry in [each for each in self._open if each.phase in ("handshake", "header")]:
            self._end(entry)
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(farewell)

    def enter(self, entry: _Entry, phase: Phase) -> None:
        """The connection is in this phase from now on."""
        entry.phase, entry.since = phase, self._clock.monotonic()
        entry.until = entry.since + self._seconds[phase]

    def forget(self, entry: _Entry) -> None:
        """The connection is no more."""
        if entry in self._open:
            del self._open[entry]
            self._freed.set()
            self._freed = anyio.Event()

    async def _accept(self, listening: socket.socket, group: TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # One in each turn of the event loop: a storm of connections must leave everything else its turn.
            await anyio.lowlevel.checkpoint()
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                logger.warning("connections cannot be accepted: %s; tried again in 1 s", error.strerror)
                await self._clock.sleep(_FAILED_ACCEPT_SECONDS)
                continue
            entry = _Entry(str(address[0]))
            try:
                await self._make_room()
            except BaseException:
                accepted.close()
                raise
            self._open[entry] = None
            self.enter(entry, "handshake" if self._tls else "header")
            group.start_soon(self._begin, accepted, entry)

    async def _begin(self, accepted: socket.socket, entry: _Entry) -> None:
        """Make it a connection of HTTP; with TLS when the handshake is over."""
        loop, server = asyncio.get_running_loop(), self._server
        assert server is not None
        seconds: dict[str, Any] = {}
        if self._tls:
            seconds = {"ssl_handshake_timeout": self.limits.handshake, "ssl_shutdown_timeout": _SHUTDOWN_SECONDS}
        began = False
        with anyio.CancelScope() as entry.handshake:
            try:
                await loop.connect_accepted_socket(
                    lambda: _Connection(self, server, loop, entry),
                    accepted,
                    ssl=self._tls() if self._tls else None,
                    **seconds,
                )
                began = True
            except OSError:  # of TLS too: a client that speaks something else, does not trust us, or took too long
                self._dropped["handshake"] += 1
            finally:
                entry.handshake = None
                if not began:
                    accepted.close()
                    self.forget(entry)

    async def _make_room(self) -> None:
        """Return when there is room for one more connection."""
        while len(self._open) >= self.limits.connections:
            waiting = [each for each in self._open if each.phase != "answering"]
            if not waiting:
                await self._freed.wait()
                continue
            if not self._told:
                self._told = True
                logger.warning(
                    "%d connections are open, and no more are kept: the oldest that wait for their client are closed; "
                    "see networkPolicy in docs/security.md",
                    len(self._open),
                )
            of_peer = Counter(each.peer for each in self._open)
            self._drop(max(waiting, key=lambda each: (of_peer[each.peer], -each.since)), "crowded")

    async def _watch(self) -> None:
        """Close what takes too long."""
        seconds = min(1.0, *(each / 4 for each in self._seconds.values()))
        while True:
            await self._clock.sleep(seconds)
            now = self._clock.monotonic()
            for entry in [each for each in self._open if each.until <= now]:
                self._drop(entry, entry.phase)
            self._told = self._told and len(self._open) >= self.limits.connections

    def _drop(self, entry: _Entry, cause: str) -> None:
        if cause in self._dropped:
            self._dropped[cause] += 1
        self._end(entry)

    def _end(self, entry: _Entry) -> None:
        self.forget(entry)
        if entry.handshake is not None:
            entry.handshake.cancel()
        elif entry.transport is not None:
            entry.transport.abort()

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        assert isinstance(protocol, _Connection)
        protocol.enter("answering")
        return await self._answer(request)


class Bodies:
    """Bodies of requests, bounded one by one and together."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._held = 0
        self._unfinished: dict[anyio.CancelScope, int] = {}

    @asynccontextmanager
    async def read(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The whole body, which counts as held until the context ends. Raises BodyRefused: too large (413), too slow
        (408), or too much at once (503)."""
        connection = request.protocol
        assert isinstance(connection, _Connection)
        connection.enter("body")
        try:
            body = await self._whole(request)
        finally:
            connection.enter("answering")
        try:
            yield body
        finally:
            self._held -= len(body)

    async def _whole(self, request: web.BaseRequest) -> bytes:
        limits = self._limits
        if (request.content_length or 0) > limits.largest_body:
            raise self._too_large()
        chunks: list[bytes] = []
        began = self._clock.monotonic()
        is_whole = False
        try:
            with anyio.move_on_after(limits.body) as scope:
                self._unfinished[scope] = 0
                while scope in self._unfinished and (chunk := await request.content.readany()):
                    chunks.append(chunk)
                    self._take(scope, len(chunk))
                is_whole = scope in self._unfinished
        finally:
            size = self._unfinished.pop(scope, 0)
            if not is_whole:
                self._held -= size
        if is_whole:
            return b"".join(chunks)
        if self._clock.monotonic() - began >= limits.body:
            raise BodyRefused(408, f"its body was not whole after {limits.body:g} s")
        raise BodyRefused(503, f"more than {limits.bodies} bytes are sent at once, and this is the largest body")

    def _take(self, scope: anyio.CancelScope, size: int) -> None:
        self._held += size
        self._unfinished[scope] += size
        if self._unfinished[scope] > self._limits.largest_body:
            raise self._too_large()
        while self._held > self._limits.bodies and self._unfinished:
            largest = max(self._unfinished, key=self._unfinished.__getitem__)
            self._held -= self._unfinished.pop(largest)
            largest.cancel()

    def _too_large(self) -> BodyRefused:
        return BodyRefused(413, f"a body may have {self._limits.largest_body} bytes at most")


class _Entry:
    """What is known of a connection."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.phase: Phase = "handshake"
        self.since = self.until = 0.0
        self.handshake: anyio.CancelScope | None = None
        self.transport: asyncio.Transport | None = None


class _Request(web.BaseRequest):
    """A request whose answer does not say which software of which version has made it."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Callable[..., web.BaseRequest]:
        """Makes requests, as web.Server wants it."""
        return lambda message, payload, protocol, writer, task: cls(message, payload, protocol, writer, task, loop)

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)


class _Connection(web.RequestHandler):
    """aiohttp's connection, which tells the phase that it is in."""

    def __init__(
        self, connections: Connections, server: web.Server, loop: asyncio.AbstractEventLoop, entry: _Entry
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=2 * connections.limits.idle,  # Connections is earlier
            lingering_time=connections.limits.linger,
            max_headers=_MOST_HEADERS,
            auto_decompress=False,
        )
        self._connections = connections
        self._entry = entry

    def enter(self, phase: Phase) -> None:
        """It is in this phase from now on."""
        self._connections.enter(self._entry, phase)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._entry.transport = transport
        self.enter("header")
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.forget(self._entry)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self._entry.phase == "idle":
            self.enter("header")
        super().data_received(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        self.enter("writing")
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.enter("idle")
