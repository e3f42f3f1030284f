"""Connections of a pool: few are opened at a time, and what becomes free is taken instead; on virtual time."""

from __future__ import annotations

from typing import Any, cast

import aiohttp
import anyio
import pytest
from aiohttp import ClientTimeout
from aiohttp.client_proto import ResponseHandler

from gracectl.kube.connector import AT_ONCE, PATIENCE, PacedConnector

pytestmark = pytest.mark.anyio
REQUEST = 0.008


class Line:
    """A connection that works; stands for aiohttp's protocol."""

    transport = None
    should_close = False
    closed = None

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Asked:
    """A request to the one host there is."""

    connection_key = "host"
    proxy = None


class Server:
    """Handshakes with it take `seconds` each; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.seconds = seconds
        self.opened = self.opening = self.most = 0
        monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", self.open)

    async def open(self, *_: Any) -> ResponseHandler:
        self.opening += 1
        self.most = max(self.most, self.opening)
        await anyio.sleep(self.seconds)
        self.opening -= 1
        self.opened += 1
        return cast(ResponseHandler, Line())


async def requested(connector: PacedConnector, seconds: float = REQUEST) -> float:
    """Send a request that takes so long; the instant at which it had a connection."""
    connection = await connector.connect(Asked(), [], ClientTimeout())
    at = anyio.current_time()
    await anyio.sleep(seconds)
    connection.release()
    connector.freed()
    return at


async def crowd(connector: PacedConnector, count: int, seconds: float = REQUEST) -> list[float]:
    """So many requests at once; when each had a connection, from the beginning."""
    began, sent = anyio.current_time(), list[float]()

    async def one() -> None:
        sent.append(await requested(connector, seconds) - began)

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)
    return sorted(sent)


async def test_a_crowd_shares_the_connections_that_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, 0.005)
    connector = PacedConnector()
    async with connector:
        sent = await crowd(connector, 40)
        assert server.most == AT_ONCE
        assert server.opened <= 24
        assert sent[-1] < PATIENCE
        # What has been opened is enough for the next crowd of half the size.
        before = server.opened
        assert (await crowd(connector, 20))[-1] < REQUEST
        assert server.opened - before <= AT_ONCE


async def test_requests_that_hang_keep_no_others_from_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, 0.005)
    connector = PacedConnector()
    async with connector, anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(requested, connector, 30.0)
        await anyio.sleep(0.001)
        began = anyio.current_time()
        assert await requested(connector) - began <= 0.005 * (40 / AT_ONCE + 1)
        assert server.opened == 41


async def test_a_host_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, 10.0)
    connector = PacedConnector()
    async with connector:
        sent = await crowd(connector, 40)
    assert server.most == 40
    assert sent[-1] <= 10.0 + 2 * PATIENCE


async def test_the_turn_of_a_cancelled_request_is_another_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch, 0.005)
    connector = PacedConnector()
    async with connector, anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(requested, connector, 1.0)
        await anyio.sleep(0.001)
        with anyio.move_on_after(0.002):
            await requested(connector)
        began = anyio.current_time()
        assert await requested(connector) - began == pytest.approx(0.007)
