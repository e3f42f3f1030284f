"""Watches in time: bookmarks, ends, history, and who shares what."""

from __future__ import annotations

import base64

import orjson
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import LEASES, Caller, next_events

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def caller(clock: LoopClock) -> Caller:
    return Caller(ApiServer(clock, window=10))


async def lease(caller: Caller, name: str, **labels: str) -> str:
    """Create a lease; returns its version."""
    made = await caller.create(LEASES, {"metadata": {"name": name, "labels": labels}})
    version: str = made["metadata"]["resourceVersion"]
    return version


@pytest.mark.parametrize(
    ("accept", "listed"),
    [
        ("application/json", ("LeaseList", "coordination.k8s.io/v1")),
        (
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            ("PartialObjectMetadataList", "meta.k8s.io/v1"),
        ),
    ],
)
async def test_the_end_of_what_there_is_says_what_list_that_makes(
    caller: Caller, accept: str, listed: tuple[str, str]
) -> None:
    """client-go's dynamic and metadata clients list by watching, and need it."""
    asked = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    response = await caller.call("GET", LEASES, headers={"accept": accept}, watch="1", **asked)
    assert response.stream is not None
    bookmark = await response.stream.__anext__()
    assert bookmark.type == "BOOKMARK"
    annotations = bookmark.object["metadata"]["annotations"]
    blueprint = orjson.loads(base64.b64decode(annotations["kubernetes.io/initial-events-list-blueprint"]))
    assert (blueprint["kind"], blueprint["apiVersion"]) == listed
    assert blueprint["items"] == []


async def test_a_reader_that_falls_behind_the_window_is_cut_off(caller: Caller) -> None:
    stream = await caller.watch(LEASES)
    for index in range(30):
        await lease(caller, f"l{index}")
    assert [event.type async for event in stream] == ["ERROR"]


async def test_watchers_share_one_event_and_its_bytes(caller: Caller) -> None:
    streams = [await caller.watch(LEASES, resourceVersion="0") for _ in range(2)]
    await lease(caller, "one")
    one, other = [await stream.__anext__() for stream in streams]
    assert one is other
    assert one.line is other.line


async def test_one_namespace_sees_nothing_of_another(caller: Caller) -> None:
    stream = await caller.watch(LEASES)
    await caller.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", {"metadata": {"name": "x"}})
    await lease(caller, "y")
    assert await next_events(stream, 1) == [("ADDED", "y")]
