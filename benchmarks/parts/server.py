"""How fast the embedded API server answers over HTTP, and how long large worlds take to fill.

Client and server are two processes. The server must never be what limits a measurement of anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import anyio
import msgspec
import orjson

from benchmarks.ground.wire import Connection, connected
from benchmarks.ground.world import Opened, WorldSpec, world
from benchmarks.report import Figure, Outcome

CONNECTIONS = 16
PAGE = 500
WATCHERS = 50
WRITES = 400
EVICTIONS = 2_000


class Size(msgspec.Struct, frozen=True):
    """A world to measure, and how many seconds it may take to fill and to be listed."""

    scenario: str
    scale: float = 1.0
    fill: float = 20.0
    lists: float = 3.0


LARGE = Size("large")
HUGE = Size("huge", fill=120.0, lists=20.0)


async def run(size: Size = LARGE) -> Outcome:
    """Fill the world with everything alive; then measure the server alone, as what it serves is then known."""
    async with world(WorldSpec(size.scenario, size.scale)) as (alive, _):
        with_world = await evictions(alive.url, EVICTIONS // 10)
    async with world(WorldSpec(size.scenario, size.scale, alive=False)) as (alone, _):
        rates = [await evictions(alone.url, EVICTIONS // 4, skip=index * EVICTIONS // 4) for index in range(4)]
        listed = await lists(alone)
        delivered, late = await fan_out(alone.url)
    return Outcome(
        scenario=f"server-{size.scenario}",
        about=f"the embedded API server with {alive.nodes:,} nodes and {alive.pods:,} pods",
        figures=(
            Figure("evictions without a budget", median(rates), " /s", at_least=1_500),
            Figure("time to fill and settle the world", alive.seconds, " s", at_most=size.fill),
            Figure("list of all pods, in pages", listed, " s", at_most=size.lists),
            Figure("watch events delivered", delivered, " /s", at_least=5_000),
            Figure("last watcher told after", late, " s"),
            Figure("evictions with the whole world alive", with_world, " /s"),
            Figure("memory, with the whole world alive", alive.memory, " MiB"),
            Figure("memory, the server alone", alone.memory, " MiB"),
        ),
        parameters={"connections": CONNECTIONS, "page": PAGE, "watchers": WATCHERS, "scale": size.scale},
    )


async def evictions(url: str, count: int, skip: int = 0) -> float:
    """Evictions a second, of pods that no budget covers, over several connections."""
    async with connected(url) as connection:
        query = "/api/v1/pods?labelSelector=unbudgeted%3Dyes&resourceVersion=0"
        _, body = await connection.ask("GET", query)
    pods = [item["metadata"] for item in orjson.loads(body)["items"]][skip : skip + count]
    assert len(pods) == count, f"there are only {len(pods)} pods to evict"
    shares = [list(islice(pods, index, None, CONNECTIONS)) for index in range(CONNECTIONS)]
    return count / await together(url, [partial(_evict, pods=share) for share in shares])


async def _evict(connection: Connection, pods: list[dict[str, Any]]) -> None:
    for pod in pods:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["name"]}}
        path = f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/eviction"
        status, answer = await connection.ask("POST", path, body)
        assert status == 201, answer


async def together(url: str, tasks: list[Callable[[Connection], Any]]) -> float:
    """Seconds until all of them are done, each over a connection of its own that is open before."""
    start, opened = anyio.Event(), anyio.Semaphore(0)

    async def one(task: Callable[[Connection], Any]) -> None:
        async with connected(url) as connection:
            opened.release()
            await start.wait()
            await task(connection)

    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(one, task)
        for _ in tasks:
            await opened.acquire()
        began = time.perf_counter()
        start.set()
    return time.perf_counter() - began


async def lists(opened: Opened) -> float:
    """Seconds that a list of all pods in pages takes."""
    began, token, found = time.perf_counter(), "", 0
    async with connected(opened.url) as connection:
        while True:
            _, body = await connection.ask("GET", f"/api/v1/pods?limit={PAGE}&continue={token}")
            page = orjson.loads(body)
            found += len(page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
    assert found == opened.pods
    return time.perf_counter() - began


async def fan_out(url: str) -> tuple[float, float]:
    """Events a second that watchers of all nodes get while nodes are patched; and how long the last of them waited
    after the last write.
    """
    async with connected(url) as connection:
        _, body = await connection.ask("GET", "/api/v1/nodes")
        answer = orjson.loads(body)
        version, names = answer["metadata"]["resourceVersion"], [item["metadata"]["name"] for item in answer["items"]]
        async with anyio.create_task_group() as group:
            began = time.perf_counter()
            for _ in range(WATCHERS):
                group.start_soon(_watch, url, f"/api/v1/nodes?watch=1&resourceVersion={version}")
            for number, name in enumerate(islice(cycle(names), WRITES)):
                await _label(connection, name, number)
            written = time.perf_counter()
        ended = time.perf_counter()
    return WATCHERS * WRITES / (ended - began), ended - written


async def _label(connection: Connection, name: str, number: int) -> None:
    patch = [{"op": "add", "path": "/metadata/labels/benchmark", "value": str(number)}]
    status, answer = await connection.ask("PATCH", f"/api/v1/nodes/{name}", patch)
    assert status == 200, answer


async def _watch(url: str, path: str) -> None:
    seen = 0
    async with connected(url) as connection:
        async for chunk in connection.watch(path):
            seen += chunk.count(b'{"type":"MODIFIED"')
            if seen >= WRITES:
                return
