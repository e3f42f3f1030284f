"""What a Service is in a cluster: one address, and each connection goes to the next of those that listen behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import anyio
import anyio.abc

from gracectl.runtime.supervise import while_running

HOST = "127.0.0.1"


@asynccontextmanager
async def balanced(ports: list[int], host: str = HOST) -> AsyncIterator[int]:
    """A port of `host` whose connections go to these in turn, and past those that do not listen; how often is
    undefined."""
    turns = count()
    listener = await anyio.create_tcp_listener(local_host=host)

    async def serve(client: anyio.abc.SocketStream) -> None:
        async with client:
            for _ in ports:
                try:
                    backend = await anyio.connect_tcp(HOST, ports[next(turns) % len(ports)])
                except OSError:
                    continue
                async with backend, anyio.create_task_group() as group:
                    group.start_soon(_pass_on, client, backend)
                    group.start_soon(_pass_on, backend, client)
                return

    async with listener, while_running(partial(listener.serve, serve)):
        yield listener.extra(anyio.abc.SocketAttribute.local_port)


async def _pass_on(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream) -> None:
    """Until one of them closes; then the other one is of no use either."""
    try:
        async for piece in source:
            await sink.send(piece)
        await sink.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await sink.aclose()
