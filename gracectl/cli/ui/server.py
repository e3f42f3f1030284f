"""HTTP server of the board: the page, the snapshot, and the stream of changes. It only reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

import anyio
from aiohttp import web

from gracectl.cli.ui.access import HEADERS, Access
from gracectl.cli.ui.board import Board
from gracectl.cli.ui.snapshot import JSON, Body, Snapshots, TooLarge
from gracectl.cli.ui.stream import (
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    MOST_CLIENTS,
    PART,
    TAIL,
    SlowClient,
    Streams,
    head,
    send,
)
from gracectl.model.times import format_micro_time
from gracectl.runtime.clock import Clock
from gracectl.telemetry.connections import BodyReader, Limits, write_in_parts
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
        self._streams = Streams(MOST_CLIENTS)
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
        try:
            async with self.snapshots.reading() as snapshot:
                response = snapshot.body.answer(request)
                response.headers[TIME_HEADER] = self._now()
                return await write_in_parts(request, response, PART)
        except TooLarge as refusal:
            return _unavailable(str(refusal))

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
        except SlowClient:
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
            changes = ring.after(place, PART)
            if changes is None:
                raise SlowClient
            if changes:
                await send(b"".join(changes), response.write, partial(ring.has, place))
                place += len(changes)
            elif self._clock.monotonic() - last >= HEARTBEAT_SECONDS:
                await send(HEARTBEAT, response.write)
            else:
                continue
            last = self._clock.monotonic()

    async def _send_snapshot(self, request: web.BaseRequest, response: web.StreamResponse) -> int:
        """Send the whole board; returns its place among the changes. Raises SlowClient and TooLarge."""
        async with self.snapshots.reading() as snapshot:
            await response.prepare(request)
            is_needed = partial(self._board.ring.has, snapshot.place)
            with anyio.move_on_after(SNAPSHOT_SECONDS) as patience:
                for part in (head("snapshot", snapshot.id), snapshot.body.plain, TAIL):
                    await send(part, response.write, is_needed)
            if patience.cancelled_caught:
                raise SlowClient
            return snapshot.place


def _unavailable(text: str) -> web.Response:
    return web.Response(status=503, text=text, headers={"Retry-After": "10", **HEADERS})


def _serving(body: Body) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        return body.answer(request)

    return serve
