"""The HTTP servers of metrics, probes and admission: a few paths on an address, each answered by one function."""

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
from gracectl.telemetry.connections import BACKLOG, Bodies, Connections, ConnectionStatistics, Limits
from gracectl.telemetry.settings import Address, parse_address

logger = logging.getLogger(__name__)

Answer = Callable[[web.BaseRequest, Bodies], Awaitable[web.Response]]
"""Answers a request; bodies are read by the second argument only."""

FAREWELL_SECONDS: Final = 0.5
"""What is being answered when a server is closed has so long to come to its end."""


class Door(msgspec.Struct, frozen=True):
    """What is answered where. `field`: the setting that says so, for people; `listen`: see parse_address; "": nowhere.

    `answers`: by path, what answers a request of that `method`; must be quick, as nothing else happens meanwhile.
    `tls`: HTTPS, with the context that this returns for each handshake.
    """

    field: str
    listen: str
    answers: Mapping[str, Answer]
    method: Literal["GET", "POST"] = "GET"
    tls: Callable[[], ssl.SSLContext] | None = None
    limits: Limits = Limits()


class CannotListen(Exception):
    """Nothing can be served at an address; the message names the setting and the reason."""


class Servers:
    """One server for each address; doors at the same address share one, and what the first of them says of TLS and
    limits. `farewell`: seconds for what is being answered when they are closed."""

    def __init__(self, doors: Iterable[Door], clock: Clock, *, farewell: float = FAREWELL_SECONDS) -> None:
        self._farewell = farewell
        self._doors: dict[Address, list[Door]] = {}
        for door in doors:
            if door.listen:
                self._doors.setdefault(parse_address(door.listen), []).append(door)
        self._listeners = [_Listener(address, tuple(each), clock) for address, each in self._doors.items()]

    @property
    def are_wanted(self) -> bool:
        """Whether anything is to be served at all."""
        return bool(self._doors)

    def statistics(self) -> Mapping[str, ConnectionStatistics]:
        """Of the connections, by the setting that names the address."""
        return {each.doors[0].field: each.connections.statistics() for each in self._listeners}

    async def open(self) -> Mapping[str, str]:
        """Listen; `run` answers. Returns the URL of each path. Raises CannotListen, and nothing is open."""
        urls: dict[str, str] = {}
        for listener in self._listeners:
            door = listener.doors[0]
            try:
                url = await listener.open()
            except (OSError, UnicodeError) as error:
                await self.close()
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
                raise CannotListen(f"{door.field}: cannot listen on {door.listen}: {reason}") from error
            urls |= {path: url + path for each in listener.doors for path in each.answers}
        for path, url in urls.items():
            logger.info("%s is served at %s", path, url)
        return urls

    async def run(self, leaving: Callable[[], Awaitable[None]] | None = None) -> None:
        """A part: once open, answer until cancelled; then do what `leaving` says, still answering, and close."""
        async with anyio.create_task_group() as group:
            for listener in self._listeners:
                group.start_soon(listener.serve)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    if leaving:
                        await leaving()
                    await self.close()

    async def close(self) -> None:
        """Listen no more."""
        for listener in self._listeners:
            await listener.close(self._farewell)


class _Listener:
    """An address, and all that is answered there."""

    def __init__(self, address: Address, doors: tuple[Door, ...], clock: Clock) -> None:
        self.doors = doors
        self.connections = Connections(self._answer, doors[0].limits, clock, doors[0].tls)
        self._address = address
        self._answers = {path: (door.method, answer) for door in doors for path, answer in door.answers.items()}
        self._sockets: tuple[socket.socket, ...] = ()
        self._serving = anyio.CancelScope(shield=True)

    async def open(self) -> str:
        """Listen; returns the URL of the root."""
        host, port = self._address
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
        self._sockets = tuple(each.extra(SocketAttribute.raw_socket) for each in listener.listeners)
        bound = self._sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"{'https' if self.doors[0].tls else 'http'}://{shown}:{bound[1]}"

    async def serve(self) -> None:
        """Answer until closed, whatever is cancelled around it."""
        with self._serving:
            await self.connections.serve(self._sockets)

    async def close(self, farewell: float) -> None:
        """Listen no more; see Connections.close."""
        self._serving.cancel()
        for each in self._sockets:
            each.close()
        self._sockets = ()
        await self.connections.close(farewell)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        method, answer = self._answers.get(request.path, ("", None))
        if answer is None:
            return web.Response(status=404, text="404: Not Found\n")
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            return web.Response(status=405, text="405: Method Not Allowed\n", headers={"Allow": method})
        return await answer(request, self.connections.bodies)
