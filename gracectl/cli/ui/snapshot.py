"""Snapshots of the board for readers, and bodies of other GETs.

Invariant: memory holds the newest snapshot and older ones that are being read, at most OLDER_BYTES plus one snapshot.
While slow readers hold more, new readers get the newest snapshot that exists. Each read ends within seconds.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.to_thread
import msgspec
from aiohttp import web

from gracectl.cli.ui.access import HEADERS
from gracectl.cli.ui.board import Board
from gracectl.cli.ui.stream import LARGEST_MESSAGE

OLDER_BYTES: Final = 32 * 1024 * 1024
JSON: Final = "application/json"


class Body(msgspec.Struct, frozen=True):
    """Response to a GET, plain and compressed."""

    plain: bytes
    compressed: bytes
    etag: str
    content_type: str

    @classmethod
    def of(cls, plain: bytes, content_type: str) -> Body:
        """The body with its ETag."""
        etag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
        return cls(plain, _gzip(plain), etag, content_type)

    def answer(self, request: web.BaseRequest) -> web.Response:
        """The response: 304 if the client has this body already."""
        headers = {"ETag": self.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **HEADERS}
        known = request.headers.get("If-None-Match", "")
        if self.etag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return web.Response(status=304, headers=headers)
        is_compressed = "gzip" in request.headers.get("Accept-Encoding", "") and len(self.compressed) < len(self.plain)
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        headers["Content-Type"] = self.content_type
        return web.Response(body=self.compressed if is_compressed else self.plain, headers=headers)


def _gzip(plain: bytes) -> bytes:
    packer = zlib.compressobj(level=4, wbits=31)
    return packer.compress(plain) + packer.flush()


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """A state of the board. `place`: its number among the changes."""

    id: str
    place: int
    body: Body

    @property
    def bytes(self) -> int:
        """Size in memory (bytes)."""
        return len(self.body.plain) + len(self.body.compressed)


class TooLarge(Exception):
    """The board exceeds the maximum size of a response; the message says what to do."""


class Snapshots:
    """The newest snapshot for all readers, encoded once, and older ones that are still read."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._newest: Snapshot | None = None
        self._readers: Counter[Snapshot] = Counter()
        self._encoding = anyio.Lock()

    @property
    def readers(self) -> int:
        """Those that read a snapshot now."""
        return self._readers.total()

    @property
    def older_bytes(self) -> int:
        """Bytes of the snapshots that are held by their readers only."""
        return sum(each.bytes for each in self._readers if each is not self._newest)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Snapshot]:
        """The newest snapshot, held until the block ends. Raises TooLarge."""
        snapshot = await self._current()
        self._readers[snapshot] += 1
        try:
            yield snapshot
        finally:
            self._readers[snapshot] -= 1
            if not self._readers[snapshot]:
                del self._readers[snapshot]

    async def _current(self) -> Snapshot:
        async with self._encoding:
            id_ = self._board.id
            newest = self._newest
            if newest is not None and (newest.id == id_ or self.older_bytes > OLDER_BYTES):
                return newest
            state = self._board.state
            place = self._board.place_of(id_)
            assert place is not None
            # The state is never changed in place.
            body = await anyio.to_thread.run_sync(lambda: _encoded(self._board.encode(state, id_)))
            self._newest = Snapshot(id_, place, body)
            return self._newest


def _encoded(plain: bytes) -> Body:
    if len(plain) > LARGEST_MESSAGE:
        size, most = len(plain) >> 20, LARGEST_MESSAGE >> 20
        raise TooLarge(f"board: {size} MiB, more than the {most} MiB of a snapshot; use gracectl status instead\n")
    return Body.of(plain, JSON)
