"""Connection to a cluster for commands: credentials as kubectl finds them, HTTP, a clock of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import anyio
import msgspec

from gracectl.kube import credentials
from gracectl.kube.client import INTERACTIVE, KubeClient
from gracectl.kube.http import HttpTransport
from gracectl.kube.skew import LARGEST_OFFSET, SkewEstimate
from gracectl.kube.transport import Transport
from gracectl.runtime.clock import Clock, SystemClock

T = TypeVar("T")


class Connection(msgspec.Struct, frozen=True):
    """Connection to a cluster. Responses of its server set `clock`; `client` has the timeouts of a command."""

    transport: Transport
    clock: Clock
    client: KubeClient
    url: str
    skew: SkewEstimate | None = None


@asynccontextmanager
async def connected(
    kubeconfig: str | None = None, context: str | None = None, *, largest_offset: float = LARGEST_OFFSET
) -> AsyncIterator[Connection]:
    """A connection while the block runs; no request is sent yet. Raises CredentialsError.

    `largest_offset`: seconds by which the server's clock may differ from this machine's and still be believed.
    """
    clock = SystemClock()
    skew = SkewEstimate(clock.adjust, largest_offset)
    identity = await credentials.load(kubeconfig, context, clock=clock)
    async with closed_despite_cancellation(HttpTransport(identity, clock, skew=skew)) as transport:
        yield Connection(transport, clock, KubeClient(transport, clock, settings=INTERACTIVE), identity.url, skew)


@asynccontextmanager
async def closed_despite_cancellation(resource: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Like `async with resource`, but a cancellation does not interrupt its closing: no connection is left behind."""
    opened = await resource.__aenter__()
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            await resource.__aexit__(None, None, None)
