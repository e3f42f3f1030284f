"""The transport of a dry run: reads that show writes which were never sent, after lists, gaps and real changes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.app.dry_run import DryRunTransport, InvalidPatch, apply_patch, changed_fields, merge_patch
from gracectl.kube.cache import Cache
from gracectl.kube.requests import (
    JsonPatch,
    MergePatch,
    Preconditions,
    StrategicPatch,
    delete_request,
    get_request,
    list_request,
    patch_request,
    watch_request,
)
from gracectl.kube.resources import NODES
from gracectl.kube.transport import Request, Response, Stream
from gracectl.model.node import Node
from gracectl.runtime.clock import LoopClock

JsonObject = dict[str, Any]
encode, decode = msgspec.json.encode, msgspec.json.decode


def a_node(name: str, version: int, **spec: Any) -> JsonObject:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Node", "metadata": metadata, "spec": spec}


class Server:
    """Answers reads from `nodes`. A watch shows what `happened`, and ends."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, *nodes: JsonObject) -> None:
        self.nodes: dict[str, JsonObject] = {each["metadata"]["name"]: each for each in nodes}
        self.asked: list[Request] = []
        self._lines: deque[bytes] = deque()

    def happened(self, type_: str, node: JsonObject) -> None:
        self._lines.append(encode({"type": type_, "object": node}))

    async def send(self, request: Request) -> Response:
        assert request.method == "GET"
        name = request.path.rpartition("/")[2]
        if name != "nodes":
            node = self.nodes.get(name)
            return Response(status=200 if node else 404, body=encode(node or {"details": {"name": name}}))
        body = {"metadata": {"resourceVersion": "50"}, "items": [*self.nodes.values()]}
        return Response(status=200, body=encode(body))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        self.asked.append(request)
        yield self

    async def lines(self) -> AsyncGenerator[bytes, None]:
        while self._lines:
            yield self._lines.popleft()

    async def read(self) -> bytes:
        return b""


def over(server: Server, *caches: Cache[Node]) -> DryRunTransport:
    dry = DryRunTransport(server, LoopClock())
    dry.caches = tuple((NODES, cache) for cache in caches)
    return dry


async def change(dry: DryRunTransport, name: str, version: str = "", **spec: Any) -> JsonObject:
    preconditions = Preconditions(resource_version=version) if version else Preconditions()
    response = await dry.send(patch_request(NODES, ("", name), MergePatch({"spec": spec}), preconditions=preconditions))
    return {**decode(response.body), "code": response.status}


async def listed(dry: DryRunTransport) -> Mapping[str, JsonObject]:
    response = await dry.send(list_request(NODES))
    return {each["metadata"]["name"]: each["spec"] for each in decode(response.body)["items"]}


async def watched(dry: DryRunTransport, version: str = "50") -> list[Any]:
    """What a watch shows until it ends: type, name, spec and version."""
    async with dry.stream(watch_request(NODES, version, timeout_seconds=300)) as stream:
        events = [decode(line) async for line in stream.lines()]
    things = [(each["type"], each["object"]) for each in events]
    return [(type_, it["metadata"]["name"], it["spec"], it["metadata"]["resourceVersion"]) for type_, it in things]


async def test_a_change_is_in_every_read_and_nothing_is_sent() -> None:
    server = Server(a_node("a", 7), a_node("b", 8))
    dry = over(server)
    after = await change(dry, "a", unschedulable=True)
    assert (after["code"], after["metadata"]["resourceVersion"]) == (200, "8")
    assert await listed(dry) == {"a": {"unschedulable": True}, "b": {}}
    assert decode((await dry.send(get_request(NODES, ("", "a")))).body)["spec"] == {"unschedulable": True}
    assert server.nodes["a"]["spec"] == {}


async def test_caches_learn_of_a_change_and_of_a_deletion_after_the_response() -> None:
    server, cache = Server(a_node("a", 7)), Cache[Node]("nodes")
    dry = over(server, cache)
    await change(dry, "a", unschedulable=True)
    assert cache.get("", "a") is None
    await anyio.lowlevel.checkpoint()
    node = cache.get("", "a")
    assert node is not None
    assert node.unschedulable
    await dry.send(delete_request(NODES, ("", "a"), preconditions=Preconditions()))
    await anyio.lowlevel.checkpoint()
    assert cache.get("", "a") is None


async def test_a_real_change_shows_both_and_its_version_grows() -> None:
    server = Server(a_node("a", 7))
    dry = over(server)
    for turn in range(5):
        last = await change(dry, "a", unschedulable=True, turn=turn)
    assert last["metadata"]["resourceVersion"] == "12"
    server.happened("MODIFIED", a_node("a", 9, podCIDR="x"))
    server.happened("MODIFIED", a_node("a", 99, podCIDR="y"))
    assert await watched(dry) == [
        ("MODIFIED", "a", {"podCIDR": "x", "unschedulable": True, "turn": 4}, "13"),
        ("MODIFIED", "a", {"podCIDR": "y", "unschedulable": True, "turn": 4}, "99"),
    ]


async def test_a_watch_resumes_where_the_server_was() -> None:
    server = Server(a_node("a", 7))
    dry = over(server)
    for turn in range(5):
        await change(dry, "a", turn=turn)
    server.happened("MODIFIED", a_node("a", 9))
    [(*_, version)] = await watched(dry)
    assert version == "13"
    await watched(dry, version)
    assert dict(server.asked[-1].query)["resourceVersion"] == "9"


