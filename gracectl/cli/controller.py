"""`gracectl controller`: the controller against a cluster, until SIGTERM."""

from __future__ import annotations

import gc
import logging
import resource
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
import click

from gracectl import __version__
from gracectl.app.controller import Controller
from gracectl.app.dry_run import DryRunTransport
from gracectl.cli.config import notifications_of, provider_of, sources_of
from gracectl.cli.failures import reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, cluster_options, connected
from gracectl.cli.telemetry import metric_export, traced
from gracectl.cloud.provider import Provider
from gracectl.config import Settings
from gracectl.runtime.supervise import set_on_signal
from gracectl.telemetry import logs

logger = logging.getLogger(__name__)

_OPEN_FILES = 8192


@click.command()
@click.option("--dry-run", is_flag=True, help="Only observe: log, measure and trace what would be done; write nothing.")
@cluster_options
def controller(target: ClusterTarget, *, dry_run: bool) -> None:
    """Watch a cluster and terminate its deleted nodes gracefully.

    Runs until SIGTERM or SIGINT: finishes the writes in progress and exits with 0. A second signal stops it
    immediately. Nodes and node claims of Karpenter are left to it.
    """
    with reporting_errors():
        settings = target.settings()
        logs.configure(sys.stderr, format=settings.log.format, level=settings.log.level)
        if dry_run:
            logs.mark_dry_run()
        provider, sources = provider_of(settings), sources_of(settings)
        send = None if dry_run else notifications_of(settings)
        _allow_connections()

        def prepare(program: Controller) -> None:
            program.hear_from(sources)
            if send is not None:
                program.notify_by(send)

        run_async(lambda: _run(settings, provider, prepare, target, dry_run=dry_run))


def _allow_connections() -> None:
    """Raise the limit of open files: often 1,024, and a silent server can hold hundreds of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # where it may not be had, the limit stays what it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(
    settings: Settings,
    provider: Provider,
    prepare: Callable[[Controller], None],
    target: ClusterTarget,
    *,
    dry_run: bool,
) -> None:
    offset = settings.client.maximum_clock_offset_seconds
    export = metric_export(settings.cluster, is_dry_run=dry_run)
    async with (
        traced(cluster=settings.cluster, is_dry_run=dry_run) as spans,
        connected(target, offset, logger.warning) as connection,
    ):
        transport, clock = connection.transport, connection.clock
        observed = DryRunTransport(transport, clock) if dry_run else transport
        program = Controller(settings, observed, clock, provider, spans=spans)
        prepare(program)
        program.process.skew = connection.skew
        if connection.cluster.context is not None:
            program.compare_clusters()
        program.process.export = export
        logs.add_trace_ids(program.trace_id)
        if target.config is not None:
            program.reload_from(target.settings)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(set_on_signal, stop)
            with anyio.CancelScope() as beginning:
                group.start_soon(_cancel_at, stop, beginning)
                server = await program.check()
            if not beginning.cancelled_caught:
                logger.info(
                    "gracectl %s on %s (Kubernetes %s), provider %s",
                    __version__,
                    connection.cluster.server,
                    server,
                    provider.name,
                )
                group.start_soon(_freeze_long_lived_objects, program.wait_live)
                await program.run(stop)
            group.cancel_scope.cancel()
    logger.info("stopped")


GC_THRESHOLDS: Final = (7_000, 10, 50)
"""Thresholds of the garbage collector; the defaults of Python are 700, 10, 10."""


async def _freeze_long_lived_objects(wait_live: Callable[[], Awaitable[None]]) -> None:
    """Exempt long-lived objects from garbage collection: modules now, and the caches once they are filled.

    A full collection takes tens of milliseconds, which would delay deletions for deadlines. Reference counting frees
    almost everything; cycles are few, so collections can be rare.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    await wait_live()
    gc.collect()
    gc.freeze()


async def _cancel_at(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    """Stop immediately, even while the server does not answer the first requests."""
    await stop.wait()
    scope.cancel()
