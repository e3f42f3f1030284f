"""`gracectl agent`: the agent of one node, until SIGTERM, or a rehearsal of what it would do."""

from __future__ import annotations

import gc
import logging
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import anyio
import click
from click.core import ParameterSource

from gracectl import __version__
from gracectl.agent.bus import BusError
from gracectl.agent.inhibit_delay import DropIn
from gracectl.agent.logind import granted_delay
from gracectl.agent.settings import GATED, AgentSettings
from gracectl.agent.watch import Machine, ShutdownListener, ShutdownWatch
from gracectl.app.agent import NodeAgent
from gracectl.cli.agent.rehearsal import FAILURES, Logind, Rehearsed, rehearsed
from gracectl.cli.agent.report import report
from gracectl.cli.agent.table import table
from gracectl.cli.console import paper, put
from gracectl.cli.failures import interruptible, run_async, told_to_people
from gracectl.cli.options import ClusterChoice, cluster_options, connected
from gracectl.cli.output import say
from gracectl.cli.plan.report import as_json
from gracectl.cli.traces import traced
from gracectl.config import ConfigError, Settings
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import set_on_signal
from gracectl.telemetry import logs

logger = logging.getLogger(__name__)

_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*", re.ASCII)
"""What an API server takes for a name of a node (RFC 1123)."""


@click.command()
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="The node that this machine is.  [default: $NODE_NAME, else the name of this host]",
)
@click.option("--pod-uid", envvar="POD_UID", default="", hidden=True)
@click.option(
    "--simulate-shutdown",
    is_flag=True,
    help="Only say what a shutdown of the machine would do to its pods now; changes nothing.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="Of --simulate-shutdown; json: one object, no more.",
)
@cluster_options
@click.pass_context
def agent(
    context: click.Context,
    cluster: ClusterChoice,
    node_name: str | None,
    pod_uid: str,
    simulate_shutdown: bool,
    output: Literal["table", "json"],
) -> None:
    """Empty this node, by the priority of its pods, before its machine shuts down.

    Holds a delay lock of systemd-logind. When the machine shuts down, its pods are deleted range by range, as
    shutdownGracePeriodByPodPriority (or shutdownGracePeriod) of the settings says; then the machine goes on. Runs on
    every node (docs/agent.md has a DaemonSet) until SIGTERM; a shutdown that is under way is finished first, a second
    signal ends it at once. A changed settings file counts within seconds. Where the settings have no order for a
    shutdown, it says so and ends, with exit code 0.

    With --simulate-shutdown it shows what would happen to the pods of the node now, and changes nothing; from any
    machine that may get the node and list pods. The page docs/rehearsal.md explains it, and every field of the JSON.
    """
    is_output_given = context.get_parameter_source("output") is ParameterSource.COMMANDLINE
    if is_output_given and not simulate_shutdown:
        raise click.UsageError("-o says how --simulate-shutdown answers: give both, or neither")
    node = node_name or socket.gethostname().lower()
    if not _NODE_NAME.fullmatch(node):
        raise click.UsageError(f"no node can be called {node!r}; --node-name, or $NODE_NAME, is its name there")
    is_here = context.get_parameter_source("node_name") is not ParameterSource.COMMANDLINE
    with told_to_people(FAILURES):
        settings = cluster.settings()
        if not settings.shutdown.knows_shutdowns:
            if simulate_shutdown:
                raise ConfigError(disabled(settings))
            say(disabled(settings))
            return
        if simulate_shutdown:
            with interruptible():
                told = run_async(lambda: _rehearse(settings, node, pod_uid, cluster, is_here=is_here))
            show(told, output)
            return
        logs.configure(sys.stderr, format=settings.log.format, level=settings.log.level)
        run_async(lambda: _run(settings, node, pod_uid, cluster))


def disabled(settings: Settings) -> str:
    """What is told where no node has an order for a shutdown."""
    if settings.termination.policy.knows_shutdowns:
        return f"graceful shutdown is disabled: {GATED}"
    return (
        "graceful shutdown is disabled: the settings have neither shutdownGracePeriodByPodPriority nor "
        "shutdownGracePeriod"
    )


async def _rehearse(settings: Settings, node: str, pod_uid: str, cluster: ClusterChoice, *, is_here: bool) -> Rehearsed:
    """`is_here`: this is the machine of the node, so its logind can be asked."""
    logind = await _logind(settings.agent.address) if is_here else None
    async with connected(cluster) as there:
        return await rehearsed(there, node, settings, pod_uid, logind=logind)


async def _logind(address: str) -> Logind:
    try:
        return Logind(await granted_delay(address))
    except BusError as error:
        return Logind(problem=str(error))


async def _run(settings: Settings, node: str, pod_uid: str, cluster: ClusterChoice) -> None:
    async with traced() as spans, connected(cluster, settings.client.maximum_clock_offset_seconds) as there:
        machine = Machine(node, _watcher(settings.agent, there.clock), pod_uid)
        program = NodeAgent(cluster.settings, there.transport, there.clock, machine, spans=spans)
        program.show_skew(there.skew)
        logs.add_trace_ids(program.agent.trace_id)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(set_on_signal, stop)
            logger.info("gracectl %s, agent of node %s, on %s", __version__, node, there.url)
            gc.freeze()
            await program.run(stop)
            group.cancel_scope.cancel()
    logger.info("stopped")


def _watcher(settings: AgentSettings, clock: Clock) -> Callable[[ShutdownListener], ShutdownWatch]:
    directory = settings.logind_drop_in_directory
    drop_in = DropIn(Path(directory)) if directory else None
    return lambda listener: ShutdownWatch(settings.address, drop_in, clock, listener)


def show(told: Rehearsed, output: Literal["table", "json"]) -> None:
    """Print it, as wide as the terminal, or as one JSON object."""
    if output == "json":
        say(as_json(report(told)))
    else:
        console = paper()
        put(console, table(told, console.width))
