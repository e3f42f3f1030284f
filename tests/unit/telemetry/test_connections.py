"""Connections of clients that do not do their part: none of them costs what others need. Over real sockets."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web
from anyio.abc import SocketStream
from kubesim_support.patience import PATIENCE
from support.servers import serving
from support.virtual import HandClock

from gracectl.runtime.certificates import issue, load
from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.connections import BodyReader, BodyRefused, Limits
from gracectl.telemetry.exposition import Exposition
from gracectl.telemetry.metrics import PROTECTED_PODS, Sample
from gracectl.telemetry.server import Endpoint, Servers

pytestmark = pytest.mark.real_time

HEAD = b"POST /take HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n"
BRIEF, IDLE = 0.5, 2.0
MIB = 1024 * 1024


async def take(request: web.BaseRequest, bodies: BodyReader) -> web.Response:
    """Says how long a body is."""
    try:
        async with bodies.read(request) as body:
            return web.Response(text=f"{len(body)} bytes")
    except BodyRefused as error:
        return web.Response(status=error.status, text=str(error))


async def big(request: web.BaseRequest, _: BodyReader) -> web.Response:
    """More than sockets hold of an answer that is not read."""
    return web.Response(body=b"x" * 32 * MIB)


class Place:
    """A server at a port."""

    def __init__(self, servers: Servers, port: int) -> None:
        self.servers = servers
        self.port = port

    @property
    def dropped(self) -> Mapping[str, int]:
        """What was closed from our side, where it is anything."""
        return {cause: number for cause, number in self.servers.statistics()["x"].dropped.items() if number}

    @property
    def open(self) -> int:
        """Connections."""
        return self.servers.statistics()["x"].open

    async def until(self, dropped: Mapping[str, int]) -> None:
        """Wait for connections to be closed from our side."""
        with anyio.fail_after(PATIENCE):
            while self.dropped != dropped:
                await LoopClock().sleep(0.005)

    async def ask(self, head: bytes = HEAD, body: bytes = b"hello") -> bytes:
        """A request of a client that does its part; the whole answer."""
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            await stream.send(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return await rest_of(stream)


@asynccontextmanager
async def place(limits: Limits, tls: ssl.SSLContext | None = None) -> AsyncIterator[Place]:
    post = Endpoint(
        "x", "127.0.0.1:0", {"/take": take}, method="POST", limits=limits, tls=(lambda: tls) if tls else None
    )
    get = Endpoint("y", "127.0.0.1:0", {"/big": big})
    async with serving(post, get) as (servers, urls):
        port = int(urls["/take"].rpartition(":")[2].removesuffix("/take"))
        yield Place(servers, port)


async def rest_of(stream: SocketStream) -> bytes:
    """All that comes until the other side closes."""
    body = b""
    with anyio.fail_after(PATIENCE):
        try:
            while True:
                body += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return body


@pytest.mark.parametrize("sent", [b"", b"POST /take HTTP/1.1\r\nHo", HEAD + b"A: b\r\n"])
async def test_a_header_that_does_not_end_ends_the_connection(sent: bytes) -> None:
    async with place(Limits(header=BRIEF)) as there, await anyio.connect_tcp("127.0.0.1", there.port) as stream:
        if sent:
            await stream.send(sent)
        assert await rest_of(stream) == b""
        assert there.dropped == {"header": 1}
        assert (await there.ask()).endswith(b"5 bytes")


async def test_a_body_that_does_not_end_is_answered_with_408() -> None:
    async with (
        place(Limits(body=BRIEF, linger=BRIEF)) as there,
        await anyio.connect_tcp("127.0.0.1", there.port) as stream,
    ):
        await stream.send(HEAD + b"Connection: close\r\nContent-Length: 100\r\n\r\nhel")
        answer = await rest_of(stream)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"body incomplete after 0.5 s")


async def test_a_connection_that_is_idle_for_too_long_ends_and_one_in_use_stays() -> None:
    async with place(Limits(idle=IDLE)) as there, await anyio.connect_tcp("127.0.0.1", there.port) as stream:
        began = anyio.current_time()
        while anyio.current_time() < began + 1.5 * IDLE:
            await stream.send(HEAD + b"Content-Length: 2\r\n\r\nhi")
            assert (await stream.receive()).endswith(b"2 bytes")
            await anyio.sleep(BRIEF)
        assert await rest_of(stream) == b""
        assert there.dropped == {}  # that is no fault


async def test_an_answer_that_is_not_read_ends_the_connection() -> None:
    async with place(Limits(writing=BRIEF)) as there, await anyio.connect_tcp("127.0.0.1", there.port) as stream:
        await stream.send(GET)
        await there.until({"writing": 1})
        assert there.open == 0


async def test_a_handshake_that_does_not_end_ends_the_connection_and_others_are_served() -> None:
    context, pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), issue(("a",), LoopClock().now(), 1000.0)
    load(context, pair.pair)
    async with place(Limits(handshake=BRIEF), context) as there:
        async with await anyio.connect_tcp("127.0.0.1", there.port) as stream:
            assert await rest_of(stream) == b""
            assert there.dropped == {"handshake": 1}
        trusting = ssl.create_default_context(cadata=pair.authority.decode())
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        async with await anyio.connect_tcp(
            "127.0.0.1", there.port, ssl_context=trusting, tls_hostname="a", tls_standard_compatible=False
        ) as secure:
            await secure.send(HEAD + b"Content-Length: 2\r\n\r\nhi")
            assert (await secure.receive()).endswith(b"2 bytes")


async def test_of_too_many_connections_those_of_the_peer_that_has_most_go_and_others_are_served() -> None:
    async with place(Limits(connections=8)) as there:
        idle = await anyio.connect_tcp("127.0.0.1", there.port, local_host="127.0.0.2")
        await idle.send(HEAD + b"Content-Length: 2\r\n\r\nhi")
        assert (await idle.receive()).endswith(b"2 bytes")
        holding = [await anyio.connect_tcp("127.0.0.1", there.port) for _ in range(20)]
        await there.until({"crowded": 13})
        assert there.open == 8
        # The oldest have gone, and the client with one connection has kept it.
        assert await rest_of(holding[0]) == b""
        await idle.send(HEAD + b"Content-Length: 2\r\n\r\nhi")
        assert (await idle.receive()).endswith(b"2 bytes")
        assert (await there.ask()).endswith(b"5 bytes")
        for each in (idle, *holding):
            await each.aclose()


async def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    async with (
        place(Limits(largest_body=100, linger=BRIEF)) as there,
        await anyio.connect_tcp("127.0.0.1", there.port) as stream,
    ):
        await stream.send(HEAD + b"Connection: close\r\nContent-Length: 101\r\n\r\n")
        assert (await rest_of(stream)).startswith(b"HTTP/1.1 413 ")
    async with (
        place(Limits(largest_body=100, linger=BRIEF)) as there,
        await anyio.connect_tcp("127.0.0.1", there.port) as stream,
    ):
        chunk = b"65\r\n" + b"x" * 101 + b"\r\n0\r\n\r\n"
        await stream.send(HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
        assert (await rest_of(stream)).startswith(b"HTTP/1.1 413 ")


async def test_of_bodies_that_are_too_much_together_the_largest_unfinished_one_goes() -> None:
    async with place(Limits(largest_body=8 * MIB, bodies=8 * MIB)) as there:
        held = [await anyio.connect_tcp("127.0.0.1", there.port) for _ in range(3)]
        for each, size in zip(held, (6, 1, 2), strict=True):
            await each.send(HEAD + b"Content-Length: %d\r\n\r\n" % (size * MIB + 1) + b"x" * (size * MIB))
        assert (await held[0].receive()).startswith(b"HTTP/1.1 503 ")
        assert (await there.ask(body=b"y" * MIB)).endswith(b"1048576 bytes")
        for each, size in zip(held[1:], (1, 2), strict=True):
            await each.send(b"x")
            assert (await each.receive()).endswith(b"%d bytes" % (size * MIB + 1))
        for each in held:
            await each.aclose()


async def test_bodies_give_back_what_they_have_held() -> None:
    limits = Limits(largest_body=MIB, bodies=MIB, body=BRIEF, linger=BRIEF)
    async with place(limits) as there:
        for _ in range(3):
            assert (await there.ask(body=b"y" * MIB)).endswith(b"1048576 bytes")
            async with await anyio.connect_tcp("127.0.0.1", there.port) as stream:
                await stream.send(HEAD + b"Content-Length: %d\r\n\r\n" % MIB + b"y" * (MIB // 2))
            async with await anyio.connect_tcp("127.0.0.1", there.port) as stream:
                await stream.send(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % MIB + b"y" * (MIB // 2))
                assert (await rest_of(stream)).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [HEAD + b"Content-Length: 0\r\n\r\n", GET.replace(b"big", b"no"), b"nonsense\r\n\r\n"])
async def test_no_answer_says_which_software_has_made_it(sent: bytes) -> None:
    async with place(Limits()) as there, await anyio.connect_tcp("127.0.0.1", there.port) as stream:
        await stream.send(sent)
        answer = await stream.receive()
        assert answer.startswith(b"HTTP/1.")
        assert b"erver:" not in answer
        assert b"aiohttp" not in answer.lower()


async def test_a_storm_of_connections_leaves_the_event_loop_its_turns() -> None:
    """However many wait to be accepted, each turn of the loop accepts one."""
    async with place(Limits(connections=400)) as there:
        clients = []
        for _ in range(100):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", there.port))
            clients.append(client)
        seen = []
        while there.open < 100:
            seen.append(there.open)
            await anyio.lowlevel.checkpoint()
        assert max(after - before for before, after in pairwise(seen)) <= 1
        for each in clients:
            each.close()


async def test_scrapes_at_once_are_answered_by_one_reading() -> None:
    readings: list[int] = []

    def source() -> list[Sample]:
        readings.append(1)
        return [Sample(PROTECTED_PODS, ("do-not-disrupt", "time"), len(readings))]

    exposition = Exposition(HandClock(), (source,))
    bodies: list[bytes] = []

    async def scrape() -> None:
        bodies.append((await exposition.render())[0])

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(scrape)
    assert len(readings) == 1
    assert len(set(bodies)) == 1
    await scrape()
    assert len(readings) == 2


async def test_a_reading_that_took_long_is_used_again_for_four_times_as_long() -> None:
    clock, readings = HandClock(), []

    def source() -> list[Sample]:
        readings.append(clock.seconds)
        clock.seconds += 2.0
        return []

    exposition = Exposition(clock, (source,))
    for at in (100.0, 109.9, 110.0):
        clock.seconds = at
        await exposition.render()
    assert readings == [100.0, 110.0]
