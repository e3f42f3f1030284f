"""The HTTP face over real sockets."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import aiohttp
import anyio
import orjson
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock, SystemClock
from kubesim.faults import CutBody, Refuse, Reset, Rule
from kubesim.http import HttpFace
from kubesim.server.api import Request, Response
from kubesim_support.caller import LEASES, NODES, Caller
from kubesim_support.patience import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class Served:
    """A server, and two ways to it."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.caller = Caller(server)


async def cloud(request: Request) -> Response:
    """Stands for the simulated cloud."""
    return Response(status=202, headers={"content-type": "application/json"}, body={"path": request.path})


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    server = ApiServer(SystemClock())
    face = HttpFace(server, mounts={"/cloud/": cloud})
    url = await face.start()
    try:
        async with aiohttp.ClientSession(url) as session:
            yield Served(server, session)
    finally:
        with anyio.fail_after(PATIENCE):
            await face.stop()


async def test_stopping_ends_open_watches_at_once() -> None:
    face = HttpFace(ApiServer(LoopClock()))
    url = await face.start()
    async with aiohttp.ClientSession(url) as session, session.get(NODES, params={"watch": "1"}) as reply:
        with anyio.fail_after(PATIENCE):
            await face.stop()
            assert await reply.content.read() == b""


async def test_a_lost_connection_is_really_lost(served: Served) -> None:
    served.caller.server.faults.add(Rule(fault=Reset(carried_out=True), method="POST", count=1))
    body = {"metadata": {"name": "l"}, "spec": {}}
    # aiohttp itself repeats a PUT after a lost connection, but no POST.
    with pytest.raises(aiohttp.ClientError):
        await served.session.post(LEASES, json=body)
    assert (await served.caller.get(f"{LEASES}/l"))["metadata"]["name"] == "l"


async def test_an_answer_breaks_in_its_middle(served: Served) -> None:
    served.caller.server.faults.add(Rule(fault=CutBody(0.5), method="POST", count=1))
    reply = await served.session.post(LEASES, json={"metadata": {"name": "l"}, "spec": {}})
    assert reply.status == 201
    with pytest.raises(aiohttp.ClientPayloadError):
        await reply.read()
    assert (await served.caller.get(f"{LEASES}/l"))["metadata"]["name"] == "l"


async def test_a_body_may_have_three_mebibytes_and_no_more(served: Served) -> None:
    def big(size: int) -> io.BytesIO:
        return io.BytesIO(orjson.dumps({"metadata": {"name": f"s-{size}"}, "data": {"text": "x" * size}}))

    headers = {"content-type": "application/json"}

    path = "/api/v1/namespaces/default/configmaps"
    async with served.session.post(path, data=big(2_900_000), headers=headers) as reply:
        assert reply.status == 201
    async with served.session.post(path, data=big(3_200_000), headers=headers) as reply:
        status = await reply.json()
    assert (status["code"], status["reason"]) == (413, "RequestEntityTooLarge")
    assert status["message"] == "Request entity too large: limit is 3145728"


async def test_retry_after_reaches_the_client(served: Served) -> None:
    served.caller.server.faults.add(Rule(fault=Refuse(429, retry_after=3)))
    async with served.session.get(NODES) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (429, "3")


async def test_a_body_that_cannot_be_unpacked_is_refused(served: Served) -> None:
    url = served.session._base_url
    assert url is not None
    async with await anyio.connect_tcp(url.host or "", url.port or 0) as stream:
        lines = (f"POST {NODES} HTTP/1.1", "Host: a", "Content-Encoding: gzip", "Content-Length: 3", "", "abc")
        await stream.send("\r\n".join(lines).encode())
        assert (await stream.receive()).startswith(b"HTTP/1.1 400 ")


async def test_a_client_whose_name_is_no_text_spoils_nothing(served: Served) -> None:
    url, body = served.session._base_url, b'{"metadata":{"name":"n1"}}'
    assert url is not None
    async with await anyio.connect_tcp(url.host or "", url.port or 0) as stream:
        head = f"POST {NODES} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nUser-Agent: ".encode()
        await stream.send(head + b"\xff/1\r\n\r\n" + body)
        assert (await stream.receive()).startswith(b"HTTP/1.1 201 ")
    applied = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}}}
    headers = {"content-type": "application/apply-patch+yaml"}
    async with served.session.patch(f"{NODES}/n1?fieldManager=m", json=applied, headers=headers) as reply:
        assert reply.status == 200
    async with served.session.get(NODES) as reply:
        assert len((await reply.json())["items"]) == 1
