"""HTTP server of the board: the page, the snapshot, and the stream of changes. It only reads.

Invariant: memory holds the newest snapshot and older ones that are being read, at most OLDER_BYTES plus one snapshot.
While slow readers hold more, new readers get the newest snapshot that exists. Each read ends within seconds.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

import anyio
import anyio.to_thread
import msgspec
from aiohttp import web

from gracectl.cli.settings import EffectiveSettings
from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.cli.ui import stream
from gracectl.cli.ui.access import HEADERS, Access, TokenFile
from gracectl.cli.ui.board import Board
from gracectl.inspect.status import is_active
from gracectl.kube.connection import Connection
from gracectl.model.times import format_micro_time
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import ungrouped
from gracectl.telemetry.connections import BodyReader, Limits, write_in_parts
from gracectl.telemetry.server import CannotListen, Endpoint, Servers, StreamHandler
from gracectl.telemetry.settings import parse_address

TIME_HEADER: Final = "X-Gracectl-Time"
LOOK_SECONDS: Final = 1.0
"""Between two looks whether a client is still there, and still has the token."""
SNAPSHOT_SECONDS: Final = 60.0
"""In which a client must have taken a whole snapshot."""

JSON: Final = "application/json"
TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": JSON,
    ".txt": "text/plain; charset=utf-8",
}
"""Files of the page by their suffix; others are not served."""
PAGE: Final = "index.html"
STREAM: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would keep it back
}


@cache
def page_files() -> Mapping[str, Body]:
    """The files of the page in the package, by name."""
    found = resources.files("gracectl.cli.ui") / "page"
    return {
        each.name: Body.of(each.read_bytes(), TYPES[suffix])
        for each in found.iterdir()
        if (suffix := PurePosixPath(each.name).suffix) in TYPES and each.is_file()
    }


class BoardServer:
    """Requests to the board."""

    def __init__(self, board: Board, access: Access, clock: Clock, *, base_path: str = "") -> None:
        self._board = board
        self._access = access
        self._clock = clock
        self._base = base_path
        self.snapshots = Snapshots(board)
        self._streams = stream.Streams(stream.MOST_CLIENTS)
        self.followed = anyio.Event()  # there was a client
        self.dropped = 0

    @property
    def clients(self) -> int:
        """Open streams."""
        return len(self._streams)

    def endpoint(self, listen: str) -> Endpoint:
        """The handlers of all paths, for an address."""
        page = page_files()
        handlers: dict[str, StreamHandler] = {
            f"{self._base}/api/v1/board": self._guarded(self._serve_board),
            f"{self._base}/api/v1/changes": self._guarded(self._serve_changes),
            f"{self._base}/api/v1/pods": self._guarded(self._serve_pods),
        }
        for name, body in page.items():
            path = "/" if name == PAGE else f"/assets/{name}"
            handlers[f"{self._base}{path}"] = self._guarded(_serving(body), is_page=name == PAGE, needs_token=False)
        if self._base:
            handlers[self._base] = self._guarded(self._redirect, is_page=True, needs_token=False)
        limits = Limits(connections=2 * stream.MOST_CLIENTS + 56)
        return Endpoint(field="--bind", listen=listen, handlers=handlers, limits=limits, headers=HEADERS)

    def _guarded(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        is_page: bool = False,
        needs_token: bool = True,
    ) -> StreamHandler:
        async def serve(request: web.BaseRequest, bodies: BodyReader) -> web.StreamResponse:
            refusal = self._access.refusal(request.headers, is_page=is_page, needs_token=needs_token)
            if refusal is not None:
                headers = dict(HEADERS) | ({"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {})
                return web.Response(status=refusal.status, text=refusal.text, headers=headers)
            return await handle(request)

        return serve

    async def _redirect(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=308, headers={"Location": f"{self._base}/", **HEADERS})

    async def _serve_board(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            async with self.snapshots.reading() as snapshot:
                response = snapshot.body.answer(request)
                response.headers[TIME_HEADER] = self._now()
                return await write_in_parts(request, response, stream.PART)
        except TooLarge as refusal:
            return _unavailable(str(refusal))

    async def _serve_pods(self, request: web.BaseRequest) -> web.StreamResponse:
        found = self._board.node_pods(request.query.get("node", ""))
        if found is None:
            return web.Response(status=404, text="no node of this uid is on the board\n", headers=dict(HEADERS))
        headers = {TIME_HEADER: self._now(), "Cache-Control": "no-store", **HEADERS}
        return web.Response(body=stream.encoded(found), content_type=JSON, headers=headers)

    def _now(self) -> str:
        """The API server's clock: `at` of a quiet cluster's state may be hours old."""
        return format_micro_time(self._clock.now())

    async def _serve_changes(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={**STREAM, **HEADERS})
        if request.method == "HEAD":
            return response
        scope = self._streams.add(request.remote or "")
        if scope is None:
            return _unavailable(f"{self.clients} clients follow the board already; close one, or come back later\n")
        self.followed.set()
        try:
            with scope:
                await self._stream(request, response)
        except TooLarge as refusal:
            return _unavailable(str(refusal))
        except stream.SlowClient:
            self.dropped += 1
            scope.cancel()
        except ConnectionError:
            pass
        finally:
            self._streams.remove(scope)
        if scope.cancel_called and request.transport is not None:
            request.transport.abort()
        return response

    async def _stream(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        ring = self._board.ring
        place = self._board.place_of(request.headers.get("Last-Event-ID") or request.query.get("after", ""))
        if place is None or not ring.has(place):
            place = await self._send_snapshot(request, response)
        else:
            await response.prepare(request)
        last = self._clock.monotonic()
        while request.transport is not None and self._access.is_authorized(request.headers):
            await ring.wait_beyond(place, LOOK_SECONDS)
            changes = ring.after(place, stream.PART)
            if changes is None:
                raise stream.SlowClient
            if changes:
                await stream.send(b"".join(changes), response.write, partial(ring.has, place))
                place += len(changes)
            elif self._clock.monotonic() - last >= stream.HEARTBEAT_SECONDS:
                await stream.send(stream.HEARTBEAT, response.write)
            else:
                continue
            last = self._clock.monotonic()

    async def _send_snapshot(self, request: web.BaseRequest, response: web.StreamResponse) -> int:
        """Send the whole board; returns its place among the changes. Raises SlowClient and TooLarge."""
        async with self.snapshots.reading() as snapshot:
            await response.prepare(request)
            is_needed = partial(self._board.ring.has, snapshot.place)
            with anyio.move_on_after(SNAPSHOT_SECONDS) as patience:
                for part in (stream.head("snapshot", snapshot.id), snapshot.body.plain, stream.TAIL):
                    await stream.send(part, response.write, is_needed)
            if patience.cancelled_caught:
                raise stream.SlowClient
            return snapshot.place


def _unavailable(text: str) -> web.Response:
    return web.Response(status=503, text=text, headers={"Retry-After": "10", **HEADERS})


def _serving(body: Body) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        return body.answer(request)

    return serve


OLDER_BYTES: Final = 32 * 1024 * 1024


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
    if len(plain) > stream.LARGEST_MESSAGE:
        size, most = len(plain) >> 20, stream.LARGEST_MESSAGE >> 20
        raise TooLarge(f"board: {size} MiB, more than the {most} MiB of a snapshot; use gracectl status instead\n")
    return Body.of(plain, JSON)


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
            group.start_soon(board.drains.follow, connection.client, clock)
            group.start_soon(follower.run, show)
            yield ServedBoard(urls[f"{options.base_path}/"], server)
            group.cancel_scope.cancel()
