"""`--dry-run=server`: the requests of a drain as dry runs: rights, webhooks and budgets answer, nothing is stored."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager

import anyio
import msgspec

from gracectl.app.drainer import EvictingClient, Manner
from gracectl.cli.failures import print_error
from gracectl.cli.output import echo
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, BudgetExhausted
from gracectl.kube.transport import Request, Response, Stream, Transport
from gracectl.model.encoding import encode
from gracectl.model.pod import Pod

DRY = " (server dry run)"


class ServerDryRun:
    """Transport of requests that store nothing."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, request: Request) -> Response:
        """See Transport."""
        if request.method == "DELETE":  # with a body, its query does not count
            options = {**msgspec.json.decode(request.body or b"{}"), "dryRun": ["All"]}
            request = msgspec.structs.replace(request, body=encode(options))
        elif request.method != "GET":
            request = msgspec.structs.replace(request, query=(*request.query, ("dryRun", "All")))
        return await self._transport.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """See Transport."""
        return self._transport.stream(request)


def dry(connection: Connection) -> Connection:
    """The same connection, for dry runs."""
    transport = ServerDryRun(connection.transport)
    client = KubeClient(transport, connection.clock)
    return msgspec.structs.replace(connection, transport=transport, client=client)


async def evict_dry(connection: Connection, pods: Collection[Pod], manner: Manner) -> bool:
    """Request the evictions of these pods, and print each answer. Returns whether all may leave, now or later."""
    client = EvictingClient(connection.transport, connection.clock)
    client.manner = manner
    limit, refused = anyio.CapacityLimiter(10), []

    async def evict(pod: Pod) -> None:
        async with limit:
            try:
                await client.evict(pod.key, uid=pod.uid)
            except BudgetExhausted as error:
                echo(f"{pod.full_name}: waits for its budget{DRY}: {error}")
            except ApiError as error:
                if not error.is_gone:
                    refused.append(pod)
                    print_error(f"{pod.full_name}: refused{DRY}: {error}")
            else:
                echo(f"{pod.full_name}: {'deleted' if manner.disable_eviction else 'evicted'}{DRY}")

    async with anyio.create_task_group() as group:
        for pod in pods:
            group.start_soon(evict, pod)
    return not refused
