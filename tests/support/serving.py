"""Servers that answer over real sockets, for as long as a test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import anyio

from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.server import SHUTDOWN_SECONDS, Endpoint, Servers


class StillClock(LoopClock):
    """One on which nothing takes any time."""

    def monotonic(self) -> float:
        """See Clock."""
        return 0.0


@asynccontextmanager
async def serving(
    *doors: Endpoint, grace_seconds: float = SHUTDOWN_SECONDS, before_close: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[tuple[Servers, Mapping[str, str]]]:
    """Servers that run, and the URL of each path."""
    servers = Servers(doors, LoopClock(), grace_seconds=grace_seconds)
    urls = await servers.open()
    async with anyio.create_task_group() as group:
        group.start_soon(servers.run, before_close)
        yield servers, urls
        group.cancel_scope.cancel()
