"""Watches in time: bookmarks, ends, history, and who shares what."""

from __future__ import annotations

import base64

import anyio
import orjson
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import LEASES, NODES, PODS, Caller, next_events

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


async def test_bookmarks_come_every_minute_and_two_seconds_before_the_end(caller: Caller, clock: LoopClock) -> None:
    version = await lease(caller, "one")
    began = clock.monotonic()
    stream = await caller.watch(LEASES, resourceVersion=version, timeoutSeconds="130", allowWatchBookmarks="true")
    seen = [(event.type, clock.monotonic() - began) async for event in stream]
    assert seen == [("BOOKMARK", 60.0), ("BOOKMARK", 120.0), ("BOOKMARK", 128.0)]
    assert clock.monotonic() - began == 130.0


async def test_no_bookmarks_unless_asked_for(caller: Caller, clock: LoopClock) -> None:
    stream = await caller.watch(LEASES, timeoutSeconds="130")
    assert [event async for event in stream] == []
    assert clock.monotonic() == 130.0


async def test_a_bookmark_carries_a_version_to_resume_from(caller: Caller) -> None:
    version = await lease(caller, "one")
    stream = await caller.watch(LEASES, resourceVersion=version, timeoutSeconds="5", allowWatchBookmarks="1")
    await caller.create(NODES, {"metadata": {"name": "n1"}})
    bookmark = await stream.__anext__()
    assert bookmark.object["kind"] == "Lease"
    assert int(bookmark.object["metadata"]["resourceVersion"]) > int(version)


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


async def test_a_watch_without_timeout_is_ended_by_the_server(caller: Caller, clock: LoopClock) -> None:
    stream = await caller.watch(LEASES)
    assert [event async for event in stream] == []
    assert 1800 <= clock.monotonic() <= 3600


async def test_events_arrive_while_waiting(caller: Caller, clock: LoopClock) -> None:
    stream = await caller.watch(PODS)
    arrived: list[tuple[str, float]] = []

    async def read() -> None:
        async for event in stream:
            arrived.append((event.object["metadata"]["name"], clock.monotonic()))  # noqa: PERF401 - seen from outside

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.sleep(5)
        await caller.pod("a")
        await anyio.sleep(5)
        await caller.pod("b")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert arrived == [("a", 5.0), ("a", 5.0), ("b", 10.0), ("b", 10.0)]


async def test_versions_beyond_the_window_are_too_old(caller: Caller) -> None:
    first = await lease(caller, "first")
    for index in range(30):
        await lease(caller, f"l{index}")
    stream = await caller.watch(LEASES, resourceVersion=first)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["ERROR"]
    assert (events[0].object["code"], events[0].object["reason"]) == (410, "Expired")


async def test_a_reader_that_falls_behind_the_window_is_cut_off(caller: Caller) -> None:
    stream = await caller.watch(LEASES)
    for index in range(30):
        await lease(caller, f"l{index}")
    assert [event.type async for event in stream] == ["ERROR"]


async def test_forgotten_history_is_too_old(caller: Caller) -> None:
    version = await lease(caller, "one")
    table = caller.server.store.table("leases.coordination.k8s.io")
    table.forget(caller.server.store.revision)
    await lease(caller, "two")
    stream = await caller.watch(LEASES, resourceVersion=str(int(version) - 1))
    assert (await stream.__anext__()).type == "ERROR"
    stream = await caller.watch(LEASES, resourceVersion=version)
    assert await next_events(stream, 1) == [("ADDED", "two")]


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


async def test_a_field_selector_turns_a_binding_into_an_arrival(caller: Caller) -> None:
    stream = await caller.watch("/api/v1/pods", fieldSelector="spec.nodeName=n7")
    await caller.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    await caller.ok("POST", f"{PODS}/p/binding", {"target": {"name": "n7"}})
    assert await next_events(stream, 1) == [("ADDED", "p")]


async def test_a_closed_watch_ends(caller: Caller) -> None:
    await lease(caller, "one")
    stream = await caller.watch(LEASES)
    await stream.aclose()
    assert [event async for event in stream] == []
