"""HTTP servers of metrics, probes and admission."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Literal

import anyio
import msgspec
from aiohttp import web
from anyio.abc import SocketAttribute

from gracectl.runtime.clock import Clock
from gracectl.telemetry.connections import BACKLOG, BodyReader, Connections, ConnectionStatistics, Limits
from gracectl.telemetry.settings import Address, parse_address

logger = logging.getLogger(__name__)

HttpHandler = Callable[[web.BaseRequest, BodyReader], Awaitable[web.Response]]
"""Serves a request; bodies are read by the second argument only."""
StreamHandler = Callable[[web.BaseRequest, BodyReader], Awaitable[web.StreamResponse]]
"""Handler that may write its response itself, part by part."""

SHUTDOWN_SECONDS: Final = 0.5
"""Time for requests in progress when a server is closed."""


class Endpoint(msgspec.Struct, frozen=True):
    """Handlers of an address. `field`: its setting, for messages; `listen`: see parse_address; "": not served.

    `handlers`: by path, for requests of that `method`; must be quick, as they block the event loop. `find`: finds the
    handler of another path. `tls`: HTTPS, with the context that this returns for each handshake. `headers`: of
    responses to requests that no handler serves.
    """

    field: str
    listen: str
    handlers: Mapping[str, StreamHandler]
    method: Literal["GET", "POST"] = "GET"
    tls: Callable[[], ssl.SSLContext] | None = None
    limits: Limits = Limits()
    headers: Mapping[str, str] = {}
    find: Callable[[str], StreamHandler | None] = lambda path: None


class CannotListen(Exception):
    """An address cannot be listened on; the message names the setting and the reason."""


class Servers:
    """One server per address; endpoints at the same address share one, with TLS and limits of the first.
    `grace_seconds`: time for requests in progress when they are closed."""

    def __init__(self, endpoints: Iterable[Endpoint], clock: Clock, *, grace_seconds: float = SHUTDOWN_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self._endpoints: dict[Address, list[Endpoint]] = {}
        for endpoint in endpoints:
            if endpoint.listen:
                self._endpoints.setdefault(parse_address(endpoint.listen), []).append(endpoint)
        self._listeners = [_Listener(address, tuple(each), clock) for address, each in self._endpoints.items()]

    @property
    def is_enabled(self) -> bool:
        """Whether there is any address."""
        return bool(self._endpoints)

    def statistics(self) -> Mapping[str, ConnectionStatistics]:
        """Statistics of connections, by the setting with the address."""
        return {each.endpoints[0].field: each.connections.statistics() for each in self._listeners}

    async def open(self) -> Mapping[str, str]:
        """Listen; `run` serves. Returns the URL of each path. Raises CannotListen, and nothing is open."""
        urls: dict[str, str] = {}
        for listener in self._listeners:
            endpoint = listener.endpoints[0]
            try:
                url = await listener.open()
            except (OSError, UnicodeError) as error:
                await self.close()
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
                raise CannotListen(f"{endpoint.field}: cannot listen on {endpoint.listen}: {reason}") from error
            urls |= {path: url + path for each in listener.endpoints for path in each.handlers}
        for path, url in urls.items():
            logger.info("%s: serving at %s", path, url)
        return urls

    async def run(self, before_close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Component: once open, serve until cancelled; then run `before_close`, still serving, and close."""
        async with anyio.create_task_group() as group:
            for listener in self._listeners:
                group.start_soon(listener.serve)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    if before_close:
                        await before_close()
                    await self.close()

    async def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            await listener.close(self._grace_seconds)


class _Listener:
    """An address with its endpoints."""

    def __init__(self, address: Address, endpoints: tuple[Endpoint, ...], clock: Clock) -> None:
        self.endpoints = endpoints
        self.connections = Connections(self._handle, endpoints[0].limits, clock, endpoints[0].tls)
        self._address = address
        self._handlers = {path: (each.method, handler) for each in endpoints for path, handler in each.handlers.items()}
        self._sockets: tuple[socket.socket, ...] = ()
        self._serving = anyio.CancelScope(shield=True)

    async def open(self) -> str:
        """Listen; returns the URL of the root."""
        host, port = self._address
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
        self._sockets = tuple(each.extra(SocketAttribute.raw_socket) for each in listener.listeners)
        bound = self._sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"{'https' if self.endpoints[0].tls else 'http'}://{shown}:{bound[1]}"

    async def serve(self) -> None:
        """Serve until closed, regardless of cancellations around it."""
        with self._serving:
            await self.connections.serve(self._sockets)

    async def close(self, grace_seconds: float) -> None:
        """Stop listening; see Connections.close."""
        self._serving.cancel()
        for each in self._sockets:
            each.close()
        self._sockets = ()
        await self.connections.close(grace_seconds)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        method, handler = self._handlers.get(request.path) or self._found(request.path)
        headers = self.endpoints[0].headers
        if handler is None:
            return web.Response(status=404, text="404: Not Found\n", headers=headers)
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            return web.Response(status=405, text="405: Method Not Allowed\n", headers={"Allow": method, **headers})
        return await handler(request, self.connections.bodies)

    def _found(self, path: str) -> tuple[str, StreamHandler | None]:
        for endpoint in self.endpoints:
            if (handler := endpoint.find(path)) is not None:
                return endpoint.method, handler
        return "", None
