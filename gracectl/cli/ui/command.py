"""`gracectl ui`: serves the board of a cluster, until it is interrupted."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from gracectl.cli.failures import MISUSED, print_error, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, connected
from gracectl.cli.output import echo
from gracectl.cli.settings import SettingsSource, settings_options
from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.cli.ui.access import Access, TokenError, TokenFile, host_name, is_loopback
from gracectl.cli.ui.board import Board
from gracectl.cli.ui.server import BoardServer
from gracectl.inspect.status import is_active
from gracectl.kube.connection import Connection
from gracectl.runtime.supervise import set_on_signal
from gracectl.telemetry.server import CannotListen, Servers
from gracectl.telemetry.settings import parse_address

_BASE_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")

SHOWN = StatusScope(is_active, lambda node: True, with_claims=True)

EXPOSED = (
    "names of nodes, pods and budgets of {cluster}, and messages about them; {remedy}, and put a proxy that speaks "
    "HTTPS in front of it"
)


class UiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line: where the board is served, and to which requests."""

    bind: str
    base_path: str
    token_file: Path | None
    allowed_host: tuple[str, ...]
    grafana_url: str | None


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
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Bearer token that clients need; read again when the file changes.",
)
@click.option(
    "--allowed-host",
    metavar="HOST",
    multiple=True,
    callback=_hosts,
    help="Further name under which the page is reached; may be repeated.",
)
@click.option("--grafana-url", metavar="URL", callback=_url, help="Dashboard that the page links to.")
@settings_options
def ui(target: ClusterTarget, *, opens: bool, **options: Any) -> None:
    """Serve a page that shows terminations as they happen.

    The page shows what status -w and budgets show: each active node with its steps, waves and pods, what blocks them
    and until when, and the last terminations. It only reads, and needs no controller. Runs until Ctrl-C or SIGTERM.

    The rights of status -w are enough, with that to list and watch pods of all nodes; with the right to list and watch
    events the page shows those of gracectl, too. docs/ui.md describes the page, its JSON and who may reach it.
    """
    chosen = msgspec.convert(options, UiOptions)
    token = _token(chosen.token_file)
    with reporting_errors({CannotListen: MISUSED}):
        source = SettingsSource(target)
        run_async(lambda: _run(target, source, chosen, token, opens=opens))


def _token(path: Path | None) -> TokenFile | None:
    if path is None:
        return None
    try:
        return TokenFile(path)
    except TokenError as error:
        raise click.BadParameter(f"{path}: {error}.", param_hint="'--token-file'") from error


async def _run(
    target: ClusterTarget, source: SettingsSource, options: UiOptions, token: TokenFile | None, *, opens: bool
) -> None:
    async with connected(target) as connection:
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(set_on_signal, stop)
            group.start_soon(_cancel_at, stop, group.cancel_scope)
            effective = await source.read(connection.client)
            follower = StatusFollower(connection, effective.settings, SHOWN, is_endless=True)
            board = Board(follower, effective.settings, effective.source, connection.clock, grafana=options.grafana_url)
            servers = _servers(board, connection, options, token)
            urls = await servers.open()
            group.start_soon(servers.run)
            url = next(url for path, url in urls.items() if path == f"{options.base_path}/")
            _announce(url, connection, options, token, opens=opens)
            group.start_soon(board.events.follow, connection.client, connection.clock)

            def show(frame: StatusFrame) -> bool:
                board.update(frame)
                return False

            await follower.run(show)


def _servers(board: Board, connection: Connection, options: UiOptions, token: TokenFile | None) -> Servers:
    access = Access.of(parse_address(options.bind)[0], options.allowed_host, token)
    server = BoardServer(board, access, connection.clock, base_path=options.base_path)
    return Servers([server.endpoint(options.bind)], connection.clock)


def _announce(url: str, connection: Connection, options: UiOptions, token: TokenFile | None, *, opens: bool) -> None:
    link = url if token is None else f"{url}#token=TOKEN"
    echo(f"The board is at {link}; Ctrl-C ends it.")
    if not is_loopback(parse_address(options.bind)[0]):
        remedy = "give --token-file" if token is None else "a token is needed"
        exposed = EXPOSED.format(cluster=connection.cluster.server, remedy=remedy)
        print_error(f"warning: {options.bind} is no loopback address: who can reach it reads {exposed}")
    if opens:
        webbrowser.open(url if token is None else f"{url}#token={token.token}")


async def _cancel_at(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()
