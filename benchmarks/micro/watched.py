"""A server that a reflector follows: it lists what it is given, and then tells of what it is handed, and of no more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import orjson

from benchmarks.micro.pods import Json
from gracectl.kube.transport import Request, Response


class Watched:
    """A transport that answers lists with `count` objects, number n of which is `make(n)`, and one watch."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, count: int, make: Callable[[int], Json]) -> None:
        self._count = count
        self._make = make
        self._lines: Sequence[bytes] = ()
        self._given, self._taken = anyio.Event(), anyio.Event()

    async def send(self, request: Request) -> Response:
        """A page of the list."""
        query = dict(request.query)
        start = int(query.get("continue") or 0)
        end = min(start + int(query["limit"]), self._count)
        metadata = {"resourceVersion": "1000000001"} | ({"continue": str(end)} if end < self._count else {})
        items = [self._make(number) for number in range(start, end)]
        return Response(status=200, body=orjson.dumps({"kind": "List", "metadata": metadata, "items": items}))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Watched]:
        """The watch."""
        yield self

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """What `tell` hands over."""
        while True:
            await self._given.wait()
            self._given = anyio.Event()
            for line in self._lines:
                yield line
            self._taken.set()

    async def read(self) -> bytes:
        """Nothing is refused."""
        return b""

    async def tell(self, lines: Sequence[bytes]) -> None:
        """Return when the watcher has dealt with each of these."""
        self._lines, self._taken = lines, anyio.Event()
        self._given.set()
        await self._taken.wait()
