"""Pods with real servers, and the requests of their clients: what a drain costs is counted, not computed.

Each running pod gets a server process, which gets SIGTERM when the pod terminates. The pod is Ready some seconds after
its server listens, as by a readiness probe. Clients send requests at a constant rate to the Ready pods of a Service, as
a proxy that knows its endpoints would.
"""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import aiohttp
import anyio
import anyio.abc
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.client import STRATEGIC
from kubesim.controllers.objects import is_ready, is_terminating, key_of, labels_of, phase_of
from kubesim.controllers.paths import PODS, path_of
from kubesim.controllers.podstatus import readiness
from kubesim.server.api import JsonObject

from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import while_running

REQUEST_SECONDS: Final = 0.02
"""Between two requests to one Service."""
LONGEST_SECONDS: Final = 30.0
"""A request that takes longer has failed."""
COMMAND: Final = (sys.executable, "-m", "gracectl.cli.demo_server")


class Clients:
    """Requests to the Service that selects `app`, and what became of them."""

    def __init__(self, app: str) -> None:
        self.app = app
        self.requests = 0
        self.failed = 0
        self.down_seconds = 0.0
        """Time without a Ready endpoint."""
        self.ports: dict[str, int] = {}
        """Of Ready pods, by UID."""
        self._turns = itertools.count()
        self._down_since: float | None = None

    def note(self, uid: str, port: int | None, now: float) -> None:
        """A pod is an endpoint (with its port), or none any longer. `now`: monotonic."""
        if port is not None:
            self.ports[uid] = port
        else:
            self.ports.pop(uid, None)
        if self.ports and self._down_since is not None:
            self.down_seconds += now - self._down_since
            self._down_since = None
        elif not self.ports and self._down_since is None:
            self._down_since = now

    def reset(self) -> None:
        """Count from now on."""
        self.requests = self.failed = 0
        self.down_seconds = 0.0

    async def send(self, session: aiohttp.ClientSession) -> None:
        """Send one request to the next endpoint."""
        self.requests += 1
        ports = list(self.ports.values())
        if not ports:
            self.failed += 1
            return
        try:
            async with session.get(f"http://127.0.0.1:{ports[next(self._turns) % len(ports)]}/") as response:
                self.failed += response.status != 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.failed += 1


class Traffic:
    """Servers of all pods with these values of label `app`, and their clients."""

    def __init__(self, cluster: EmbeddedCluster, clock: Clock, apps: tuple[str, ...], warm_up: float) -> None:
        """`warm_up`: seconds from when a server listens until its pod is Ready."""
        self.clients = {app: Clients(app) for app in apps}
        self._cluster = cluster
        self._clock = clock
        self._warm_up = warm_up
        self._ports: dict[str, int] = {}
        self._stops: dict[str, anyio.Event] = {}
        self._group: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run servers and clients during the block."""
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=LONGEST_SECONDS)
        pods = self._cluster.informers.of(PODS)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            anyio.create_task_group() as self._group,
        ):
            pods.subscribe(self._pod_changed)
            for clients in self.clients.values():
                self._group.start_soon(self._send, clients, session)
            yield
            pods.unsubscribe(self._pod_changed)
            self._group.cancel_scope.cancel()

    async def _send(self, clients: Clients, session: aiohttp.ClientSession) -> None:
        async with anyio.create_task_group() as group:
            while True:
                group.start_soon(clients.send, session)
                await self._clock.sleep(REQUEST_SECONDS)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        pod = new or old
        clients = None if pod is None else self.clients.get(labels_of(pod).get("app", ""))
        if pod is None or clients is None or self._group is None:
            return
        uid = pod["metadata"]["uid"]
        is_over = new is None or is_terminating(pod)
        if is_over and uid in self._stops:
            self._stops[uid].set()
        elif not is_over and phase_of(pod) == "Running" and uid not in self._stops:
            self._stops[uid] = anyio.Event()
            self._group.start_soon(self._serve, pod)
        is_endpoint = not is_over and is_ready(pod)
        clients.note(uid, self._ports.get(uid) if is_endpoint else None, self._clock.monotonic())

    async def _serve(self, pod: JsonObject) -> None:
        """Run the server of a pod until it has ended."""
        uid = pod["metadata"]["uid"]
        async with await anyio.open_process(COMMAND, stdin=None, stderr=None) as process:
            try:
                assert process.stdout is not None
                self._ports[uid] = int(await process.stdout.receive())
                async with while_running(partial(self._become_ready, pod)):
                    await self._stops[uid].wait()
                process.send_signal(signal.SIGTERM)
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()

    async def _become_ready(self, pod: JsonObject) -> None:
        """Play the readiness probe."""
        await self._clock.sleep(self._warm_up)
        patch = {"status": readiness(pod, ready=True, now=self._clock.now())}
        path = path_of(PODS, *key_of(pod), "status")
        await self._cluster.api.call("PATCH", path, patch, content_type=STRATEGIC)
