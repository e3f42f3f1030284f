"""`gracectl controller`: the controller against a cluster, until SIGTERM."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path

import anyio
import click
import msgspec

from gracectl import __version__
from gracectl.app import Controller
from gracectl.cli.failures import run_async, told_to_people
from gracectl.cloud.provider import Provider
from gracectl.cloud.registry import UnknownProvider, load_provider
from gracectl.config import ConfigError, Settings, load_settings
from gracectl.kube import credentials
from gracectl.kube.http import HttpTransport
from gracectl.kube.skew import SkewEstimate
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.signals import set_on_signal
from gracectl.telemetry import logs

logger = logging.getLogger(__name__)


@click.command()
@click.option(
    "--kubeconfig", metavar="FILE", help="Kubeconfig; default: $KUBECONFIG, the pod's service account, ~/.kube/config."
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: its current one.")
@click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings (YAML); default: all defaults.",
)
def controller(kubeconfig: str | None, context: str | None, config: Path | None) -> None:
    """Watch a cluster and end its deleted nodes gracefully.

    Runs until SIGTERM or SIGINT: finishes the writes that are under way and exits with 0; a second signal ends it at
    once.
    """
    with told_to_people():
        settings = load_settings(config)
        logs.configure(sys.stderr, format=settings.log.format, level=settings.log.level)
        provider = provider_of(settings)
        run_async(lambda: _run(settings, provider, kubeconfig, context))


def provider_of(settings: Settings) -> Provider:
    """The provider that the settings name. Raises ConfigError."""
    try:
        return load_provider(settings.provider)
    except UnknownProvider as error:
        raise ConfigError(f"provider.name: {error}") from error
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        field = f"provider.options{place.rstrip('`')}"
        raise ConfigError(f"{field}: {reason} (provider {settings.provider.name})") from error


async def _run(settings: Settings, provider: Provider, kubeconfig: str | None, context: str | None) -> None:
    clock = SystemClock()
    identity = await credentials.load(kubeconfig, context, clock=clock)
    async with HttpTransport(identity, clock, skew=SkewEstimate(clock.adjust)) as transport:
        program = Controller(settings, transport, clock, provider)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(set_on_signal, stop)
            with anyio.CancelScope() as beginning:
                group.start_soon(_cancel_at, stop, beginning)
                server = await program.check()
            if not beginning.cancelled_caught:
                logger.info(
                    "gracectl %s on %s (Kubernetes %s), provider %s", __version__, identity.url, server, provider.name
                )
                gc.freeze()  # modules stay: the collector's walks over them would make deletions for deadlines late
                await program.run(stop)
            group.cancel_scope.cancel()
    logger.info("stopped")


async def _cancel_at(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    """Whoever tells us to stop need not wait for a server that does not answer our first questions."""
    await stop.wait()
    scope.cancel()
