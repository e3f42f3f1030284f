"""The wire between a controller and its API server, as a plain HTTP proxy: what was asked is known, not believed.

It speaks to the server with our identity, so it stands before any cluster. Evictions can be held, before the server
hears of them or before the controller hears the answer: the instants in which a process likes to be killed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import aiohttp
import anyio
import orjson
from aiohttp import web
from yarl import URL

from gracectl.kube import credentials
from gracectl.kube.credentials import Identity
from gracectl.runtime.clock import SystemClock
from gracectl.sim.cluster import write_kubeconfig

EVICTION = re.compile(r"^/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction$")
POD = re.compile(r"^/api/v1/namespaces/([^/]+)/pods/([^/]+)$")
PASSED_ON = ("Content-Type", "Date", "Retry-After")


class Eviction(NamedTuple):
    """One request to evict a pod, and the server's answer (HTTP status)."""

    namespace: str
    name: str
    uid: str
    status: int


class Hold:
    """A place where evictions stop. `reached` is set when one has come; all go on when `go_on` is set."""

    def __init__(self, where: Literal["request", "answer"], agreements: int) -> None:
        self.where = where
        self.agreements = agreements
        self.reached = anyio.Event()
        self.go_on = anyio.Event()


class Wire:
    """What has gone over the wire. `kubeconfig`: for the controller that is to be listened to."""

    def __init__(self, url: str, identity: Identity, session: aiohttp.ClientSession, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.evictions: list[Eviction] = []
        self.deletions: list[str] = []
        """The names of the pods whose deletion the server was asked for, once for each request."""
        self.is_dead = False
        """From now on no request comes to an answer."""
        self._url = url
        self._identity = identity
        self._session = session
        self._hold: Hold | None = None

    def hold(self, where: Literal["request", "answer"], *, agreements: int = 0) -> Hold:
        """Hold each request to evict before the server hears it, or each answer to one, as soon as the server has
        agreed to so many.
        """
        self._hold = Hold(where, agreements)
        return self._hold

    @property
    def agreed(self) -> list[str]:
        """The uids of the pods that the server has agreed to evict, once per agreement."""
        return [eviction.uid for eviction in self.evictions if eviction.status == 201]

    async def serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        """Pass a request on and its answer back."""
        body = await incoming.read()
        if self.is_dead:
            await anyio.sleep_forever()
        if incoming.method == "DELETE" and (pod := POD.match(incoming.path)):
            self.deletions.append(pod[2])
        eviction = EVICTION.match(incoming.path) if incoming.method == "POST" else None
        if eviction:
            await self._held_at("request")
        url = URL(self._url + incoming.raw_path, encoded=True)
        headers = {**self._identity.headers, "Accept-Encoding": "identity"}
        headers |= {key: incoming.headers[key] for key in ("Accept", "Content-Type") if key in incoming.headers}
        tls = self._identity.tls if self._identity.tls is not None else True
        async with self._session.request(incoming.method, url, data=body or None, headers=headers, ssl=tls) as answer:
            if eviction:
                uid = orjson.loads(body)["deleteOptions"]["preconditions"]["uid"]
                self.evictions.append(Eviction(eviction[1], eviction[2], uid, answer.status))
                await self._held_at("answer")
            outgoing = web.StreamResponse(
                status=answer.status, headers={key: answer.headers[key] for key in PASSED_ON if key in answer.headers}
            )
            try:
                await outgoing.prepare(incoming)
                async for chunk in answer.content.iter_any():
                    await outgoing.write(chunk)
                await outgoing.write_eof()
            except ConnectionResetError:
                pass  # the controller was killed, as some stories want it
        return outgoing

    async def _held_at(self, where: Literal["request", "answer"]) -> None:
        hold = self._hold
        if hold is not None and hold.where == where and len(self.agreed) >= hold.agreements:
            hold.reached.set()
            await hold.go_on.wait()


@asynccontextmanager
async def wire_to(kubeconfig: Path, folder: Path) -> AsyncIterator[Wire]:
    """A wire to the cluster of a kubeconfig; `folder` takes the kubeconfig of its near end."""
    found = await credentials.load(str(kubeconfig), clock=SystemClock())
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(trust_env=False, timeout=timeout, connector=connector) as session:
        wire = Wire(found.url, await found.identity(), session, folder / "wire-kubeconfig")
        runner = web.ServerRunner(
            web.Server(wire.serve, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            write_kubeconfig(wire.kubeconfig, f"http://{host}:{port}", name="wire")
            yield wire
        finally:
            await runner.cleanup()
