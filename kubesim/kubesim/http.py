"""HTTP for an API server: translates requests and responses.

A watch is one JSON object per line. The Date header comes from the server's clock, which may be wrong deliberately. A
ConnectionLost breaks the real connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from email.utils import formatdate

import anyio
import orjson
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from kubesim.apiserver import ApiServer
from kubesim.server.api import ConnectionLost, EventStream, Handler, Request, Response, Subject
from kubesim.server.status import Refusal, bad_request, too_large

NO_BODY = b""
LARGEST_BODY = 3 * 1024 * 1024
"""Bytes; kube-apiserver's own limit."""


class HttpFace:
    """Serves one API server, and other handlers, over HTTP."""

    def __init__(self, server: ApiServer, *, mounts: Mapping[str, Handler] | None = None) -> None:
        """`mounts`: handlers by path prefix; they are mounted in the server itself, so in-process callers see them."""
        self._server = server
        for prefix, handler in (mounts or {}).items():
            server.mount(prefix, handler)
        self._runner: web.ServerRunner | None = None
        self._watches: set[anyio.CancelScope] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None) -> str:
        """Begin to listen; port 0 takes a free one. Returns the base URL. Raises OSError if the port is taken."""
        listener = web.Server(self._serve, request_factory=_request, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(listener, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError:
            await self.stop()
            raise
        bound = self._runner.addresses[0]
        return f"{'https' if tls else 'http'}://{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        """Stop listening and end the open watches."""
        for scope in list(self._watches):
            scope.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        try:
            request = await read(incoming)
        except web.HTTPRequestEntityTooLarge:
            return refusal(too_large(LARGEST_BODY))
        except web.RequestPayloadError:
            return refusal(bad_request("the body cannot be read"))
        try:
            response = await self._server.handle(request)
            if response.stream is not None:
                return await self._stream(incoming, response, response.stream)
        except ConnectionLost:
            return broken(incoming)
        headers = {**response.headers, "Date": self._date()}
        if response.cut is not None:
            return await cut(incoming, response, headers)
        return web.Response(status=response.status, headers=headers, body=encoded(response))

    async def _stream(self, incoming: web.BaseRequest, response: Response, stream: EventStream) -> web.StreamResponse:
        outgoing = web.StreamResponse(headers={**response.headers, "Date": self._date()})
        with anyio.CancelScope() as scope:
            self._watches.add(scope)
            try:
                await outgoing.prepare(incoming)
                async for event in stream:
                    await outgoing.write(event.line)
                await outgoing.write_eof()
            except ConnectionResetError:
                pass  # the client has gone
            finally:
                self._watches.discard(scope)
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
        return outgoing

    def _date(self) -> str:
        return formatdate(self._server.clock.now(), usegmt=True)


async def read(incoming: web.BaseRequest) -> Request:
    """An HTTP request as the server's core takes it, its body still bytes."""
    body = await incoming.read() if incoming.body_exists else NO_BODY
    return Request(
        method=incoming.method,
        path=incoming.path,
        query=dict(incoming.query),
        headers=headers_of(incoming),
        body=body,
        certificate=subject_of(incoming),
    )


def subject_of(incoming: web.BaseRequest) -> Subject | None:
    """The subject of the client's certificate, where the TLS context asks for one; it has been verified."""
    shown = incoming.transport.get_extra_info("peercert") if incoming.transport is not None else None
    if not shown:
        return None
    fields = [field for part in shown["subject"] for field in part]
    names = [value for key, value in fields if key == "commonName"]
    return Subject(names[0] if names else "", tuple(value for key, value in fields if key == "organizationName"))


def headers_of(incoming: web.BaseRequest) -> dict[str, str]:
    """Headers by lower-case name; one that came several times holds its values with commas between (RFC 9110)."""
    headers: dict[str, str] = {}
    for key, value in incoming.headers.items():
        name = key.lower()
        if not value.isascii():
            value = value.encode(errors="surrogateescape").decode(errors="replace")  # what is no UTF-8 never comes out
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def encoded(response: Response) -> bytes:
    """The body of an answer as it goes over the wire."""
    body = response.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return NO_BODY if body is None else orjson.dumps(body)


def refusal(refused: Refusal) -> web.Response:
    """The answer to a request that the server never sees."""
    response = refused.response()
    return web.Response(status=response.status, headers=response.headers, body=encoded(response))


async def cut(incoming: web.BaseRequest, response: Response, headers: Mapping[str, str]) -> web.StreamResponse:
    """Begin to answer, and break the connection on the way."""
    body = encoded(response)
    outgoing = web.StreamResponse(status=response.status, headers=headers)
    outgoing.content_length = len(body)
    try:
        await outgoing.prepare(incoming)
        await outgoing.write(body[: int(len(body) * (response.cut or 0.0))])
    except ConnectionResetError:
        pass  # the client was faster
    broken(incoming)
    return outgoing


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=LARGEST_BODY)


def broken(incoming: web.BaseRequest) -> web.StreamResponse:
    """Break the connection under a client."""
    if incoming.transport is not None:
        incoming.transport.abort()
    return web.Response()
