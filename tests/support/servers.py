"""API servers and other servers of a test: scripted or silent, on sockets or without; ports and tokens."""

from __future__ import annotations

import json
import random
import socket
import ssl
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import msgspec
import yaml
from aiohttp import web

from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.identity import ClusterIdentity
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.leader.settings import LEASE_NAME
from gracectl.kube.resources import LEASES
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import Operation, operation_of
from gracectl.model import names
from gracectl.model.meta import Lease
from gracectl.model.times import format_time
from gracectl.runtime.clock import Clock, LoopClock, SystemClock
from gracectl.runtime.supervise import while_running
from gracectl.telemetry.server import SHUTDOWN_SECONDS, Endpoint, Servers

# An API server that follows a script: what it answers, when, and how its streams end.

# What a step of a script may be: an answer, a failure, seconds to let pass first, or a function of the request.
Step = Response | Exception | float | Callable[[Request], Response]
# What a stream may bring: a line, a failure, or seconds of silence. When it runs out the server ends the stream.
Item = bytes | Exception | float
FOREVER = float("inf")


def answer(body: Any = None, status: int = 200, **headers: str) -> Response:
    """An answer with a JSON body (`retry_after="1"` becomes the header Retry-After)."""
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body if body is not None else {})
    return Response(status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=encoded)


def refusal(status: int, reason: str = "", message: str = "because", **details: Any) -> Response:
    """An answer with a Status; `details` as the API spells them."""
    return answer(
        {
            "kind": "Status",
            "status": "Failure",
            "code": status,
            "reason": reason,
            "message": message,
            "details": details,
        },
        status,
    )


def lease(name: str, version: int, *, uid: str = "", holder: str = "") -> dict[str, Any]:
    """A small object to list and watch: a Lease of namespace `n`."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": "n", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
        "spec": {"holderIdentity": holder},
    }


def page(version: int, *items: Mapping[str, Any], token: str = "") -> Response:
    """One page of a list."""
    return answer({"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(items)})


def event(type_: str, thing: Mapping[str, Any]) -> bytes:
    """One line of a watch."""
    return msgspec.json.encode({"type": type_, "object": thing}) + b"\n"


def bookmark(version: int) -> bytes:
    """A bookmark as a real server writes it (recording `watch-versions`)."""
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return event("BOOKMARK", {"kind": "Lease", "metadata": meta, "spec": {}})


def expired() -> bytes:
    """The ERROR event of lost history."""
    return event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


class ScriptedStream:
    """A stream that brings `items`."""

    def __init__(self, clock: Clock, items: list[Item], status: int = 200, body: bytes = b"") -> None:
        self._clock = clock
        self._items = items
        self._body = body
        self.status = status
        self.headers: Mapping[str, str] = {}

    async def lines(self) -> AsyncGenerator[bytes, None]:
        for item in self._items:
            if isinstance(item, bytes):
                yield item
            elif isinstance(item, Exception):
                raise item
            elif item == FOREVER:
                await anyio.sleep_forever()
            else:
                await self._clock.sleep(item)

    async def read(self) -> bytes:
        return self._body


class ScriptedTransport:
    """Plays `answers` one after the other, and `streams` likewise; remembers what was asked, and when.

    Once the streams are used up, further ones stay open and silent.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.answers: deque[Step] = deque()
        self.streams: deque[list[Item] | Response | Exception] = deque()
        self.asked: list[tuple[float, Request]] = []

    async def send(self, request: Request) -> Response:
        self.asked.append((self.clock.monotonic(), request))
        while True:
            step = self.answers.popleft()
            if isinstance(step, float):
                await self.clock.sleep(step)
            elif isinstance(step, Exception):
                raise step
            else:
                return step if isinstance(step, Response) else step(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        self.asked.append((self.clock.monotonic(), request))
        script: list[Item] | Response | Exception = self.streams.popleft() if self.streams else [FOREVER]
        if isinstance(script, Exception):
            raise script
        if isinstance(script, Response):
            yield ScriptedStream(self.clock, [], script.status, script.body)
        else:
            yield ScriptedStream(self.clock, script)

    @property
    def instants(self) -> list[float]:
        """When the requests came."""
        return [instant for instant, _ in self.asked]

    @property
    def story(self) -> list[str]:
        """What the requests were: `list leases`, `watch leases @7`."""
        return [_summary(request) for _, request in self.asked]

    def body(self, index: int = -1) -> Any:
        """The decoded body of one request."""
        return msgspec.json.decode(self.asked[index][1].body or b"null")


def _summary(request: Request) -> str:
    operation = operation_of(request)
    query = dict(request.query)
    place = f" {quote(operation.name)}" if operation.name else ""
    version = f" @{query['resourceVersion']}" if "resourceVersion" in query else ""
    token = f" {query['continue']}" if "continue" in query else ""
    return f"{operation.verb} {operation.resource}{place}{version}{token}"


# A reflector on a scripted server: what its cache tells, and when.

LOST = errors.Unreachable(Operation("watch", "", "leases", "", "", ""), "reset by peer", sent=True)


class FullLength(random.Random):
    """No jitter: every pause at its full length, every watch for the longest time."""

    def random(self) -> float:
        return 0.0

    def uniform(self, a: float, b: float) -> float:
        return b

    def randint(self, a: int, b: int) -> int:
        return b


class World:
    """A scripted server, a cache that follows it, and what the cache told when."""

    def __init__(
        self,
        settings: ReflectorSettings | None = None,
        rng: random.Random | None = None,
        *,
        with_identity: bool = False,
    ) -> None:
        self.clock = LoopClock()
        self.transport = ScriptedTransport(self.clock)
        # One attempt: the reflector's own pauses are what is looked at here.
        once = ClientSettings(retry=RetrySettings(attempts=1))
        client = KubeClient(self.transport, self.clock, settings=once)
        self.cache: Cache[Lease] = Cache("leases")
        self.cache.subscribe(self._told)
        identity = ClusterIdentity(client, self.clock)
        identity.is_compared = with_identity
        self.reflector = Reflector(client, LEASES, self.cache, self.clock, settings=settings, rng=rng or FullLength())
        self.reflector.identity = identity
        self.told: list[tuple[float, str]] = []

    def _told(self, old: Lease | None, new: Lease | None) -> None:
        change = "+" if old is None else "-" if new is None else "~"
        thing = new or old
        assert thing is not None
        self.told.append((self.clock.monotonic(), f"{change}{thing.name}:{thing.uid.removeprefix('uid-')}"))

    @property
    def dedup_key(self) -> list[str]:
        return [change for _, change in self.told]

    @asynccontextmanager
    async def running(self, seconds: float) -> AsyncGenerator[None, None]:
        """Run the reflector for so many seconds, then look."""
        async with while_running(self.reflector.run):
            await self.clock.sleep(seconds)
            yield


# API servers that stop answering, for commands.

NODES = "/api/v1/nodes"
NAMED = (NODES, "/api/v1/namespaces?")
"""What is answered with the names of the nodes."""
LEASES_PATH = "/apis/coordination.k8s.io/"
EMPTY = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []}


