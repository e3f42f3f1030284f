"""`gracectl ui`: serves the board of a cluster, until it is interrupted."""

from __future__ import annotations

import re
import sys
import webbrowser
from pathlib import Path
from typing import Any

import anyio
import click

from gracectl.cli.failures import MISUSED, print_error, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, connected
from gracectl.cli.output import echo
from gracectl.cli.settings import SettingsSource, settings_options
from gracectl.cli.ui.access import TokenError, TokenFile, host_name, is_loopback
from gracectl.cli.ui.server import ServingOptions, board_served
from gracectl.kube.connection import Connection
from gracectl.runtime.supervise import set_on_signal
from gracectl.telemetry import logs
from gracectl.telemetry.server import CannotListen
from gracectl.telemetry.settings import parse_address

_BASE_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")

EXPOSED = (
    "warning: {bind} is no loopback address: {readers} reads names of nodes, pods and budgets of {cluster}, and "
    "messages about them; put a proxy that speaks HTTPS in front of it, and give --token-file"
)


def _address(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        parse_address(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error
    return text


def _base_path(context: click.Context, parameter: click.Parameter, text: str) -> str:
    if not _BASE_PATH.fullmatch(text) or ".." in text.split("/"):
        raise click.BadParameter(f"{text!r} is no path such as /gracectl.")
    return text.rstrip("/")


def _hosts(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if host_name(name) != name.lower():
            raise click.BadParameter(f"{name!r} is no host name such as board.example.com; give it without a port.")
    return names


def _token(context: click.Context, parameter: click.Parameter, path: Path | None) -> TokenFile | None:
    try:
        return None if path is None else TokenFile(path)
    except TokenError as error:
        raise click.BadParameter(f"{path}: {error}.") from error


def _url(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text and not text.startswith(("http://", "https://")):
        raise click.BadParameter(f"{text!r} is no URL such as https://grafana.example.com/d/gracectl.")
    return text or None


@click.command()
@click.option(
    "--bind",
    metavar="HOST:PORT",
    default="127.0.0.1:8080",
    show_default=True,
    callback=_address,
    help="Address to listen on; port 0: any that is free.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.option("--base-path", metavar="/PATH", default="", callback=_base_path, help="Path of the page, behind a proxy.")
@click.option(
    "--token-file",
    "token",
    metavar="FILE",
    callback=_token,
    type=click.Path(path_type=Path),
    help="Bearer token that clients need; read again when the file changes.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="HOST",
    multiple=True,
    callback=_hosts,
    help="Further name under which the page is reached; may be repeated.",
)
@click.option("--grafana-url", "grafana", metavar="URL", callback=_url, help="Dashboard that the page links to.")
@settings_options
def ui(target: ClusterTarget, *, opens: bool, **options: Any) -> None:
    """Serve a page that shows terminations as they happen.

    The page shows what status -w and budgets show: each active node with its steps, waves and pods, what blocks them
    and until when, and the last terminations. The command only reads, and works without a controller. Runs until Ctrl-C
    or SIGTERM.

    Needs the permissions of status -w, and permission to list and watch the pods of all nodes. With permission to list
    and watch events, the page also shows the Events of gracectl. docs/ui.md describes the page, its JSON and who may
    reach it.
    """
    chosen = ServingOptions(**options)
    with reporting_errors({CannotListen: MISUSED}):
        source = SettingsSource(target)
        run_async(lambda: _run(target, source, chosen, opens=opens))


async def _run(target: ClusterTarget, source: SettingsSource, options: ServingOptions, *, opens: bool) -> None:
    async with connected(target, shows_cluster=True) as connection, anyio.create_task_group() as group:
        stop = anyio.Event()
        group.start_soon(set_on_signal, stop)
        group.start_soon(_cancel_at, stop, group.cancel_scope)
        effective = await source.read(connection.client)
        if not sys.stderr.isatty():  # a container, or a service
            logs.configure(sys.stderr, format=effective.settings.log.format, level="warning")
        async with board_served(connection, effective, options) as served:
            _announce(served.url, connection, options, opens=opens)
            await anyio.sleep_forever()


def _announce(url: str, connection: Connection, options: ServingOptions, *, opens: bool) -> None:
    token = options.token
    echo(f"The board is at {url if token is None else f'{url}#token=TOKEN'}; Ctrl-C ends it.")
    if not is_loopback(parse_address(options.bind)[0]):
        readers = "every client that reaches it" if token is None else "every client that has the token"
        print_error(EXPOSED.format(bind=options.bind, readers=readers, cluster=connection.cluster.server))
    if opens:
        webbrowser.open(url if token is None else f"{url}#token={token.token}")


async def _cancel_at(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()
