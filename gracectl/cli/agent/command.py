"""`gracectl agent`: the agent of one node, until SIGTERM, or a rehearsal of what it would do."""

from __future__ import annotations

import gc
import logging
import re
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
from gracectl.cli.agent.rehearsal import FAILURES, Logind, RehearsalResult, run_rehearsal
from gracectl.cli.agent.report import rehearsal_report, rehearsal_table
from gracectl.cli.completion import complete_nodes
from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.failures import interruptible, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, cluster_options, connected
from gracectl.cli.output import WIDE, Output, echo, is_structured, output_option
from gracectl.cli.report import structured
from gracectl.cli.telemetry import metric_export, traced
from gracectl.config import ConfigError, Settings
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import set_on_signal, while_running
from gracectl.telemetry import logs

logger = logging.getLogger(__name__)

_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*", re.ASCII)
"""Names that an API server accepts for nodes (RFC 1123)."""


@click.command()
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    shell_complete=complete_nodes,
    metavar="NAME",
    help="The node of this machine.  [default: $NODE_NAME, else the name of this host]",
)
@click.option("--pod-uid", envvar="POD_UID", default="", hidden=True)
@click.option(
    "--simulate-shutdown",
    is_flag=True,
    help="Print what a shutdown would do to the pods of the node now; changes nothing.",
)
@output_option("table", "wide", help=f"Of --simulate-shutdown; {WIDE}")
@cluster_options
@click.pass_context
def agent(
    context: click.Context,
    target: ClusterTarget,
    node_name: str | None,
    pod_uid: str,
    simulate_shutdown: bool,
    output: Output,
) -> None:
    """Terminate the pods of this node before its machine shuts down.

    Holds a delay lock of systemd-logind. When the machine shuts down, its pods are deleted range by range, as
    shutdownGracePeriodByPodPriority (or shutdownGracePeriod) of the settings says; then the machine goes down. Runs on
    every node (docs/agent.md has a DaemonSet) until SIGTERM; a shutdown in progress is finished first, unless there is
    a second signal. A changed settings file is read within seconds. If the settings have no shutdown order, it prints
    that and exits with code 0.

    With --simulate-shutdown it prints what would happen to the pods of the node now, and changes nothing; from any
    machine that may get the node and list pods. docs/rehearsal.md explains every field.
    """
    is_output_given = context.get_parameter_source("output") is ParameterSource.COMMANDLINE
    if is_output_given and not simulate_shutdown:
        raise click.UsageError("-o needs --simulate-shutdown")
    node = node_name or socket.gethostname().lower()
    if not _NODE_NAME.fullmatch(node):
        raise click.UsageError(f"{node!r} is no name of a node; set --node-name or $NODE_NAME")
    is_here = context.get_parameter_source("node_name") is not ParameterSource.COMMANDLINE
    with reporting_errors(FAILURES):
        settings = target.settings()
        if not settings.shutdown.knows_shutdowns:
            if simulate_shutdown:
                raise ConfigError(disabled(settings))
            echo(disabled(settings))
            return
        if simulate_shutdown:
            with interruptible():
                rehearse = partial(_rehearse, settings, node, pod_uid, target, is_here=is_here)
                result = run_async(lambda: rehearse(shows_cluster=not is_structured(output)))
            show(result, output)
            return
        logs.configure(sys.stderr, format=settings.log.format, level=settings.log.level)
        run_async(lambda: _run(settings, node, pod_uid, target))


def disabled(settings: Settings) -> str:
    """Message where no node has a shutdown order."""
    if settings.termination.policy.knows_shutdowns:
        return f"graceful shutdown is disabled: {GATED}"
    return "graceful shutdown is disabled: the settings have no shutdownGracePeriodByPodPriority or shutdownGracePeriod"


async def _rehearse(
    settings: Settings, node: str, pod_uid: str, target: ClusterTarget, *, is_here: bool, shows_cluster: bool
) -> RehearsalResult:
    """Rehearse. `is_here`: this is the machine of the node, so its logind can be read."""
    logind = await _logind(settings.agent.address) if is_here else None
    async with connected(target, shows_cluster=shows_cluster) as connection:
        return await run_rehearsal(connection, node, settings, pod_uid, logind=logind)


async def _logind(address: str) -> Logind:
    try:
        return Logind(await granted_delay(address))
    except BusError as error:
        return Logind(problem=str(error))


async def _run(settings: Settings, node: str, pod_uid: str, target: ClusterTarget) -> None:
    offset = settings.client.maximum_clock_offset_seconds
    export = metric_export(settings.cluster)
    async with (
        traced(cluster=settings.cluster) as spans,
        connected(target, offset, logger.warning) as connection,
    ):
        machine = Machine(node, _watcher(settings.agent, connection.clock), pod_uid)
        program = NodeAgent(target.settings, connection.transport, connection.clock, machine, spans=spans)
        program.process.skew = connection.skew
        program.process.export = export
        logs.add_trace_ids(program.agent.trace_id)
        stop = anyio.Event()
        async with while_running(partial(set_on_signal, stop)):
            logger.info("gracectl %s, agent of node %s, on %s", __version__, node, connection.cluster.server)
            gc.freeze()
            await program.run(stop)
    logger.info("stopped")


def _watcher(settings: AgentSettings, clock: Clock) -> Callable[[ShutdownListener], ShutdownWatch]:
    directory = settings.logind_drop_in_directory
    drop_in = DropIn(Path(directory)) if directory else None
    return lambda listener: ShutdownWatch(settings.address, drop_in, clock, listener)


def show(result: RehearsalResult, output: Output) -> None:
    """Print it as a table, or as one object."""
    if is_structured(output):
        echo(structured(rehearsal_report(result), output))
    else:
        print_on(stdout_console(is_wide=output == "wide"), rehearsal_table(result))
