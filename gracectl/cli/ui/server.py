"""HTTP server of the board: the page, the snapshot, and the stream of changes. It only reads."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

import anyio
import anyio.to_thread
import msgspec
from aiohttp import web

from gracectl.cli.ui.access import HEADERS, Access
from gracectl.cli.ui.board import Board
from gracectl.cli.ui.stream import HEARTBEAT, HEARTBEAT_SECONDS, MOST_CLIENTS, SlowClient, message, send
from gracectl.model.times import format_micro_time
from gracectl.runtime.clock import Clock
from gracectl.telemetry.connections import BodyReader, Limits
from gracectl.telemetry.server import Endpoint, StreamHandler

TIME_HEADER: Final = "X-Gracectl-Time"
LOOK_SECONDS: Final = 1.0
"""Between two looks whether a client is still there, and still has the token."""
SNAPSHOT_SECONDS: Final = 60.0
"""In which a client must have taken a whole snapshot."""

TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
"""Files of the page by their suffix; others are not served."""
PAGE: Final = "index.html"
STREAM: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would keep it back
}


class Body(msgspec.Struct, frozen=True):
    """What a GET returns, as it is and compressed."""

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
        self._snapshot: tuple[str, Body] | None = None
        self._encoding = anyio.Lock()
        self.followed = anyio.Event()  # there was a client
        self.clients = 0
        self.dropped = 0

    def endpoint(self, listen: str) -> Endpoint:
        """The handlers of all paths, for an address."""
        page = page_files()
        handlers: dict[str, StreamHandler] = {
            f"{self._base}/api/v1/board": self._guarded(self._serve_board),
            f"{self._base}/api/v1/changes": self._guarded(self._serve_changes),
        }
        for name, body in page.items():
            path = "/" if name == PAGE else f"/assets/{name}"
            handlers[f"{self._base}{path}"] = self._guarded(_serving(body), is_page=name == PAGE, needs_token=False)
        if self._base:
            handlers[self._base] = self._guarded(self._redirect, is_page=True, needs_token=False)
        limits = Limits(connections=2 * MOST_CLIENTS + 56)
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
        response = (await self._body())[1].answer(request)
        response.headers[TIME_HEADER] = self._now()
        return response

    def _now(self) -> str:
        """The API server's clock: `at` of a quiet cluster's state may be hours old."""
        return format_micro_time(self._clock.now())

    async def _body(self) -> tuple[str, Body]:
        """The newest snapshot with its id; encoded once for all clients."""
        async with self._encoding:
            id_ = self._board.id
            if self._snapshot is None or self._snapshot[0] != id_:
                state = self._board.state
                # The state is never changed in place.
                body = await anyio.to_thread.run_sync(lambda: Body.of(self._board.encode(state, id_), TYPES[".json"]))
                self._snapshot = (id_, body)
            return self._snapshot

    async def _serve_changes(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.clients >= MOST_CLIENTS:
            text = f"{MOST_CLIENTS} clients follow the board already; close one, or come back later\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "10", **HEADERS})
        response = web.StreamResponse(headers={**STREAM, **HEADERS})
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        self.clients += 1
        self.followed.set()
        try:
            await self._stream(request, response)
        except SlowClient:
            self.dropped += 1
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass
        finally:
            self.clients -= 1
        return response

    async def _stream(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        ring = self._board.ring
        place = self._board.place_of(request.headers.get("Last-Event-ID") or request.query.get("after", ""))
        if place is None or ring.after(place) is None:
            place = await self._send_snapshot(response)
        last = self._clock.monotonic()
        while request.transport is not None and self._access.is_authorized(request.headers):
            await ring.wait_beyond(place, LOOK_SECONDS)
            changes = ring.after(place)
            if changes is None:
                raise SlowClient
            if changes:
                place += len(changes)
                await send(b"".join(changes), response.write)
            elif self._clock.monotonic() - last >= HEARTBEAT_SECONDS:
                await send(HEARTBEAT, response.write)
            else:
                continue
            last = self._clock.monotonic()

    async def _send_snapshot(self, response: web.StreamResponse) -> int:
        """Send the whole board; returns its place among the changes."""
        id_, body = await self._body()
        place = self._board.place_of(id_)
        assert place is not None
        with anyio.move_on_after(SNAPSHOT_SECONDS) as patience:
            await send(message("snapshot", id_, body.plain), response.write)
        if patience.cancelled_caught:
            raise SlowClient
        return place


def _serving(body: Body) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        return body.answer(request)

    return serve
