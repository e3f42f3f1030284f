"""What commands that speak to a cluster have in common: the options that say which one, and the connection to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click
import msgspec

from gracectl.config import Settings, load_settings
from gracectl.kube import credentials
from gracectl.kube.client import IMPATIENT, KubeClient
from gracectl.kube.http import HttpTransport
from gracectl.kube.skew import SkewEstimate
from gracectl.kube.transport import Transport
from gracectl.runtime.clock import Clock, SystemClock

T = TypeVar("T")


class ClusterChoice(msgspec.Struct, frozen=True):
    """What the command line says about the cluster, and about how its nodes end."""

    kubeconfig: str | None = None
    context: str | None = None
    config: Path | None = None

    def settings(self) -> Settings:
        """Those of the file, or all defaults, with what the environment says. Raises ConfigError."""
        return load_settings(self.config, os.environ)


class Connection(msgspec.Struct, frozen=True):
    """A way to a cluster. The answers of its server set `clock`; `client` is for a person who waits for the answer."""

    transport: Transport
    clock: Clock
    client: KubeClient
    url: str


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which cluster a command speaks to; it gets them in one, as its argument `cluster`."""

    @click.option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig; default: $KUBECONFIG, the pod's service account, ~/.kube/config.",
    )
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: its current one.")
    @click.option(
        "--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings (YAML); default: all defaults."
    )
    @wraps(command)
    def with_options(
        *arguments: Any, kubeconfig: str | None, context: str | None, config: Path | None, **others: Any
    ) -> None:
        command(*arguments, cluster=ClusterChoice(kubeconfig, context, config), **others)

    return with_options


@asynccontextmanager
async def connected(cluster: ClusterChoice) -> AsyncIterator[Connection]:
    """A connection while the block runs; nothing is asked of the server yet. Raises CredentialsError."""
    clock = SystemClock()
    identity = await credentials.load(cluster.kubeconfig, cluster.context, clock=clock)
    async with closed_in_any_case(HttpTransport(identity, clock, skew=SkewEstimate(clock.adjust))) as transport:
        yield Connection(transport, clock, KubeClient(transport, clock, settings=IMPATIENT), identity.url)


@asynccontextmanager
async def closed_in_any_case(resource: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Like `async with resource`, but a cancellation does not interrupt its closing: no connection is left behind."""
    opened = await resource.__aenter__()
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            await resource.__aexit__(None, None, None)
