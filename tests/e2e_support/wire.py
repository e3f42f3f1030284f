"""The wire between a controller and its API server, as a plain HTTP proxy: requests are recorded, not assumed.

It speaks to the server with our identity, so it stands before any cluster. Evictions can be held, before the server
hears of them or before the controller hears the answer: the instants in which a process likes to be killed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import anyio
import orjson
from aiohttp import web
from kubesim.serving import write_kubeconfig

from benchmarks.ground.relay import Relay, passed_back, relay_to, served

EVICTION = re.compile(r"^/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction$")
POD = re.compile(r"^/api/v1/namespaces/([^/]+)/pods/([^/]+)$")


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

    def __init__(self, relay: Relay, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.evictions: list[Eviction] = []
        self.deletions: list[str] = []
        """The names of the pods in requests for deletion, once for each request."""
        self.is_dead = False
        """From now on no request comes to an answer."""
        self._is_cut = False
        self._open: set[asyncio.Transport] = set()
        self._relay = relay
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

    def cut(self) -> None:
        """Break every connection, watches included, and each new one until `join`."""
        self._is_cut = True
        for each in self._open:
            each.abort()

    def join(self) -> None:
        """Pass requests on again."""
        self._is_cut = False

    async def serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        """Pass a request on and its answer back."""
        transport = incoming.transport
        assert transport is not None
        self._open.add(transport)
        try:
            if self._is_cut:
                transport.abort()
                raise web.HTTPServiceUnavailable
            return await self._served(incoming)
        finally:
            self._open.discard(transport)

    async def _served(self, incoming: web.BaseRequest) -> web.StreamResponse:
        body = await incoming.read()
        if self.is_dead:
            await anyio.sleep_forever()
        if incoming.method == "DELETE" and (pod := POD.match(incoming.path)):
            self.deletions.append(pod[2])
        eviction = EVICTION.match(incoming.path) if incoming.method == "POST" else None
        if eviction:
            await self._held_at("request")
        async with self._relay.asked(incoming, body) as answer:
            if eviction:
                uid = orjson.loads(body)["deleteOptions"]["preconditions"]["uid"]
                self.evictions.append(Eviction(eviction[1], eviction[2], uid, answer.status))
                await self._held_at("answer")
            return await passed_back(incoming, answer)

    async def _held_at(self, where: Literal["request", "answer"]) -> None:
        hold = self._hold
        if hold is not None and hold.where == where and len(self.agreed) >= hold.agreements:
            hold.reached.set()
            await hold.go_on.wait()


@asynccontextmanager
async def wire_to(kubeconfig: Path, folder: Path, more: Mapping[str, str] | None = None) -> AsyncIterator[Wire]:
    """A wire to the cluster of a kubeconfig; `folder` takes the kubeconfig of its near end, `more`: see Relay."""
    async with relay_to(kubeconfig, more) as relay:
        wire = Wire(relay, folder / "wire-kubeconfig")
        async with served(wire.serve) as url:
            write_kubeconfig(wire.kubeconfig, url, name="wire")
            yield wire
