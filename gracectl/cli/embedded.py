"""The embedded cluster behind its HTTP face, as the commands offer, start and stop it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click
import msgspec
from kubesim.cli import finite
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.client import Refused
from kubesim.scenarios.demo import demo_options
from kubesim.scenarios.parser import ScenarioError
from kubesim.serving import CannotServe, listening

from gracectl.cli.crds import shipped_definitions
from gracectl.cli.failures import MISUSED, REFUSED
from gracectl.runtime.clock import SystemClock

WORLD_FAILURES: Mapping[type[Exception], int] = {CannotServe: MISUSED, ScenarioError: MISUSED, Refused: REFUSED}
"""Failures of commands that start a cluster, in addition to the failures of every command."""

Command = TypeVar("Command", bound=Callable[..., Any])


def world_options(command: Command) -> Command:
    """Options of the cluster that a command starts: `nodes`, `pods`, `seed` and `speed`."""
    nodes, pods = click.IntRange(min=2), click.IntRange(min=1)
    speed = click.FloatRange(min=0, min_open=True)
    # The last option that is added comes first in the help.
    for option in (
        click.option("--speed", type=speed, default=1.0, show_default=True, callback=finite, help="2: twice as fast."),
        click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same cluster."),
        click.option("--pods", type=pods, default=120, show_default=True, help="How many ordinary pods."),
        click.option("--nodes", type=nodes, default=8, show_default=True, help="How many nodes."),
    ):
        command = option(command)
    return command


@asynccontextmanager
async def served(
    kubeconfig: Path, *, speed: float, seed: int, port: int = 0
) -> AsyncIterator[tuple[EmbeddedCluster, str]]:
    """Run an empty cluster during the block; yields it and its URL. Writes the kubeconfig first.

    Raises CannotServe when the port is taken or the file cannot be written.
    """
    options = msgspec.structs.replace(demo_options(speed=speed, seed=seed), definitions=shipped_definitions())
    cluster = EmbeddedCluster(SystemClock(), options)
    async with listening(cluster, kubeconfig, port=port) as url, anyio.create_task_group() as group:
        await group.start(cluster.run)
        yield cluster, url
        group.cancel_scope.cancel()
