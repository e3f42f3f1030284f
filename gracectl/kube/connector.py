"""Connections of one pool, of which few are opened at a time.

A TLS handshake costs both sides as much CPU as a request. Deletions are due in whole seconds: forty at once opened
forty connections, and the last was sent when all handshakes were done. Here a request that finds others being opened
waits for its turn, and takes a connection that has become free meanwhile.

Invariant: once no connection has been opened or freed for PATIENCE, no request waits: a host that does not answer holds
nothing up.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import aiohttp
import anyio
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

AT_ONCE: Final = 4
"""Connections that are opened at the same time."""
PATIENCE: Final = 0.1
"""Seconds."""


class PacedConnector(aiohttp.TCPConnector):
    """See the module. `freed` must be called when a request has given its connection back."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opening = 0
        self._waiting: deque[anyio.Event] = deque()
        self._moved = 0.0

    def freed(self) -> None:
        """A connection is idle: the request that has waited longest takes it."""
        self._moved = anyio.current_time()
        if self._waiting:
            self._waiting.popleft().set()

    async def connect(self, *arguments: Any, **options: Any) -> Connection:
        """An idle connection, or a new one in its turn."""
        if self._opening >= AT_ONCE:
            await self._take_turn()
        return await super().connect(*arguments, **options)

    async def _take_turn(self) -> None:
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            while not turn.is_set():
                with anyio.move_on_after(PATIENCE):
                    await turn.wait()
                if anyio.current_time() - self._moved >= PATIENCE:
                    return
        except BaseException:
            if turn.is_set():
                self.freed()  # cancelled: the next one takes what this one was given
            raise
        finally:
            if not turn.is_set():
                self._waiting.remove(turn)

    async def _create_connection(self, *arguments: Any, **options: Any) -> ResponseHandler:
        self._opening += 1
        try:
            return await super()._create_connection(*arguments, **options)
        finally:
            self._opening -= 1
            self.freed()
