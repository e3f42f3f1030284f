"""The server of `gracectl ui` in a thread of its own, with a board that a test makes: for a browser beside it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from gracectl.cli.ui.access import Access, TokenFile
from gracectl.cli.ui.board import Board, merged
from gracectl.cli.ui.server import BoardServer
from gracectl.cli.ui.stream import ChangeRing, encoded, message
from gracectl.runtime.clock import Clock, SystemClock
from gracectl.telemetry.server import Servers

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = "GRACECTL_CHROMIUM"


def chromium() -> str | None:
    """The browser: that of the variable, or the first one that is installed."""
    return os.environ.get(BROWSER) or next(filter(None, map(shutil.which, PROGRAMS)), None)


class FixedClock(SystemClock):
    """Its wall time begins at an instant when it is made."""

    def __init__(self, at: float) -> None:
        self._at = at
        self._began = self.monotonic()

    def now(self) -> float:
        return self._at + self.monotonic() - self._began


class ScriptedBoard(Board):
    """A board with the states that a test gives it, without a cluster."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.ring = ChangeRing()
        self.state = state
        self._boot = secrets.token_hex(4)

    def push(self, state: Mapping[str, Any]) -> None:
        """The next state: clients get what has changed."""
        self.state, delta = merged(self.state, state)
        if delta:
            id_ = f"{self._boot}-{self.ring.latest + 1}"
            self.ring.append(message("change", id_, encoded(delta)))


class ServedBoard:
    """A board that a browser can open at `url`; see `serving`."""

    def __init__(self, portal: BlockingPortal, state: Mapping[str, Any], clock: Clock, token: Path | None) -> None:
        self._portal = portal
        self._clock = clock
        self._access = Access(token=None if token is None else TokenFile(token))
        self._state = state
        self._board: ScriptedBoard | None = None
        self._running: contextlib.AbstractContextManager[str] | None = None
        self._listen = "127.0.0.1:0"
        self.url = ""

    def start(self) -> None:
        """Serve; again at the same address after `stop`, as a new process would."""
        self._board = ScriptedBoard(self._state)
        self._running = self._portal.wrap_async_context_manager(self._serve(self._board))
        self.url = self._running.__enter__()
        self._listen = self.url.removeprefix("http://").rstrip("/")

    def stop(self) -> None:
        """The server is gone."""
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)

    def push(self, state: Mapping[str, Any]) -> None:
        """The next state of the board."""
        self._state = state
        if self._running is not None and self._board is not None:
            self._portal.call(self._board.push, state)

    @contextlib.asynccontextmanager
    async def _serve(self, board: Board) -> AsyncIterator[str]:
        server = BoardServer(board, self._access, self._clock)
        servers = Servers([server.endpoint(self._listen)], self._clock, grace_seconds=0.05)
        urls = await servers.open()
        async with anyio.create_task_group() as group:
            group.start_soon(servers.run)
            yield urls["/"]
            group.cancel_scope.cancel()


@contextlib.contextmanager
def serving(state: Mapping[str, Any], clock: Clock, *, token: Path | None = None) -> Iterator[ServedBoard]:
    """The board behind the real server, while the block runs."""
    with start_blocking_portal() as portal:
        board = ServedBoard(portal, state, clock, token)
        board.start()
        try:
            yield board
        finally:
            board.stop()
