"""Connections of an HTTP server: accepted one at a time, limited in number, with a deadline for every phase.

Clients need no credentials to connect, so everything that a connection holds is bounded: its time in every phase (TLS
handshake, header, body, reading the response, idle), the number of connections, and the bytes of all bodies together.
Invariant: a client that does its part is not disconnected for one that does not. When there are too many, the peer
address with the most connections loses its oldest one that waits for its client; when bodies take too much, the largest
unfinished one is refused.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, cast

import anyio
import anyio.lowlevel
import msgspec
from aiohttp import hdrs, web
from anyio.abc import TaskGroup

from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

Phase = Literal["handshake", "header", "body", "handling", "writing", "idle"]

BACKLOG: Final = 128
"""Connections that the kernel queues until they are accepted."""
DROPPED: Final = ("handshake", "header", "body", "writing", "crowded")
"""Causes for which the server closes connections: the deadline of a phase, or too many connections. Closing an idle one
is not counted."""

_FAILED_ACCEPT_SECONDS: Final = 1.0
"""Pause after an accept that failed for lack of file descriptors or memory."""
_SHUTDOWN_SECONDS: Final = 2.0
"""For the client's part of closing a TLS connection."""
_MOST_HEADERS: Final = 32


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the connections of one listener: their number, seconds for each phase, and bytes of bodies.

    `header`: from the connection, or from the first byte after a response, to the end of the header; `body`: from there
    to its end; `linger`: for the rest of a body that was refused, so that the client gets to read why; `writing`: until
    it has read the response; `idle`: between two requests, longer than the 90 s after which clients in Go close their
    end, so that no connection is closed under a request.
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
    """Open connections, and those closed by the server, by cause (DROPPED)."""

    open: int
    dropped: Mapping[str, int]


