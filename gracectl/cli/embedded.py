"""The embedded cluster behind its HTTP face, as the commands offer, start and stop it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click
import msgspec
from kubesim.cluster import EmbeddedCluster, write_kubeconfig
from kubesim.controllers.client import Refused
from kubesim.http import HttpFace
from kubesim.scenarios.demo import demo_options
from kubesim.scenarios.parser import ScenarioError

from gracectl.cli.certificate import Certificate
from gracectl.cli.crds import shipped_definitions
from gracectl.cli.failures import MISUSED, REFUSED
from gracectl.config import ConfigError
from gracectl.runtime.clock import SystemClock

WORLD_FAILURES: Mapping[type[Exception], int] = {ScenarioError: MISUSED, Refused: REFUSED}
"""What commands with a world of their own tell people, beside what all commands do."""

Command = TypeVar("Command", bound=Callable[..., Any])
LOOPBACK = "127.0.0.1"


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse infinity and nan, which a range lets pass."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to multiply speed with.")
    return value


def world_options(command: Command) -> Command:
    """The options that say which world a command starts: `nodes`, `pods`, `seed` and `speed`."""
    nodes, pods = click.IntRange(min=2), click.IntRange(min=1)
    speed = click.FloatRange(min=0, min_open=True)
    # The last one that is put on stands first in the help.
    for option in (
        click.option("--speed", type=speed, default=1.0, show_default=True, callback=finite, help="2: twice as fast."),
        click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same world."),
        click.option("--pods", type=pods, default=120, show_default=True, help="How many ordinary pods."),
        click.option("--nodes", type=nodes, default=8, show_default=True, help="How many nodes."),
    ):
        command = option(command)
    return command


@asynccontextmanager
async def served(
    kubeconfig: Path, *, speed: float, seed: int, port: int = 0
) -> AsyncIterator[tuple[EmbeddedCluster, str]]:
    """An empty cluster that lives while the block runs, and its URL; the kubeconfig for it is written first.

    Raises ConfigError when the port is taken or the file cannot be written.
    """
    options = msgspec.structs.replace(demo_options(speed=speed, seed=seed), definitions=shipped_definitions())
    cluster = EmbeddedCluster(SystemClock(), options)
    async with listening(cluster, kubeconfig, port=port) as url, anyio.create_task_group() as group:
        await group.start(cluster.run)
        yield cluster, url
        group.cancel_scope.cancel()


@asynccontextmanager
async def listening(
    cluster: EmbeddedCluster,
    kubeconfig: Path,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    token: str = "",
    certificate: Certificate | None = None,
) -> AsyncIterator[str]:
    """The HTTP face of a cluster while the block runs; gives its URL. The kubeconfig is written first.

    Raises ConfigError when the port is taken or the file cannot be written.
    """
    face = HttpFace(cluster.server)
    try:
        try:
            url = await face.start(host, port, tls=certificate.context if certificate else None)
        except OSError as error:
            remedy = "--port" if host == LOOPBACK else "--bind or --port"
            raise ConfigError(f"the embedded cluster cannot start: {error}; choose another {remedy}") from error
        try:
            write_kubeconfig(kubeconfig, url, token=token, ca=certificate.authority if certificate else b"")
        except OSError as error:
            message = f"the embedded cluster cannot start: kubeconfig: {error}; choose another --kubeconfig"
            raise ConfigError(message) from error
        yield url
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()
