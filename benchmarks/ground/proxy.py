"""A bad way to a cluster: an HTTP proxy that answers some requests with errors of its own, and takes its time.

    python -m benchmarks.ground.proxy KUBECONFIG ERRORS DELAY

ERRORS: the share of requests (watches among them) that fail, by turns before the server has heard of them and after it
has obeyed; DELAY: seconds that each request waits. Prints its URL; it speaks to the server with the identity of the
kubeconfig, and runs until its standard input ends.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import anyio
import anyio.to_thread
from aiohttp import web

from benchmarks.ground.ground import Ground, at, service
from benchmarks.ground.relay import Relay, passed_back, relay_to, served

FAULTS = (500, 503, 504)


class Proxy:
    """See the module."""

    def __init__(self, relay: Relay, errors: float, delay: float) -> None:
        self._relay = relay
        self._errors = errors
        self._delay = delay
        self._chance = random.Random(1)
        self._faults = cycle(FAULTS)
        self._afterwards = cycle((False, True))

    async def serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        """Pass a request on and its answer back, or fail."""
        body = await incoming.read()
        await anyio.sleep(self._delay)
        fails = self._chance.random() < self._errors
        if fails and not next(self._afterwards):
            return self._fault()
        async with self._relay.asked(incoming, body) as answer:
            return self._fault() if fails else await passed_back(incoming, answer)

    def _fault(self) -> web.Response:
        code = next(self._faults)
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "InternalError"}
        return web.json_response({**status, "message": "a fault of the benchmark"}, status=code)


@asynccontextmanager
async def faulty(ground: Ground, *, errors: float = 0.0, delay: float = 0.0) -> AsyncIterator[Ground]:
    """The same cluster, reached by a bad way, in a process of its own."""
    async with service("benchmarks.ground.proxy", str(ground.kubeconfig), str(errors), str(delay)) as one:
        yield ground.behind(at(one.said, ground.folder / "faulty-kubeconfig"))


async def _serve(kubeconfig: Path, errors: float, delay: float) -> None:
    async with relay_to(kubeconfig) as relay, served(Proxy(relay, errors, delay).serve) as url:
        print(url, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(_serve, Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
