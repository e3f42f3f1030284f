"""A collector of traces in a process of its own: it takes all that comes, and counts.

    python -m benchmarks.ground.collector

Prints its URL as the first line, answers `GET /count` with the number of spans, and ends with its standard input.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import anyio.to_thread
import msgspec
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from benchmarks.ground.ground import service


class Collector(msgspec.Struct, frozen=True):
    """One that runs at `url`."""

    url: str

    async def count(self) -> int:
        """How many spans have come so far."""
        async with aiohttp.ClientSession(trust_env=False) as session, session.get(f"{self.url}/count") as answer:
            return int(await answer.text())


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector while the block runs."""
    async with service("benchmarks.ground.collector") as one:
        yield Collector(one.said)


async def serve() -> None:
    """Count spans until standard input ends."""
    count = 0

    async def take(request: web.Request) -> web.Response:
        nonlocal count
        taken = ExportTraceServiceRequest.FromString(await request.read())
        count += sum(len(scope.spans) for resource in taken.resource_spans for scope in resource.scope_spans)
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    async def tell(request: web.Request) -> web.Response:
        return web.Response(text=str(count))

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    application.router.add_get("/count", tell)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    anyio.run(serve)
