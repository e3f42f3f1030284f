"""The yardstick of a start, and of rest: a bare client that reads all that the controller reads, and keeps nothing.

    python -m benchmarks.contenders.bare_reader list KUBECONFIG
    python -m benchmarks.contenders.bare_reader watch KUBECONFIG

`list` prints `ready`, and for each line of its standard input it lists everything once, one page after another, without
decoding the objects, and prints the seconds that this took. `watch` prints `ready` once it follows everything, and
decodes each event as the controller does. Both end with their standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from gracectl.controllers.cluster.informers import new_informers
from gracectl.kube.auth import lookup
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.http import HttpTransport
from gracectl.kube.requests import list_request
from gracectl.kube.resources import NODE_BUDGETS, Resource
from gracectl.runtime.clock import SystemClock

PAGE = ClientSettings().page_size
LASTING = 3600
"""Seconds that a watch is asked for."""

clock = SystemClock()


class _Metadata(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion")
    token: str = msgspec.field(default="", name="continue")


class _Listed(msgspec.Struct):
    metadata: _Metadata


_decode = msgspec.json.Decoder(_Listed).decode


def _everything() -> tuple[Resource[Any], ...]:
    """All that the controller reads; decoders of its own."""
    sources = new_informers()
    return (sources.pods, sources.nodes, sources.budgets, sources.attachments, sources.claims[0], NODE_BUDGETS)


async def _version(
    transport: HttpTransport, resource: Resource[Any], page: int = PAGE, pages: int | None = None
) -> str:
    """List a resource, at most so many pages of it; its version, "" if the server does not have it."""
    version = token = ""
    while pages is None or pages > 0:
        answer = await transport.send(list_request(resource, limit=page, continue_token=token))
        if answer.status != 200:
            return ""
        metadata = _decode(answer.body).metadata
        version, token = metadata.resource_version, metadata.token
        pages = None if pages is None else pages - 1
        if not token:
            break
    return version


async def _list(transport: HttpTransport) -> None:
    print("ready", flush=True)
    while await anyio.to_thread.run_sync(sys.stdin.readline):
        began = clock.monotonic()
        for resource in _everything():
            await _version(transport, resource)
        print(clock.monotonic() - began, flush=True)


async def _watch(transport: HttpTransport) -> None:
    client = KubeClient(transport, clock)
    found = {resource: await _version(transport, resource, page=1, pages=1) for resource in _everything()}
    async with anyio.create_task_group() as group:
        for resource, version in found.items():
            if version:
                group.start_soon(_follow, client, resource, version)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        group.cancel_scope.cancel()


async def _follow(client: KubeClient, resource: Resource[Any], version: str) -> None:
    async with client.watch(resource, version, timeout_seconds=LASTING) as watch:
        async for event in watch.events():
            if event.type != "BOOKMARK":
                resource.decode(event.object)


async def main(mode: str, kubeconfig: Path) -> None:
    """Read until standard input ends."""
    found = await lookup.load(str(kubeconfig), clock=clock)
    async with HttpTransport(found, clock) as transport:
        await {"list": _list, "watch": _watch}[mode](transport)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]))
