"""A client that costs next to nothing, so that the server is what is measured: HTTP/1.1 over one kept connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import orjson
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

HEAD_END = b"\r\n\r\n"


class Connection:
    """One connection: one request at a time."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._incoming = BufferedByteReceiveStream(stream)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Send a request; the status and the body of its answer."""
        await self._send(method, path, body)
        status, head = await self._head()
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return status, await self._incoming.receive_exactly(int(length[15:]))

    async def watch(self, path: str) -> AsyncIterator[bytes]:
        """The chunks of a watch (the framing of the chunks is in them)."""
        await self._send("GET", path)
        await self._head()
        while True:
            yield await self._incoming.receive()

    async def _send(self, method: str, path: str, body: Any = None) -> None:
        data = b"" if body is None else orjson.dumps(body)
        kind = "application/json-patch+json" if method == "PATCH" else "application/json"
        head = f"{method} {path} HTTP/1.1\r\nHost: sim\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}"
        await self._stream.send(head.encode() + HEAD_END + data)

    async def _head(self) -> tuple[int, bytes]:
        head = await self._incoming.receive_until(HEAD_END, 65536)
        return int(head[9:12]), head


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection to a server."""
    parts = urlsplit(url)
    async with await anyio.connect_tcp(str(parts.hostname), parts.port or 80) as stream:
        yield Connection(stream)
