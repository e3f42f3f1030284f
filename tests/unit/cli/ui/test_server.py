"""The server of the board over real sockets: page, snapshot, stream, refusals."""

from __future__ import annotations

import base64
import gzip
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
from kubesim_support.patience import PATIENCE
from support.boards import BoardStage, applied
from support.builders import going, replica
from support.servers import serving

from gracectl.cli.ui import server, stream
from gracectl.cli.ui.access import HEADERS, Access, TokenFile
from gracectl.cli.ui.server import BoardServer, page_files
from gracectl.cli.ui.stream import PART
from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.server import Servers

pytestmark = pytest.mark.real_time


class Client:
    """A client of the board, and its server."""

    def __init__(
        self, stage: BoardStage, server: BoardServer, servers: Servers, url: str, session: aiohttp.ClientSession
    ) -> None:
        self.stage = stage
        self.servers = servers
        self.server = server
        self.url = url
        self.session = session

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method, self.url + path, headers=named, allow_redirects=False, auto_decompress=False
        ) as answer:
            return answer.status, answer.headers, await answer.read()

    @property
    def connections(self) -> list[Any]:
        return [each for listener in self.servers._listeners for each in listener.connections._open]

    async def board(self) -> Any:
        return json.loads((await self.get("/api/v1/board", Accept_Encoding="identity"))[2])


@asynccontextmanager
async def a_client(token: TokenFile | None = None, base_path: str = "") -> AsyncIterator[Client]:
    stage = BoardStage()
    stage.cluster.nodes.put(going())
    stage.cluster.pods.put(replica())
    stage.frame()
    board = BoardServer(stage.board, Access.of("127.0.0.1", (), token), LoopClock(), base_path=base_path)
    async with (
        serving(board.endpoint("127.0.0.1:0"), grace_seconds=0.05) as (servers, urls),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session,
    ):
        root = urls[f"{base_path}/"].removesuffix(f"{base_path}/")
        yield Client(stage, board, servers, root, session)


def events_of(raw: bytes) -> list[tuple[str, str, Any]]:
    """Id, event and data of each whole message."""
    events = []
    for text in raw.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(":"))
        if fields:
            events.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return events


async def read_events(answer: aiohttp.ClientResponse, count: int) -> list[tuple[str, str, Any]]:
    raw = b""
    with anyio.fail_after(PATIENCE):
        while len(events := events_of(raw)) < count:
            raw += await answer.content.readany()
    return events


# -- page and snapshot -------------------------------------------------------------------------------------------------


async def test_the_pods_of_one_node_are_served_with_their_past() -> None:
    async with a_client() as client:
        board = await client.board()
        (node,) = board["status"]["nodes"]
        status, headers, body = await client.get(f"/api/v1/pods?node={node['uid']}")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        past = board["timelines"][node["uid"]]["pods"]
        assert json.loads(body) == {"uid": node["uid"], "pods": node["pods"], "timeline": past}
        assert (await client.get("/api/v1/pods?node=gone"))[0] == 404
        assert (await client.get("/api/v1/pods"))[0] == 404


async def test_every_response_forbids_what_a_page_must_not_do() -> None:
    async with a_client() as client:
        for path, expected in [("/", 200), ("/api/v1/board", 200), ("/nothing", 404), ("/api/v1", 404)]:
            status, headers, _ = await client.get(path)
            assert status == expected
            assert {name: headers[name] for name in HEADERS} == dict(HEADERS)
            assert "Server" not in headers
        status, headers, _ = await client.get("/", Host="evil.example.com")
        assert status == 421
        assert headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_but_reading_is_served(method: str) -> None:
    async with a_client() as client:
        for path in ("/", "/api/v1/board", "/api/v1/changes"):
            assert (await client.get(path, method))[0] == 405


@pytest.mark.parametrize("path", [
    "/assets/../index.html", "/assets/..%2f..%2fcommand.py", "/assets/%2e%2e/command.py", "/assets//etc/passwd",
    "/assets/", "/assets/__init__.py", "/..",
])  # fmt: skip
async def test_only_files_of_the_page_are_served(path: str) -> None:
    async with a_client() as client:
        connection = await _connect(client.url)
        connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert b" 404 " in await anyio.to_thread.run_sync(lambda: connection.recv(100))
        connection.close()


async def _connect(url: str) -> socket.socket:
    """As it is written there: a client library would tidy the path up."""
    host, _, port = url.removeprefix("http://").partition(":")
    return await anyio.to_thread.run_sync(lambda: socket.create_connection((host, int(port)), 5))


