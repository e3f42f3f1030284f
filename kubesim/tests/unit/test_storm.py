"""The server in a storm of requests: it always answers, shows every client the same, and keeps what it has stored."""

from __future__ import annotations

import random
from typing import Any

import anyio
import orjson
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Request
from kubesim.server.store import Change, Table
from kubesim_support.caller import Caller
from kubesim_support.storm import DEFINING, SERVED, Storm
from kubesim_support.watcher import Watcher

pytestmark = pytest.mark.anyio

SELECTIONS: tuple[dict[str, str], ...] = (
    {},
    {"labelSelector": "app=web"},
    {"labelSelector": "!app"},
    {"fieldSelector": "metadata.name=p"},
)
RELABELLING = ({"app": "web"}, {"app": "x"}, {"app": None})


async def begun(api: Caller) -> None:
    """Let there be one of everything."""
    await api.create(DEFINING.path, DEFINING.whole)
    await anyio.sleep(1)
    for served in SERVED:
        await api.call("POST", served.path, served.whole)


@pytest.mark.seeds(2)
async def test_every_request_is_answered(seed: int) -> None:
    storm, api = Storm(seed), Caller(ApiServer(LoopClock(), window=50))
    await begun(api)
    for _ in range(3000):
        request = storm.request()
        answer = await api.server.handle(request)
        if answer.stream is not None:
            await answer.stream.aclose()
        elif not isinstance(answer.body, str | bytes):
            body: Any = orjson.loads(orjson.dumps(answer.body))
            assert answer.status < 400 or body["kind"] == "Status", (request, body)


def scramble(value: Any) -> None:
    """Change a value in place, wherever it can be changed."""
    if isinstance(value, dict):
        for item in value.values():
            scramble(item)
        value["scrambled"] = True
    elif isinstance(value, list):
        for item in value:
            scramble(item)
        value.append("scrambled")


@pytest.mark.seeds(2)
async def test_lists_and_watches_agree_and_nothing_stored_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[tuple[Any, bytes]] = []
    record = Table.record

    def noted(table: Table, change: Change) -> None:
        record(table, change)
        stored.append((change.object, orjson.dumps(change.object)))

    monkeypatch.setattr(Table, "record", noted)
    storm, api = Storm(seed), Caller(ApiServer(LoopClock(), window=(10_000, 30)[seed % 2]))
    await begun(api)
    rng = storm.rng
    paths = {served.path for served in SERVED} | {"/api/v1/pods", "/apis/c.example/v2/things"}
    watchers = [
        Watcher(api, random.Random(rng.random()), path, query) for path in sorted(paths) for query in SELECTIONS
    ]

    async def send(request: Request) -> None:
        answer = await api.server.handle(request)
        scramble(request.body)
        if answer.stream is not None:
            await answer.stream.aclose()

    async with anyio.create_task_group() as group:
        for watcher in watchers:
            group.start_soon(watcher.run)
        for turn in range(1200):
            served = rng.choice(SERVED)
            group.start_soon(send, storm.write(served))
            patch = {"metadata": {"labels": dict(rng.choice(RELABELLING))}}
            headers = {"content-type": "application/merge-patch+json"}
            path = f"{served.path}/{served.name}"
            group.start_soon(send, Request(method="PATCH", path=path, headers=headers, body=patch))
            if turn % 100 == 0:
                metadata = {"name": f"loaded-{turn}", "namespace": "default", "uid": f"{turn}"}
                api.server.store.load(
                    api.server.store.table("configmaps"), [{"kind": "ConfigMap", "metadata": metadata}]
                )
            await anyio.sleep(rng.choice((0, 0, 0.01, 0.5)))
        await anyio.sleep(200)
        for watcher in watchers:
            await watcher.compare()
        group.cancel_scope.cancel()
    assert [fault for watcher in watchers for fault in watcher.faults] == []
    assert sum(watcher.events for watcher in watchers) > 500
    assert sum(watcher.expired for watcher in watchers) > 0
    assert [now for now, then in stored if orjson.dumps(now) != then] == []
