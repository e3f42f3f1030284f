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

import aiohttp
import anyio
import anyio.to_thread
from aiohttp import web
from yarl import URL

from benchmarks.ground.ground import Ground, at, service
from gracectl.kube import credentials
from gracectl.kube.credentials import Identity
from gracectl.runtime.clock import SystemClock

FAULTS = (500, 503, 504)
PASSED_ON = ("Content-Type", "Date", "Retry-After")


class Proxy:
    """See the module."""

    def __init__(
        self, url: str, identity: Identity, session: aiohttp.ClientSession, errors: float, delay: float
    ) -> None:
        self._url = url
        self._identity = identity
        self._session = session
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
        url = URL(self._url + incoming.raw_path, encoded=True)
        headers = {**self._identity.headers, "Accept-Encoding": "identity"}
        headers |= {key: incoming.headers[key] for key in ("Accept", "Content-Type") if key in incoming.headers}
        tls = self._identity.tls if self._identity.tls is not None else True
        async with self._session.request(incoming.method, url, data=body or None, headers=headers, ssl=tls) as answer:
            if fails:
                return self._fault()
            outgoing = web.StreamResponse(
                status=answer.status, headers={key: answer.headers[key] for key in PASSED_ON if key in answer.headers}
            )
            try:
                await outgoing.prepare(incoming)
                async for chunk in answer.content.iter_any():
                    await outgoing.write(chunk)
                await outgoing.write_eof()
            except ConnectionResetError:
                pass  # whoever asked is gone
        return outgoing

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
    found = await credentials.load(str(kubeconfig), clock=SystemClock())
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(trust_env=False, timeout=timeout, connector=connector) as session:
        proxy = Proxy(found.url, await found.identity(), session, errors, delay)
        runner = web.ServerRunner(
            web.Server(proxy.serve, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            print(f"http://{host}:{port}", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.read)
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    anyio.run(_serve, Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
