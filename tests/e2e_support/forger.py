"""A wire on which answers of the API server are forged: objects that hurt, at the price of small ones.

The server, the kubelet and the story's own eyes keep objects that bear a mark. What stands in place of the mark goes
out to the controller only, byte by byte as a server would send it, in lists and in lines of watches. The embedded
cluster refuses or mends some of what a real server keeps; here it arrives all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import orjson
from aiohttp import web
from kubesim.serving import write_kubeconfig

from benchmarks.ground.relay import PASSED_ON, Relay, relay_to, served

EVICTION = re.compile(r"/eviction$")
LEASE = re.compile(r"^/apis/coordination\.k8s\.io/v1/")


class Forger:
    """`kubeconfig`: for the program under attack. `forgeries`: what goes out in place of which bytes; no mark has a
    line's end in it, or begins another one.
    """

    def __init__(self, relay: Relay, kubeconfig: Path, forgeries: Mapping[bytes, bytes]) -> None:
        self.kubeconfig = kubeconfig
        self.headers: dict[str, str] = {}
        """Stand over those of the server, in every answer."""
        self.pauses: list[tuple[re.Pattern[str], str]] = []
        """The next write to a path that matches is answered with 429 and this Retry-After, once for each."""
        self.sent: Counter[bytes] = Counter()
        """How often something has gone out in place of a mark."""
        self.watched: Counter[bytes] = Counter()
        """Those of them in lines of watches."""
        self.hanging: re.Pattern[str] | None = None
        """Writes to these paths are never answered, as behind a webhook that hangs."""
        self.hung: set[str] = set()
        """Paths of these writes."""
        self.asked: list[str] = []
        """Paths of the GETs, in their order."""
        self.answers = 0
        """How many answers have been given with forged headers."""
        self._relay = relay
        self._forgeries = forgeries
        self._marks = re.compile(b"|".join(map(re.escape, forgeries))) if forgeries else None

    async def serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        """Pass a request on, and back what we make of its answer."""
        body = await incoming.read()
        if incoming.method == "GET":
            self.asked.append(incoming.path)
        elif self.hanging is not None and self.hanging.search(incoming.path):
            self.hung.add(incoming.path)
            await anyio.sleep_forever()
        else:
            for pause in self.pauses:
                if pause[0].search(incoming.path):
                    self.pauses.remove(pause)
                    return _busy(pause[1])
        async with self._relay.asked(incoming, body) as answer:
            headers = {key: answer.headers[key] for key in PASSED_ON if key in answer.headers} | self.headers
            self.answers += bool(self.headers)
            outgoing = web.StreamResponse(status=answer.status, headers=headers)
            try:
                await outgoing.prepare(incoming)
                async for line in _lines(answer.content):
                    for piece in self._forged(line, is_watch="watch" in incoming.query):
                        await outgoing.write(piece)
                await outgoing.write_eof()
            except ConnectionResetError:
                pass  # whatever asked has had enough
            return outgoing

    def _forged(self, line: bytes, *, is_watch: bool) -> Iterator[bytes]:
        """The line in pieces, so that nothing long is put together here."""
        begin = 0
        for match in self._marks.finditer(line) if self._marks else ():
            yield line[begin : match.start()]
            yield self._forgeries[match[0]]
            self.sent[match[0]] += 1
            self.watched[match[0]] += is_watch
            begin = match.end()
        if begin < len(line):
            yield line[begin:]


def _busy(seconds: str) -> web.Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "too many requests, please try again later",
        "reason": "TooManyRequests",
        "code": 429,
    }
    return web.Response(
        status=429, body=orjson.dumps(status), headers={"Content-Type": "application/json", "Retry-After": seconds}
    )


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines with their ends, of whatever length; a body without any is one."""
    begun: list[bytes] = []
    async for chunk in content.iter_any():
        *ended, rest = chunk.split(b"\n")
        for each in ended:
            yield b"".join((*begun, each, b"\n"))
            begun.clear()
        begun.append(rest)
    if any(begun):
        yield b"".join(begun)


@asynccontextmanager
async def forger_before(kubeconfig: Path, folder: Path, forgeries: Mapping[bytes, bytes]) -> AsyncIterator[Forger]:
    """A forger before the cluster of a kubeconfig; `folder` takes the kubeconfig of its near end."""
    async with relay_to(kubeconfig) as relay:
        forger = Forger(relay, folder / "forger-kubeconfig", forgeries)
        async with served(forger.serve) as url:
            write_kubeconfig(forger.kubeconfig, url, name="forger")
            yield forger