async def test_what_is_gone_is_in_no_read_until_it_is_really_deleted() -> None:
    server = Server(a_node("a", 7), a_node("b", 8))
    dry = over(server)
    assert (await dry.send(delete_request(NODES, ("", "a"), preconditions=Preconditions()))).status == 200
    server.happened("MODIFIED", a_node("a", 60))
    server.happened("MODIFIED", a_node("b", 61))
    server.happened("DELETED", a_node("a", 62))
    assert [(type_, name) for type_, name, *_ in await watched(dry)] == [("MODIFIED", "b"), ("DELETED", "a")]
    server.nodes["a"] = a_node("a", 63)
    assert [*await listed(dry)] == ["a", "b"]


async def test_a_write_of_another_state_or_of_what_is_gone_is_refused() -> None:
    dry = over(Server(a_node("a", 7)))
    assert (await change(dry, "a", "6", unschedulable=True))["code"] == 409
    assert (await change(dry, "a", "7", unschedulable=True))["code"] == 200
    assert (await change(dry, "a", "7", unschedulable=False))["code"] == 409
    await dry.send(delete_request(NODES, ("", "a"), preconditions=Preconditions()))
    assert (await change(dry, "a", unschedulable=True))["code"] == 404
    assert (await dry.send(get_request(NODES, ("", "a")))).status == 404


NODE: JsonObject = {
    "metadata": {"name": "n1", "labels": {"a": "1"}, "finalizers": ["x/y", "grace"]},
    "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Drained", "status": "False"}]},
}
TAINT = {"key": "ours", "effect": "NoSchedule"}


def patched(operations: Any, content_type: str = JsonPatch.content_type) -> JsonObject:
    return apply_patch(NODE, operations, content_type)


def test_a_json_patch_adds_replaces_and_removes_by_path() -> None:
    after = patched(
        [
            {"op": "add", "path": "/spec/taints/-", "value": TAINT},
            {"op": "add", "path": "/metadata/labels/example.com~1b", "value": "2"},
            {"op": "replace", "path": "/spec/taints/0/effect", "value": "NoExecute"},
            {"op": "remove", "path": "/metadata/finalizers/1"},
            {"op": "test", "path": "/metadata/name", "value": "n1"},
        ]
    )
    assert after["spec"]["taints"] == [{"key": "other", "effect": "NoExecute"}, TAINT]
    assert after["metadata"]["labels"] == {"a": "1", "example.com/b": "2"}
    assert after["metadata"]["finalizers"] == ["x/y"]
    assert NODE["metadata"]["finalizers"] == ["x/y", "grace"]
    assert list(changed_fields(merge_patch(NODE, after))) == ["metadata.labels", "metadata.finalizers", "spec.taints"]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/metadata/annotations/a"},
        {"op": "remove", "path": "/metadata/finalizers/2"},
        {"op": "replace", "path": "/spec/unschedulable", "value": True},
        {"op": "test", "path": "/metadata/name", "value": "n2"},
        {"op": "move", "path": "/metadata/name", "from": "/metadata/labels"},
    ],
)
def test_a_json_patch_that_does_not_fit_is_invalid(operation: dict[str, Any]) -> None:
    with pytest.raises(InvalidPatch, match=operation["path"]):
        patched([operation])


def test_a_merge_patch_removes_by_null_and_replaces_lists() -> None:
    after = patched({"metadata": {"labels": {"a": None}, "finalizers": ["z"]}}, MergePatch.content_type)
    assert (after["metadata"]["labels"], after["metadata"]["finalizers"]) == ({}, ["z"])


def test_a_strategic_patch_changes_one_condition_and_deletes_another() -> None:
    entries = [{"type": "Ready", "status": "False"}, {"type": "Drained", "$patch": "delete"}, {"type": "New"}]
    after = patched({"status": {"conditions": entries}}, StrategicPatch.content_type)
    assert after["status"]["conditions"] == [{"type": "Ready", "status": "False"}, {"type": "New"}]


async def test_a_written_condition_leaves_the_others_to_the_server() -> None:
    def conditions(**of: str) -> JsonObject:
        return {"status": {"conditions": [{"type": type_, "status": status} for type_, status in of.items()]}}

    server = Server({**a_node("a", 7), **conditions(Ready="True")})
    dry = over(server)
    patch, whichever = StrategicPatch(conditions(Drained="True")), Preconditions()
    await dry.send(patch_request(NODES, ("", "a"), patch, subresource="status", preconditions=whichever))
    server.nodes["a"] = {**a_node("a", 8), **conditions(Ready="False")}
    response = await dry.send(get_request(NODES, ("", "a")))
    assert decode(response.body)["status"] == conditions(Ready="False", Drained="True")["status"]


scalars = st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2)
values = st.recursive(scalars, lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3), max_leaves=8)
objects = st.dictionaries(st.sampled_from("xyz"), values)


@given(objects, objects)
def test_a_merge_patch_leads_from_one_state_to_the_other(old: JsonObject, new: JsonObject) -> None:
    assert apply_patch(old, merge_patch(old, new), MergePatch.content_type) == new