class BodyRefused(Exception):
    """A body that is not read to its end; the text says why. `status`: HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Connections:
    """Connections of one listener. `handle` serves every request; `tls`: the context of the next handshake."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: Limits,
        clock: Clock,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.bodies = BodyReader(limits, clock)
        self._handle = handle
        self.limits = limits
        self._clock = clock
        self._tls = tls
        self._seconds: dict[Phase, float] = {
            "handshake": limits.handshake + 1.0,  # asyncio times handshakes out; this is the fallback
            "header": limits.header,
            "body": limits.body + 1.0,  # fallback: BodyReader times out first
            "handling": float("inf"),
            "writing": limits.writing,
            "idle": limits.idle,
        }
        self._open: dict[_Entry, None] = {}
        self._dropped = Counter(dict.fromkeys(DROPPED, 0))
        self._freed = anyio.Event()
        self._server: web.Server | None = None
        self._has_warned = False

    def statistics(self) -> ConnectionStatistics:
        """Open connections, and those closed so far."""
        return ConnectionStatistics(len(self._open), dict(self._dropped))

    async def serve(self, sockets: tuple[socket.socket, ...]) -> None:
        """Accept connections of these listening sockets until cancelled."""
        loop = asyncio.get_running_loop()
        self._server = web.Server(self._serve_request, request_factory=_Request.of(loop))
        async with anyio.create_task_group() as group:
            for each in sockets:
                group.start_soon(self._accept, each, group)
            group.start_soon(self._enforce_deadlines)

    async def close(self, grace_seconds: float) -> None:
        """Close idle connections immediately, others when their request is served, all after `grace_seconds`."""
        for entry in [each for each in self._open if each.phase in ("handshake", "header")]:
            self._abort(entry)
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(grace_seconds)

    def set_phase(self, entry: _Entry, phase: Phase) -> None:
        """Set the phase of a connection, and its deadline."""
        entry.phase, entry.since = phase, self._clock.monotonic()
        entry.until = entry.since + self._seconds[phase]

    def remove(self, entry: _Entry) -> None:
        """Remove a closed connection."""
        if entry in self._open:
            del self._open[entry]
            self._freed.set()
            self._freed = anyio.Event()

    async def _accept(self, listening: socket.socket, group: TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # One per turn of the event loop, so that a storm of connections leaves all other tasks their turn.
            await anyio.lowlevel.checkpoint()
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                logger.warning("cannot accept connections: %s; retrying in 1 s", error.strerror)
                await self._clock.sleep(_FAILED_ACCEPT_SECONDS)
                continue
            entry = _Entry(str(address[0]))
            try:
                await self._make_room()
            except BaseException:
                accepted.close()
                raise
            self._open[entry] = None
            self.set_phase(entry, "handshake" if self._tls else "header")
            group.start_soon(self._start, accepted, entry)

    async def _start(self, accepted: socket.socket, entry: _Entry) -> None:
        """Start HTTP on a socket; with TLS, after the handshake."""
        loop, server = asyncio.get_running_loop(), self._server
        assert server is not None
        seconds: dict[str, Any] = {}
        if self._tls:
            seconds = {"ssl_handshake_timeout": self.limits.handshake, "ssl_shutdown_timeout": _SHUTDOWN_SECONDS}
        started = False
        with anyio.CancelScope() as entry.handshake:
            try:
                await loop.connect_accepted_socket(
                    lambda: _Connection(self, server, loop, entry),
                    accepted,
                    ssl=self._tls() if self._tls else None,
                    **seconds,
                )
                started = True
            except OSError:  # TLS errors too: another protocol, no trust, or too slow
                self._dropped["handshake"] += 1
            finally:
                entry.handshake = None
                if not started:
                    accepted.close()
                    self.remove(entry)

    async def _make_room(self) -> None:
        """Wait for room for one more connection."""
        while len(self._open) >= self.limits.connections:
            waiting = [each for each in self._open if each.phase != "handling"]
            if not waiting:
                await self._freed.wait()
                continue
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "connections: limit of %d reached: closing the oldest that wait for their client; "
                    "see networkPolicy in docs/security.md",
                    len(self._open),
                )
            of_peer = Counter(each.peer for each in self._open)
            self._drop(max(waiting, key=lambda each: (of_peer[each.peer], -each.since)), "crowded")

    async def _enforce_deadlines(self) -> None:
        """Close connections that have exceeded the deadline of their phase."""
        seconds = min(1.0, *(each / 4 for each in self._seconds.values()))
        while True:
            await self._clock.sleep(seconds)
            now = self._clock.monotonic()
            for entry in [each for each in self._open if each.until <= now]:
                self._drop(entry, entry.phase)
            self._has_warned = self._has_warned and len(self._open) >= self.limits.connections

    def _drop(self, entry: _Entry, cause: str) -> None:
        if cause in self._dropped:
            self._dropped[cause] += 1
        self._abort(entry)

    def _abort(self, entry: _Entry) -> None:
        self.remove(entry)
        if entry.handshake is not None:
            entry.handshake.cancel()
        elif entry.transport is not None:
            entry.transport.abort()

    async def _serve_request(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        assert isinstance(protocol, _Connection)
        protocol.set_phase("handling")
        return await self._handle(request)


async def write_in_parts(request: web.BaseRequest, response: web.Response, part: int) -> web.StreamResponse:
    """Write a response in parts, so that only one part of its body waits in memory for a slow client.

    The deadline of reading the response is its phase's.
    """
    connection, body = request.protocol, response.body
    if request.method == "HEAD" or not isinstance(body, bytes) or not body:
        return response
    assert isinstance(connection, _Connection)
    connection.set_phase("writing")
    written = web.StreamResponse(status=response.status, headers=response.headers)
    written.content_length = len(body)
    try:
        await written.prepare(request)
        for start in range(0, len(body), part):
            await written.write(body[start : start + part])
        await written.write_eof()
    except ConnectionError:  # the client is gone
        connection.force_close()
    return written


class BodyReader:
    """Reads bodies of requests, bounded one by one and together."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._held = 0
        self._unfinished: dict[anyio.CancelScope, int] = {}

    @asynccontextmanager
    async def read(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The whole body, which counts towards the limit until the context ends. Raises BodyRefused: too large (413),
        too slow (408), or too much for all bodies together (503)."""
        connection = request.protocol
        assert isinstance(connection, _Connection)
        connection.set_phase("body")
        try:
            body = await self._read(request)
        finally:
            connection.set_phase("handling")
        try:
            yield body
        finally:
            self._held -= len(body)

    async def _read(self, request: web.BaseRequest) -> bytes:
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
                    self._count(scope, len(chunk))
                is_whole = scope in self._unfinished
        finally:
            size = self._unfinished.pop(scope, 0)
            if not is_whole:
                self._held -= size
        if is_whole:
            return b"".join(chunks)
        if self._clock.monotonic() - began >= limits.body:
            raise BodyRefused(408, f"body incomplete after {limits.body:g} s")
        raise BodyRefused(503, f"more than {limits.bodies} bytes of unfinished bodies; this was the largest one")

    def _count(self, scope: anyio.CancelScope, size: int) -> None:
        self._held += size
        self._unfinished[scope] += size
        if self._unfinished[scope] > self._limits.largest_body:
            raise self._too_large()
        while self._held > self._limits.bodies and self._unfinished:
            largest = max(self._unfinished, key=self._unfinished.__getitem__)
            self._held -= self._unfinished.pop(largest)
            largest.cancel()

    def _too_large(self) -> BodyRefused:
        return BodyRefused(413, f"body exceeds {self._limits.largest_body} bytes")


class _Entry:
    """State of a connection."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.phase: Phase = "handshake"
        self.since = self.until = 0.0
        self.handshake: anyio.CancelScope | None = None
        self.transport: asyncio.Transport | None = None


class _Request(web.BaseRequest):
    """Request with a response that does not name the server software."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Callable[..., web.BaseRequest]:
        """Request factory for web.Server."""
        return lambda message, payload, protocol, writer, task: cls(message, payload, protocol, writer, task, loop)

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)


class _Connection(web.RequestHandler):
    """aiohttp's connection, which reports its phase."""

    def __init__(
        self, connections: Connections, server: web.Server, loop: asyncio.AbstractEventLoop, entry: _Entry
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=2 * connections.limits.idle,  # Connections closes earlier
            lingering_time=connections.limits.linger,
            max_headers=_MOST_HEADERS,
            auto_decompress=False,
        )
        self._connections = connections
        self._entry = entry

    def set_phase(self, phase: Phase) -> None:
        """Set the phase."""
        self._connections.set_phase(self._entry, phase)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # By what it can do and not by its class: uvloop's is none of asyncio's.
        self._entry.transport = cast("asyncio.Transport", transport)
        self.set_phase("header")
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.remove(self._entry)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self._entry.phase == "idle":
            self.set_phase("header")
        super().data_received(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        self.set_phase("writing")
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.set_phase("idle")
