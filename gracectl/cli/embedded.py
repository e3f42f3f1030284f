"""The embedded cluster behind its HTTP face, as the commands start and stop it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio

from gracectl.config import ConfigError
from gracectl.runtime.clock import SystemClock
from gracectl.sim.cluster import EmbeddedCluster, write_kubeconfig
from gracectl.sim.http import HttpFace
from gracectl.sim.scenario import demo_options

T = TypeVar("T")


@asynccontextmanager
async def served(
    kubeconfig: Path, *, speed: float, seed: int, port: int = 0
) -> AsyncIterator[tuple[EmbeddedCluster, str]]:
    """An empty cluster that lives while the block runs, and its URL; the kubeconfig for it is written first.

    Raises ConfigError when the port is taken or the file cannot be written.
    """
    cluster = EmbeddedCluster(SystemClock(), demo_options(speed=speed, seed=seed))
    face = HttpFace(cluster.server)
    try:
        try:
            url = await face.start(port=port)
            write_kubeconfig(kubeconfig, url)
        except OSError as error:
            message = f"the embedded cluster cannot start: {error}; choose another --port or --kubeconfig"
            raise ConfigError(message) from error
        async with anyio.create_task_group() as group:
            await group.start(cluster.run)
            yield cluster, url
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()


@asynccontextmanager
async def closed_in_any_case(resource: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Like `async with resource`, but a cancellation does not interrupt its closing: no connection is left behind."""
    opened = await resource.__aenter__()
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            await resource.__aexit__(None, None, None)
