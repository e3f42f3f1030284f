"""`gracectl agent`: the agent of one node, until SIGTERM, or a rehearsal of what it would do."""

from __future__ import annotations

import logging
import random
import socket
import sys
from typing import Literal

import anyio
import click

from gracectl import __version__
from gracectl.agent.machine import Machine
from gracectl.app.agent import NodeAgent
from gracectl.cli.cluster import ClusterChoice, cluster_options, connected
from gracectl.cli.failures import run_async, told_to_people
from gracectl.cli.traces import traced
from gracectl.config import Settings
from gracectl.policy.settings import PolicySettings
from gracectl.runtime.signals import set_on_signal
from gracectl.telemetry import logs

logger = logging.getLogger(__name__)

DISABLED = (
    "graceful shutdown is disabled: the settings have neither shutdownGracePeriodByPodPriority nor shutdownGracePeriod"
)


@click.command()
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="The node that this machine is.  [default: $NODE_NAME, else the name of this host]",
)
@click.option(
    "--simulate-shutdown",
    is_flag=True,
    help="Only say what a shutdown of the machine would do to its pods now; changes nothing, and needs no logind.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="Of --simulate-shutdown; json: one object, no more.",
)
@cluster_options
def agent(
    cluster: ClusterChoice, node_name: str | None, simulate_shutdown: bool, output: Literal["table", "json"]
) -> None:
    """Empty this node, by the priority of its pods, before its machine shuts down.

    Holds a delay lock of systemd-logind. When the machine shuts down, its pods are deleted range by range, as
    shutdownGracePeriodByPodPriority (or shutdownGracePeriod) of the settings says; then the machine goes on. Runs until
    SIGTERM, on every node (docs/agent.md has a DaemonSet); ends with exit code 0 where the settings have no order for a
    shutdown. A changed settings file counts at once.
    """
    with told_to_people():
        settings = cluster.settings()
        node = node_name or socket.gethostname().lower()
        if not settings.shutdown.knows_shutdowns:
            click.echo(f"{DISABLED}{_because_of_the_gate(settings)}")
            return
        if simulate_shutdown:
            return
        logs.configure(sys.stderr, format=settings.log.format, level=settings.log.level)
        run_async(lambda: _run(settings, node, cluster))


def _because_of_the_gate(settings: Settings) -> str:
    """What is there all the same, and does not count."""
    if not _orders(settings.termination.policy):
        return ""
    return " that counts: the feature gate PodPriorityBasedGracefulNodeShutdown is off"


def _orders(policy: PolicySettings) -> bool:
    return policy.knows_shutdowns


async def _run(settings: Settings, node: str, cluster: ClusterChoice) -> None:
    raise NotImplementedError(settings, node, cluster, NodeAgent, Machine, traced, connected, set_on_signal, random, anyio, __version__)
