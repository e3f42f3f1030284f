"""The board of a cluster, followed and served while a block runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec

from gracectl.cli.settings import EffectiveSettings
from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.cli.ui.access import Access, TokenFile
from gracectl.cli.ui.board import Board
from gracectl.cli.ui.server import BoardServer
from gracectl.inspect.status import is_active
from gracectl.kube.connection import Connection
from gracectl.runtime.supervise import ungrouped
from gracectl.telemetry.server import CannotListen, Servers
from gracectl.telemetry.settings import parse_address

SHOWN: Final = StatusScope(is_active, lambda node: True, with_claims=True)
"""All active and due nodes, and claims."""


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the board is served, and to which requests. `bind`: see parse_address."""

    bind: str
    base_path: str = ""
    token: TokenFile | None = None
    allowed_hosts: tuple[str, ...] = ()
    grafana: str | None = None


class ServedBoard(msgspec.Struct, frozen=True):
    """A board that is served at `url`."""

    url: str
    server: BoardServer


@asynccontextmanager
async def board_served(
    connection: Connection, effective: EffectiveSettings, options: ServingOptions
) -> AsyncIterator[ServedBoard]:
    """Follow the cluster, and serve its board, while the block runs.

    Broken connections are waited out. Raises CannotListen, and what only a change of configuration can repair.
    """
    clock = connection.clock
    follower = StatusFollower(connection, effective.settings, SHOWN, is_endless=True)
    board = Board(follower, effective.settings, effective.source, clock, grafana=options.grafana)
    access = Access.of(parse_address(options.bind)[0], options.allowed_hosts, options.token)
    server = BoardServer(board, access, clock, base_path=options.base_path)
    servers = Servers([server.endpoint(options.bind)], clock)
    try:
        urls = await servers.open()
    except CannotListen as error:
        raise CannotListen(f"{error}; give another one, or port 0") from error

    def show(frame: StatusFrame) -> bool:
        board.update(frame)
        return False

    with ungrouped():
        async with anyio.create_task_group() as group:
            group.start_soon(servers.run)
            group.start_soon(board.events.follow, connection.client, clock)
            group.start_soon(follower.run, show)
            yield ServedBoard(urls[f"{options.base_path}/"], server)
            group.cancel_scope.cancel()
