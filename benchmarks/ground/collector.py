"""A collector of traces in a process of its own: it takes all that comes, and counts.

    python -m benchmarks.ground.collector

Prints its URL as the first line; when its standard input ends, the number of spans that have come, and ends itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from aiohttp import web
from anyio.streams.buffered import BufferedByteReceiveStream
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

LINE = 200
"""Bytes of a line, at most."""


class Collector:
    """One that runs; `count` is known when the block of `collecting` has ended."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.count = 0


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector while the block runs."""
    command = [sys.executable, "-m", "benchmarks.ground.collector"]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = BufferedByteReceiveStream(process.stdout)
        collector = Collector((await said.receive_until(b"\n", LINE)).decode())
        yield collector
        await process.stdin.aclose()
        collector.count = int(await said.receive_until(b"\n", LINE))
        await process.wait()


async def serve() -> None:
    """Count spans until standard input ends."""
    count = 0

    async def take(request: web.Request) -> web.Response:
        nonlocal count
        taken = ExportTraceServiceRequest.FromString(await request.read())
        count += sum(len(scope.spans) for resource in taken.resource_spans for scope in resource.scope_spans)
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.read)
    await runner.cleanup()
    print(count, flush=True)


if __name__ == "__main__":
    anyio.run(serve)
