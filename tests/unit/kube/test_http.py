"""The transport against real servers on this machine: TLS, timeouts, broken connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from aiohttp import web
from kubesim_support.patience import PATIENCE
from msgspec.structs import replace
from support.servers import FixedToken, answering, event, lease

from gracectl.kube import errors
from gracectl.kube.auth.credentials import Credentials, CredentialsError, TokenFile, Trust
from gracectl.kube.auth.lookup import load
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.client.watch import HEAD, LONGEST_LINE, OversizeLine
from gracectl.kube.http import HttpSettings, HttpTransport, socket_noticing_death
from gracectl.kube.leader.election import Election, ElectionSettings
from gracectl.kube.resources import LEASES, NODES
from gracectl.kube.transport import Request, Stream
from gracectl.kube.transport.skew import SkewEstimate
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.fence import Fence
from gracectl.runtime.supervise import while_running

pytestmark = pytest.mark.real_time

CERTIFICATES = Path(__file__).parent / "certificates"
GET = Request(method="GET", path="/api/v1/nodes")
OURS = Trust(ca_file=str(CERTIFICATES / "ca.pem"))
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def server_tls() -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "ca.pem"))
    tls.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    tls.verify_mode = ssl.CERT_OPTIONAL
    return tls


def transport_to(
    port: int, credentials: Credentials | None = None, settings: HttpSettings | None = None
) -> HttpTransport:
    credentials = credentials or Credentials(f"http://127.0.0.1:{port}", FixedToken())
    return HttpTransport(credentials, SystemClock(), settings=settings)


async def echo(request: web.Request) -> web.Response:
    """What the server got."""
    return web.json_response(
        {
            "method": request.method,
            "path": request.raw_path,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": (await request.read()).decode(),
        }
    )


async def test_a_request_arrives_as_it_was_built() -> None:
    request = Request(
        method="PATCH", path="/api/v1/namespaces/n/pods/a%2Fb",
        query=(("labelSelector", "app in (a,b)"), ("dryRun", "All")), content_type="application/merge-patch+json",
        body=b'{"x":1}', impersonate="jane",
    )  # fmt: skip
    async with answering(echo) as port:
        credentials = Credentials(f"http://127.0.0.1:{port}/base/", FixedToken("Bearer secret"))
        async with transport_to(port, credentials) as transport:
            response = await transport.send(request)
    got = yaml.safe_load(response.body)
    assert response.status == 200
    assert response.headers["content-type"].startswith("application/json")
    assert (got["method"], got["body"]) == ("PATCH", '{"x":1}')
    assert got["path"] == "/base/api/v1/namespaces/n/pods/a%2Fb?labelSelector=app+in+%28a%2Cb%29&dryRun=All"
    headers = got["headers"]
    assert headers["authorization"] == "Bearer secret"
    assert headers["content-type"] == "application/merge-patch+json"
    assert headers["impersonate-user"] == "jane"
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"].startswith("gracectl/")


async def test_an_answer_of_any_status_is_an_answer() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/elsewhere", "Retry-After": "3"}, text="no")

    async with answering(refuse) as port, transport_to(port) as transport:
        response = await transport.send(GET)
    assert (response.status, response.headers["retry-after"], response.body) == (307, "3", b"no")


async def test_no_listener() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with transport_to(taken.getsockname()[1]) as transport:
            with pytest.raises(
                errors.Unreachable,
                match=r"the server cannot be reached: no connection to 127\.0\.0\.1:\d+: Connection refused",
            ) as caught:
                await transport.send(GET)
    assert not caught.value.sent


async def test_a_name_that_does_not_exist() -> None:
    credentials = Credentials("http://gracectl.invalid", FixedToken())
    async with transport_to(0, credentials) as transport:
        with pytest.raises(errors.Unreachable) as caught:
            await transport.send(GET)
    assert not caught.value.sent


@asynccontextmanager
async def raw_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncGenerator[int, None]:
    """A server that speaks bytes instead of HTTP."""

    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(session, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", b"SSH-2.0-OpenSSH_9.6\r\n"],
    ids=["hung up", "cut off", "not HTTP"],
)
async def test_a_connection_that_breaks_after_the_request_was_sent(said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    async with raw_server(talk) as port, transport_to(port) as transport:
        with pytest.raises(errors.Unreachable, match="the connection broke") as caught:
            await transport.send(GET)
    assert caught.value.sent


async def test_the_client_gives_up_on_a_server_that_does_not_answer() -> None:
    async def hang(request: web.Request) -> web.Response:
        await anyio.sleep(60)
        return web.Response()

    async with answering(hang) as port, transport_to(port) as transport:
        settings = ClientSettings(timeout=0.2, write_timeout=0.2, retry=RetrySettings(attempts=1))
        client = KubeClient(transport, SystemClock(), settings=settings)
        with pytest.raises(errors.RequestTimeout):
            await client.evict(("n", "a"), uid="u")
        with pytest.raises(errors.RequestTimeout):
            async with client.watch(LEASES, "7", timeout_seconds=300):
                pass


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count in other ways")
async def test_a_host_that_has_vanished_is_noticed_long_before_a_write_times_out() -> None:
    made = socket_noticing_death(10.0, (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1)))
    with made:
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


async def test_a_watch_line_may_be_as_long_as_an_object_with_every_character_escaped() -> None:
    long = event("ADDED", lease("a", 8, holder="<" * 1_500_000)).replace(b"<", b"\\u003c")
    assert len(long) > 9_000_000

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(long + event("ADDED", lease("b", 9)))
        return response

    async with answering(watch) as port, transport_to(port) as transport:
        client = KubeClient(transport, SystemClock())
        async with client.watch(LEASES, "7", timeout_seconds=300) as stream:
            names = [LEASES.decode(happened.object).name async for happened in stream.events()]
    assert names == ["a", "b"]


async def test_a_watch_goes_on_behind_a_line_that_is_too_long() -> None:
    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * (LONGEST_LINE + 1) + b"\n" + event("ADDED", lease("b", 9)) + b"half")
        return response

    async with answering(watch) as port, transport_to(port) as transport, transport.stream(GET) as stream:
        lines = [line async for line in stream.lines()]
    assert [(type(line), len(line)) for line in lines[:1]] == [(OversizeLine, HEAD)]
    assert lines[1:] == [event("ADDED", lease("b", 9)).rstrip(), b"half"]


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
async def test_lines_of_a_watch_gather_before_they_are_read_once_it_is_busy(is_encrypted: bool) -> None:
    is_read = anyio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        nonlocal is_read
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(int(request.query["limit"])):
            is_read = anyio.Event()
            await response.write(b"%d\n" % number)
            if number < 16:
                await is_read.wait()
        return response

    async def waits(lines: int, gathering: float) -> list[float]:
        settings = HttpSettings(gathering=gathering, busy=60.0)
        request = replace(GET, query=(("limit", str(lines)),))
        seen: list[float] = []
        async with transport_to(port, credentials, settings) as transport, transport.stream(request) as stream:
            async for line in stream.lines():
                assert line == b"%d" % len(seen)
                seen.append(anyio.current_time())
                is_read.set()
        assert len(seen) == lines
        return [after - before for before, after in pairwise(seen)]

    async with answering(watch, server_tls() if is_encrypted else None) as port:
        credentials = Credentials(f"http{'s' * is_encrypted}://127.0.0.1:{port}", FixedToken(), trust=OURS)
        with anyio.fail_after(PATIENCE):
            await waits(15, gathering=3600.0)
        # It gathers from when the 16th line is there, which is sent when the one before it has been seen.
        assert sum((await waits(21, gathering=0.5))[14:16]) >= 0.5


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
async def test_a_connection_that_is_lost_while_lines_gather_breaks_as_at_any_other_time(is_encrypted: bool) -> None:
    is_read = anyio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        nonlocal is_read
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(16):
            is_read = anyio.Event()
            await response.write(b"line\n")
            await is_read.wait()
        await anyio.sleep_forever()
        return response

    async def follow(stream: Stream) -> None:
        lines = 0
        async for _ in stream.lines():
            lines += 1
            is_read.set()
            if lines == 16:
                connection = vars(stream)["_answer"].connection
                asyncio.get_running_loop().call_later(0.1, connection.transport.abort)

    async with answering(watch, server_tls() if is_encrypted else None) as port:
        credentials = Credentials(f"http{'s' * is_encrypted}://127.0.0.1:{port}", FixedToken(), trust=OURS)
        settings = HttpSettings(gathering=0.5, busy=60.0)
        async with transport_to(port, credentials, settings) as transport, transport.stream(GET) as stream:
            with pytest.raises(errors.Unreachable):
                await follow(stream)


async def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 3_000_000)

    async with answering(serve) as port, transport_to(port) as transport:
        with pytest.raises(errors.TooLarge, match="more than 2,999,999 bytes"):
            await transport.send(replace(GET, largest=2_999_999))
        assert len((await transport.send(replace(GET, largest=3_000_000))).body) == 3_000_000


@pytest.mark.parametrize("silent", [False, True], ids=["cut off", "falls silent"])
async def test_a_watch_that_breaks(silent: bool) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
        await writer.drain()
        if silent:
            # Until the other side hangs up.
            await reader.read()

    async with (
        raw_server(talk) as port,
        transport_to(port, settings=HttpSettings(silence=0.2)) as transport,
        transport.stream(GET) as stream,
    ):
        lines = stream.lines()
        assert await anext(lines) == b"one"
        with pytest.raises(errors.Unreachable) as caught:
            await anext(lines)
    assert caught.value.sent


async def test_the_servers_clock_is_learnt_from_its_answers() -> None:
    async def late(request: web.Request) -> web.Response:
        return web.Response(headers={"Date": formatdate(began + 200.0, usegmt=True)})

    clock = SystemClock()
    began = clock.now()
    skew = SkewEstimate(clock.adjust)
    async with answering(late) as port:
        credentials = Credentials(f"http://127.0.0.1:{port}", FixedToken())
        async with HttpTransport(credentials, clock, skew=skew) as transport:
            for _ in range(4):
                await transport.send(GET)
    passed = clock.now() - began
    assert 200 - passed - 2 <= skew.statistics().offset <= 201  # a header names whole seconds


async def test_a_pool_full_of_requests_that_hang_does_not_keep_the_lease_from_being_renewed() -> None:
    stored: dict[str, Any] = {}

    async def serve(request: web.Request) -> web.StreamResponse:
        if "leases" not in request.path:
            hanging.append(request)
            await anyio.sleep_forever()
        if request.method == "GET" and "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await anyio.sleep_forever()
        if request.method == "GET" and request.path.endswith("leases"):
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        if request.method == "GET" and not stored:
            details = {"name": "gracectl", "kind": "leases"}
            return web.json_response({"kind": "Status", "code": 404, "details": details}, status=404)
        if request.method != "GET":
            stored.update(await request.json())
            stored["metadata"]["resourceVersion"] = str(len(renewed))
            renewed.append(len(hanging))
            if renewed.count(3) == 4:
                enough.set()
        return web.json_response(stored)

    async def lead() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(client.get, NODES, ("", "a"))

    hanging: list[web.Request] = []
    renewed: list[int] = []
    enough = anyio.Event()
    settings = ElectionSettings(namespace="n", name="gracectl", identity="me", retry_period=0.05)
    async with answering(serve) as port, transport_to(port, settings=HttpSettings(connections=3)) as transport:
        clock = SystemClock()
        client = KubeClient(transport, clock)
        election = Election(transport, clock, Fence(clock), settings)
        async with while_running(partial(election.run, lead)):
            await enough.wait()
            assert election.is_leading


@pytest.mark.parametrize(("idle", "connections"), [(0.01, 2), (60.0, 1)])
async def test_an_unused_connection_is_kept_for_the_next_wave(idle: float, connections: int) -> None:
    seen = set()

    async def noted(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen.add(request.transport.get_extra_info("peername"))
        return web.json_response({})

    # The API server closes one after 90 s: one that we use is never about to be closed.
    assert 60 <= HttpSettings().idle < 90
    async with answering(noted) as port, transport_to(port, settings=HttpSettings(idle=idle)) as transport:
        await transport.send(GET)
        await anyio.sleep(0.05)
        await transport.send(GET)
    assert len(seen) == connections


async def test_a_refused_token_is_renewed_once_and_the_request_repeated(tmp_path: Path) -> None:
    seen: list[str] = []

    async def picky(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.Response(status=200 if seen[-1] == "Bearer new" else 401)

    token = tmp_path / "token"
    token.write_text("old")
    async with answering(picky) as port:
        credentials = Credentials(f"http://127.0.0.1:{port}", TokenFile(token, SystemClock()))
        async with transport_to(port, credentials) as transport:
            assert (await transport.send(GET)).status == 401
            token.write_text("new")
            assert (await transport.send(GET)).status == 200
    assert seen == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_token_that_cannot_be_had_is_an_unauthorized_request() -> None:
    credentials = Credentials("http://127.0.0.1:1", TokenFile(Path("/nonexistent"), SystemClock()))
    async with transport_to(0, credentials) as transport:
        with pytest.raises(errors.Unauthorized, match="the token cannot be read"):
            await transport.send(GET)


@pytest.fixture
async def secure() -> AsyncGenerator[int, None]:
    """The port of a server with TLS that asks for client certificates, and responds with their name."""

    async def who(request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None
        certificate = transport.get_extra_info("peercert") or {}
        names = {field[0][0]: field[0][1] for field in certificate.get("subject", ())}
        return web.Response(text=names.get("commonName", "anonymous"))

    async with answering(who, server_tls()) as port:
        yield port


async def test_a_client_certificate_of_a_kubeconfig_is_presented(secure: int, tmp_path: Path) -> None:
    config = {
        "current-context": "one", "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": f"https://127.0.0.1:{secure}", "certificate-authority": str(CERTIFICATES / "ca.pem"),
                },
            },
        ],
        "users": [
            {
                "name": "u",
                "user": {
                    "client-certificate": str(CERTIFICATES / "client.pem"),
                    "client-key": str(CERTIFICATES / "client.key"),
                },
            },
        ],
    }  # fmt: skip
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    credentials = await load(str(path), clock=SystemClock())
    async with transport_to(secure, credentials) as transport:
        assert (await transport.send(GET)).body == b"gracectl"


async def test_tls_without_a_client_certificate(secure: int) -> None:
    credentials = Credentials(f"https://127.0.0.1:{secure}", FixedToken(), trust=OURS)
    async with transport_to(secure, credentials) as transport:
        assert (await transport.send(GET)).body == b"anonymous"


async def test_a_server_that_is_not_the_one_we_trust_sees_nothing_of_the_request(secure: int) -> None:
    # In debug mode asyncio tells the loop of every handshake that a server of its own could not finish.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    others = Trust(ca_file=str(CERTIFICATES / "other-ca.pem"))
    for trust, reason, remedy in (
        (others, "its certificate is not trusted: ", "check certificate-authority or"),
        (replace(OURS, server_name="impostor.example"), "not valid for 'impostor.example'", "set tls-server-name"),
    ):
        credentials = Credentials(f"https://127.0.0.1:{secure}", FixedToken("Bearer secret"), trust=trust)
        async with transport_to(secure, credentials) as transport:
            with pytest.raises(errors.Unreachable, match=reason) as caught:
                await transport.send(GET)
        assert not caught.value.sent
        assert f"no TLS connection to 127.0.0.1:{secure}: " in str(caught.value)
        assert "object at" not in str(caught.value)
        assert remedy in caught.value.remedy


async def test_a_server_without_tls_is_told_from_one_that_is_not_trusted() -> None:
    async def ok(request: web.Request) -> web.Response:
        return web.Response()

    async with answering(ok) as port:
        credentials = Credentials(f"https://127.0.0.1:{port}", FixedToken(), trust=OURS)
        async with transport_to(port, credentials) as transport:
            with pytest.raises(errors.Unreachable) as caught:
                await transport.send(GET)
    assert str(caught.value).endswith(f"no TLS connection to 127.0.0.1:{port}: wrong version number")
    assert "check scheme and port" in caught.value.remedy


async def test_another_name_for_the_server_and_no_check_at_all(secure: int) -> None:
    for trust in (replace(OURS, server_name="kubernetes.example"), Trust(verify=False)):
        credentials = Credentials(f"https://127.0.0.1:{secure}", FixedToken(), trust=trust)
        async with transport_to(secure, credentials) as transport:
            assert (await transport.send(GET)).status == 200


def test_a_key_that_is_none_is_said_at_once() -> None:
    key = str(CERTIFICATES / "server.key")
    trust = replace(OURS, certificate_file=str(CERTIFICATES / "client.pem"), key_file=key)
    with pytest.raises(CredentialsError, match="the TLS certificates cannot be used"):
        Credentials("https://127.0.0.1", FixedToken(), trust=trust)


async def test_a_transport_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        await transport_to(1).send(GET)
