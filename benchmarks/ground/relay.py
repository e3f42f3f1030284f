"""What stands between a client and an API server, as a plain HTTP server that asks with our identity."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from gracectl.kube.auth import lookup
from gracectl.kube.auth.credentials import Identity
from gracectl.runtime.clock import SystemClock

PASSED_ON = ("Content-Type", "Date", "Retry-After")


class Relay:
    """The way on to a server. `more`: headers of every request, besides what proves who asks."""

    def __init__(
        self, url: str, identity: Identity, session: aiohttp.ClientSession, more: Mapping[str, str] | None = None
    ) -> None:
        self._url = url
        self._more = more or {}
        self._identity = identity
        self._session = session

    def asked(self, incoming: web.BaseRequest, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Ask the server the same; its answer has begun while the block runs."""
        url = URL(self._url + incoming.raw_path, encoded=True)
        headers = {**self._identity.headers, **self._more, "Accept-Encoding": "identity"}
        headers |= {key: incoming.headers[key] for key in ("Accept", "Content-Type") if key in incoming.headers}
        tls = self._identity.tls if self._identity.tls is not None else True
        return self._session.request(incoming.method, url, data=body or None, headers=headers, ssl=tls)


async def passed_back(incoming: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass the server's answer on to the client, as it comes."""
    outgoing = web.StreamResponse(
        status=answer.status, headers={key: answer.headers[key] for key in PASSED_ON if key in answer.headers}
    )
    try:
        await outgoing.prepare(incoming)
        async for chunk in answer.content.iter_any():
            await outgoing.write(chunk)
        await outgoing.write_eof()
    except ConnectionResetError:
        pass  # the client is gone: killed by a scenario, or timed out
    return outgoing


@asynccontextmanager
async def relay_to(kubeconfig: Path, more: Mapping[str, str] | None = None) -> AsyncIterator[Relay]:
    """A way to the cluster of a kubeconfig; `more`: see Relay."""
    found = await lookup.load(str(kubeconfig), clock=SystemClock())
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(trust_env=False, timeout=timeout, connector=connector) as session:
        yield Relay(found.url, await found.identity(), session, more)


@asynccontextmanager
async def served(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The URL at which `handler` answers while the block runs."""
    runner = web.ServerRunner(web.Server(handler, handler_cancellation=True, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
