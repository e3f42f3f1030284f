"""Reads in which writes count as done that were never sent: after lists, gaps and real changes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from gracectl.kube.overlay import Overlay, Seen
from gracectl.kube.requests import Selection, get_request, list_request, watch_request
from gracectl.kube.resources import NODES
from gracectl.kube.transport import Request, Response, Stream

pytestmark = pytest.mark.anyio

JsonObject = dict[str, Any]
encode, decode = msgspec.json.encode, msgspec.json.decode


def a_node(name: str, version: int, **spec: Any) -> JsonObject:
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": spec,
    }


class Server:
    """Answers from `nodes`; a watch shows what is put into it."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, *nodes: JsonObject) -> None:
        self.nodes: dict[str, JsonObject] = {each["metadata"]["name"]: each for each in nodes}
        self.asked: list[Request] = []
        self.page_size = 100
        self._lines: deque[bytes] = deque()
        self._has_more = anyio.Event()

    def happened(self, type_: str, node: JsonObject) -> None:
        self._lines.append(encode({"type": type_, "object": node}))
        self._has_more.set()

    async def send(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        if name != "nodes":
            found = self.nodes.get(name)
            return Response(status=200 if found else 404, body=encode(found or {"details": {"name": name}}))
        first = int(dict(request.query).get("continue", "0"))
        items = [*self.nodes.values()]
        end = first + self.page_size
        metadata = {"resourceVersion": "50", **({"continue": str(end)} if end < len(items) else {})}
        return Response(status=200, body=encode({"metadata": metadata, "items": items[first:end]}))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        self.asked.append(request)
        yield self

    async def lines(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._lines:
                yield self._lines.popleft()
            self._has_more = anyio.Event()
            await self._has_more.wait()

    async def read(self) -> bytes:
        return b""


@asynccontextmanager
async def over(server: Server) -> AsyncIterator[Overlay]:
    overlay = Overlay(server)
    async with anyio.create_task_group() as group:
        group.start_soon(overlay.run)
        yield overlay
        group.cancel_scope.cancel()


async def change(overlay: Overlay, name: str, **spec: Any) -> JsonObject:
    seen = await overlay.find(get_request(NODES, ("", name)))
    assert isinstance(seen, Seen)
    return overlay.write(seen, {**seen.thing, "spec": {**seen.thing["spec"], **spec}})


async def remove(overlay: Overlay, name: str) -> None:
    seen = await overlay.find(get_request(NODES, ("", name)))
    assert isinstance(seen, Seen)
    overlay.remove(seen)


async def listed(overlay: Overlay, token: str = "") -> Mapping[str, JsonObject]:
    response = await overlay.send(list_request(NODES, limit=1, continue_token=token))
    return {each["metadata"]["name"]: each["spec"] for each in decode(response.body)["items"]}


@asynccontextmanager
async def watched(
    overlay: Overlay, version: str = "50", selection: Selection | None = None
) -> AsyncIterator[list[Any]]:
    """What a watch shows: type, name, spec and version."""
    shown: list[Any] = []
    request = watch_request(NODES, version, timeout_seconds=300, selection=selection or Selection())

    async def follow() -> None:
        async for line in stream.lines():
            event = decode(line)
            thing = event["object"]
            shown.append(
                (event["type"], thing["metadata"]["name"], thing["spec"], thing["metadata"]["resourceVersion"])
            )

    async with overlay.stream(request) as stream, anyio.create_task_group() as group:
        group.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        yield shown
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


async def test_a_change_is_seen_in_every_read_and_in_open_watches() -> None:
    server = Server(a_node("a", 7), a_node("b", 8))
    async with over(server) as overlay, watched(overlay) as shown:
        after = await change(overlay, "a", unschedulable=True)
        assert after["metadata"]["resourceVersion"] == "8"
        assert await listed(overlay) == {"a": {"unschedulable": True}, "b": {}}
        await anyio.wait_all_tasks_blocked()
        assert shown == [("MODIFIED", "a", {"unschedulable": True}, "8")]
        assert server.nodes["a"]["spec"] == {}


async def test_a_real_change_shows_both_and_its_version_grows() -> None:
    server = Server(a_node("a", 7))
    async with over(server) as overlay, watched(overlay) as shown:
        for _ in range(5):
            last = await change(overlay, "a", unschedulable=True, turn=_)
        assert last["metadata"]["resourceVersion"] == "12"
        server.happened("MODIFIED", a_node("a", 9, podCIDR="x"))
        server.happened("MODIFIED", a_node("a", 99, podCIDR="y"))
        await anyio.wait_all_tasks_blocked()
        assert shown[-2:] == [
            ("MODIFIED", "a", {"podCIDR": "x", "unschedulable": True, "turn": 4}, "13"),
            ("MODIFIED", "a", {"podCIDR": "y", "unschedulable": True, "turn": 4}, "99"),
        ]


async def test_what_is_gone_here_is_in_no_read_and_its_real_changes_are_not_shown() -> None:
    server = Server(a_node("a", 7), a_node("b", 8))
    async with over(server) as overlay, watched(overlay) as shown:
        await remove(overlay, "a")
        server.happened("MODIFIED", a_node("a", 60))
        server.happened("MODIFIED", a_node("b", 61))
        await anyio.wait_all_tasks_blocked()
        assert [(type_, name) for type_, name, *_ in shown] == [("DELETED", "a"), ("MODIFIED", "b")]
        assert [*await listed(overlay)] == ["b"]
        assert (await overlay.send(get_request(NODES, ("", "a")))).status == 404
        assert isinstance(await overlay.find(get_request(NODES, ("", "a"))), Response)


async def test_a_change_during_a_gap_is_shown_by_the_next_watch_which_goes_on_where_the_server_was() -> None:
    server = Server(a_node("a", 7), a_node("b", 8))
    async with over(server) as overlay:
        async with watched(overlay):
            server.happened("MODIFIED", a_node("b", 55))
            await anyio.wait_all_tasks_blocked()
            after = await change(overlay, "a", unschedulable=True)
        await remove(overlay, "b")
        version = after["metadata"]["resourceVersion"]
        async with watched(overlay, version) as shown:
            pass
        assert [(type_, name) for type_, name, *_ in shown] == [("DELETED", "b")]
        assert dict(server.asked[-1].query)["resourceVersion"] == "55"


@pytest.mark.parametrize("page_size", [1, 100])
async def test_what_a_complete_list_has_not_is_forgotten(page_size: int) -> None:
    server = Server(a_node("a", 7), a_node("b", 8), a_node("c", 9))
    async with over(server) as overlay:
        await change(overlay, "b", unschedulable=True)
        await change(overlay, "c", unschedulable=True)
        del server.nodes["b"]
        server.page_size = page_size
        found = dict(await listed(overlay))
        if page_size == 1:
            found |= await listed(overlay, "1")
        assert found == {"a": {}, "c": {"unschedulable": True}}
        async with watched(overlay) as shown:
            pass
        assert [(type_, name) for type_, name, *_ in shown] == [("MODIFIED", "c")]


async def test_a_watch_with_a_selector_is_shown_real_changes_only() -> None:
    server = Server(a_node("a", 7))
    async with over(server) as overlay, watched(overlay, selection=Selection(labels="pool=x")) as shown:
        await change(overlay, "a", unschedulable=True)
        server.happened("MODIFIED", a_node("a", 60))
        await anyio.wait_all_tasks_blocked()
        assert shown == [("MODIFIED", "a", {"unschedulable": True}, "60")]