class Mute:
    """A server of some nodes that knows nothing else. A DELETE of one in `silent` is never answered; `deaf`: nor is
    anything else."""

    def __init__(self, nodes: tuple[str, ...], silent: tuple[str, ...], *, deaf: bool) -> None:
        self.nodes = nodes
        self.silent = silent
        self.deaf = deaf
        self.asked = {name: threading.Event() for name in ("", *nodes)}
        """By name of the node, whether its deletion was requested; "" stands for any request."""
        self.over = threading.Event()

    def listed(self) -> Any:
        """The nodes, held by our finalizer."""
        metadata = {
            "resourceVersion": "7", "finalizers": [names.FINALIZER], "creationTimestamp": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        items = [{"metadata": {"name": name, "uid": f"uid-{name}", **metadata}} for name in self.nodes]
        return {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items}


def held_lease() -> Any:
    """A controller leads."""
    spec = {"holderIdentity": "c", "leaseDurationSeconds": 15, "renewTime": format_time(SystemClock().now())}
    item = {"metadata": {"name": LEASE_NAME, "namespace": "gracectl", "resourceVersion": "7"}, "spec": spec}
    return {"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "items": [item]}


@contextmanager
def mute(folder: Path, *nodes: str, silent: tuple[str, ...] = (), deaf: bool = False) -> Iterator[tuple[Mute, Path]]:
    """The server, and a kubeconfig for it, while the block lasts."""
    state = Mute(nodes, silent, deaf=deaf)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.asked[""].set()
            if state.deaf:
                state.over.wait(60)
            else:
                is_lease = self.path.startswith(LEASES_PATH)
                self._answer(held_lease() if is_lease else state.listed() if self.path.startswith(NAMED) else EMPTY)

        def do_DELETE(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            name = self.path.rpartition("/")[2]
            state.asked[name].set()
            if name in state.silent:
                state.over.wait(60)
            else:
                self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def _answer(self, body: Any) -> None:
            encoded = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *args: object) -> None:
            """Discard it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        kubeconfig = folder / "mute"
        here = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
        config = {
            "clusters": [{"name": "c", "cluster": here}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
        }  # fmt: skip
        kubeconfig.write_text(yaml.safe_dump(config))
        try:
            yield state, kubeconfig
        finally:
            state.over.set()
            server.shutdown()
            thread.join()


# Servers that answer over real sockets, for as long as a test wants.


@asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int, None]:
    """The port of a server that answers every request with `handler`; this is cancelled when the client goes."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(
    *doors: Endpoint, grace_seconds: float = SHUTDOWN_SECONDS, before_close: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[tuple[Servers, Mapping[str, str]]]:
    """Servers that run, and the URL of each path."""
    servers = Servers(doors, LoopClock(), grace_seconds=grace_seconds)
    urls = await servers.open()
    async with while_running(partial(servers.run, before_close)):
        yield servers, urls


# Ports that a test names before it listens.

HOST = "127.0.0.1"
# Below those that Linux gives to connections: one of these could take the port before the test does.
_RANGE = range(20_000, 32_000)
_chance = random.SystemRandom()


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 at which nothing listens at the moment."""
    ports: list[int] = []
    while len(ports) < number:
        port = _chance.choice(_RANGE)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]


# Credentials that tests make themselves.


class FixedToken:
    """TokenSource of a header that never changes, "" for none."""

    def __init__(self, value: str = "") -> None:
        self._value = value

    async def header(self) -> str:
        """See TokenSource."""
        return self._value

    async def renew(self) -> bool:
        """See TokenSource."""
        return False