async def test_every_file_of_the_page_is_served_and_known_by_its_etag() -> None:
    async with a_client() as client:
        for name, body in page_files().items():
            path = "/" if name == "index.html" else f"/assets/{name}"
            status, headers, content = await client.get(path, Accept_Encoding="identity")
            assert (status, content, headers["Cache-Control"]) == (200, body.plain, "no-cache")
            assert (await client.get(path, If_None_Match=headers["ETag"]))[0] == 304


async def test_a_snapshot_is_compressed_if_accepted_and_not_sent_twice() -> None:
    async with a_client() as client:
        _, plain_headers, plain = await client.get("/api/v1/board", Accept_Encoding="identity")
        _, headers, compressed = await client.get("/api/v1/board", Accept_Encoding="gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert "Content-Encoding" not in plain_headers
        assert gzip.decompress(compressed) == plain
        assert (await client.get("/api/v1/board", If_None_Match=headers["ETag"]))[0] == 304
        status, _, body = await client.get("/api/v1/board", "HEAD")
        assert (status, body) == (200, b"")


async def test_a_base_path_is_in_front_of_everything() -> None:
    async with a_client(base_path="/x/y") as client:
        status, headers, _ = await client.get("/x/y")
        assert (status, headers["Location"]) == (308, "/x/y/")
        assert (await client.get("/x/y/"))[0] == 200
        assert (await client.get("/x/y/api/v1/board"))[0] == 200
        assert (await client.get("/"))[0] == 404


async def test_data_needs_the_token_and_the_page_does_not(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a token of some length")
    async with a_client(TokenFile(file)) as client:
        assert (await client.get("/"))[0] == 200
        for path in ("/api/v1/board", "/api/v1/changes"):
            status, headers, body = await client.get(path)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert b"a token of" not in body
        assert (await client.get("/api/v1/board", Authorization="Bearer a token of some length"))[0] == 200


# -- the stream --------------------------------------------------------------------------------------------------------


async def test_a_stream_begins_with_a_snapshot_and_goes_on_with_changes() -> None:
    async with a_client() as client, client.session.get(f"{client.url}/api/v1/changes") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        ((id_, event, board),) = await read_events(answer, 1)
        assert (event, board["id"]) == ("snapshot", id_)
        client.stage.cluster.pods.remove(replica().key)
        client.stage.frame()
        ((_, event, change),) = await read_events(answer, 1)
        assert event == "change"
        expected = await client.board()
        assert applied(board, change) | {"id": expected["id"]} == expected


@pytest.mark.parametrize("how", ["header", "query"])
async def test_a_client_that_comes_back_gets_what_it_has_missed(how: str) -> None:
    async with a_client() as client:
        board = await client.board()
        for number in range(3):
            client.stage.cluster.pods.put(replica(f"p{number}"))
            client.stage.frame()
        query = "" if how == "header" else f"?after={board['id']}"
        headers = {"Last-Event-ID": board["id"]} if how == "header" else {}
        async with client.session.get(f"{client.url}/api/v1/changes{query}", headers=headers) as answer:
            changes = await read_events(answer, 3)
        for _, event, change in changes:
            assert event == "change"
            board = applied(board, change)
        expected = await client.board()
        assert board | {"id": expected["id"]} == expected


@pytest.mark.parametrize("id_", ["other-0", "nonsense", "-1", "", "\u0663"])
async def test_an_id_of_another_process_gets_a_snapshot(id_: str) -> None:
    async with (
        a_client() as client,
        client.session.get(f"{client.url}/api/v1/changes", params={"after": id_}) as answer,
    ):
        ((_, event, _),) = await read_events(answer, 1)
        assert event == "snapshot"


async def test_an_id_that_is_too_old_or_of_the_future_gets_a_snapshot() -> None:
    async with a_client() as client:
        boot = client.stage.board.id.partition("-")[0]
        client.stage.board.ring._most_bytes = 1
        for name in ("other", "another"):
            client.stage.cluster.pods.put(replica(name))
            client.stage.at += 60
            client.stage.frame()
        for number in (0, 10**6):
            async with client.session.get(
                f"{client.url}/api/v1/changes", params={"after": f"{boot}-{number}"}
            ) as answer:
                ((_, event, _),) = await read_events(answer, 1)
                assert event == "snapshot"


async def test_a_quiet_stream_has_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.02)
    async with (
        a_client() as client,
        client.session.get(f"{client.url}/api/v1/changes", params={"after": client.stage.board.id}) as answer,
    ):
        with anyio.fail_after(PATIENCE):
            assert (await answer.content.readline()).startswith(b":")


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gracectl.cli.ui.stream.WRITE_SECONDS", 2.0)
    async with a_client() as client:
        silent = await _connect(client.url)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.send(b"GET /api/v1/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with client.session.get(f"{client.url}/api/v1/changes") as answer, anyio.create_task_group() as group:
            group.start_soon(_read_all, answer)
            for _ in range(20):  # more than sockets keep
                client.stage.board.ring.append(b": " + b"x" * 1_000_000 + b"\n\n")
                await anyio.sleep(0.02)
            with anyio.fail_after(PATIENCE):
                while not client.server.dropped:
                    await LoopClock().sleep(0.02)
            assert (client.server.dropped, client.server.clients) == (1, 1)
            group.cancel_scope.cancel()
        silent.close()


async def _read_all(answer: aiohttp.ClientResponse) -> None:
    while await answer.content.readany():
        pass


async def test_no_more_clients_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_CLIENTS", 1)
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.02)
    async with a_client() as client:
        async with client.session.get(f"{client.url}/api/v1/changes") as answer:
            await read_events(answer, 1)
            status, headers, body = await client.get("/api/v1/changes")
            assert (status, headers["Retry-After"]) == (503, "10")
            assert b"1 clients follow" in body
            assert (await client.get("/api/v1/board"))[0] == 200
        with anyio.fail_after(PATIENCE):
            while client.server.clients:
                await LoopClock().sleep(0.01)


async def test_one_peer_does_not_take_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_CLIENTS", 3)
    async with a_client() as client, AsyncExitStack() as opened:
        taken = [await opened.enter_async_context(client.session.get(f"{client.url}/api/v1/changes")) for _ in range(3)]
        for answer in taken:
            await read_events(answer, 1)
        elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        other = await opened.enter_async_context(aiohttp.ClientSession(connector=elsewhere))
        answer = await opened.enter_async_context(other.get(f"{client.url}/api/v1/changes"))
        ((_, event, _),) = await read_events(answer, 1)
        assert (event, client.server.clients) == ("snapshot", 3)
        with anyio.fail_after(PATIENCE), pytest.raises(aiohttp.ClientError):
            await taken[0].content.read()
        assert (await client.get("/api/v1/changes"))[0] == 503  # it has still the most
        client.stage.cluster.pods.put(replica("more"))
        client.stage.frame()
        for each in (taken[1], taken[2], answer):
            ((_, event, _),) = await read_events(each, 1)
            assert event == "change"


LARGE = 4_000_000


async def test_silent_readers_hold_little_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_client() as client, AsyncExitStack() as opened:
        noise = base64.b64encode(random.Random(0).randbytes(LARGE)).decode()
        monkeypatch.setattr(client.stage.board, "encode", lambda state, id_: noise.encode())
        monkeypatch.setattr(server, "OLDER_BYTES", 3 * LARGE)
        silent = []
        for number in range(12):
            client.stage.cluster.pods.put(replica(f"more-{number}"))
            client.stage.frame()
            for path in ("/api/v1/board", "/api/v1/changes"):
                reader = await _connect(client.url)
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                silent.append(opened.enter_context(reader))
            with anyio.fail_after(PATIENCE):
                while client.server.snapshots.readers < len(silent):
                    await LoopClock().sleep(0.01)
        # Each takes about twice its plain size, as noise cannot be compressed much; one more than the limit is made.
        assert client.server.snapshots.older_bytes < (3 + 2) * 2 * LARGE
        waiting = [each.transport.get_write_buffer_size() for each in client.connections if each.transport]
        assert len(waiting) >= len(silent)
        assert max(waiting) <= 4 * PART
        for reader in silent:
            reader.close()
        with anyio.fail_after(PATIENCE):
            while client.server.snapshots.readers:
                await LoopClock().sleep(0.01)
        assert client.server.snapshots.older_bytes == 0


async def test_a_board_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LARGEST_MESSAGE", 100)
    async with a_client() as client:
        for path in ("/api/v1/board", "/api/v1/changes"):
            status, headers, body = await client.get(path)
            assert (status, headers["Retry-After"]) == (503, "10")
            assert b"use gracectl status" in body
        assert client.server.clients == 0


async def test_a_stream_ends_when_its_token_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.02)
    file = tmp_path / "token"
    file.write_text("a token of some length")
    async with a_client(TokenFile(file)) as client:
        headers = {"Authorization": "Bearer a token of some length"}
        async with client.session.get(f"{client.url}/api/v1/changes", headers=headers) as answer:
            await read_events(answer, 1)
            file.write_text("another token, by now")
            with anyio.fail_after(PATIENCE):
                await answer.content.read()


async def test_a_change_is_made_once_for_all_clients() -> None:
    async with a_client() as client:
        before = client.stage.board.ring.latest
        client.stage.cluster.pods.put(msgspec.structs.replace(replica(), ready=False, resource_version="2"))
        client.stage.frame()
        client.stage.at += 30
        client.stage.frame()
        assert client.stage.board.ring.latest <= before + 1
