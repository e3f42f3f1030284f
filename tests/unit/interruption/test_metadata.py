"""The agent's sources against metadata services that behave as the clouds document, and against some that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from aiohttp import web
from kubesim_support.patience import PATIENCE
from support.handlers import StandInHandler, T
from support.servers import answering

from gracectl.interruption import metadata
from gracectl.interruption.metadata import AzureSource, Ec2Source, GceSource, HttpService, open_session
from gracectl.interruption.source import Notice
from gracectl.policy.interruption import Kind
from gracectl.runtime.supervise import while_running

pytestmark = pytest.mark.real_time

AT, AT_TEXT = T + 120, "2026-01-01T00:02:00Z"
GMT = "Thu, 01 Jan 2026 00:02:00 GMT"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
EVENT = {"EventId": "E1", "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["pool_1"],
         "EventStatus": "Scheduled", "NotBefore": GMT, "EventSource": "Platform"}  # fmt: skip


AnySource = Ec2Source | GceSource | AzureSource


class Requests:
    """What was asked of a service, and its answers by path: text, or a handler."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.answers: dict[str, Any] = {}
        self.approved: list[Any] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path))
        found = self.answers.get(request.path)
        if callable(found):
            response: web.StreamResponse = await found(request)
            return response
        return web.Response(status=404) if found is None else web.Response(text=found)

    def count(self, path: str) -> int:
        return sum(each == path for _, each in self.seen)


class Imds(Requests):
    """EC2's, version 2: a session token in each request, which it forgets when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: set[str] = set()
        self.granted = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/latest/api/token":
            if request.method != "PUT" or not request.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return web.Response(status=400)
            self.granted += 1
            self.tokens.add(f"token-{self.granted}==")
            return web.Response(text=f"token-{self.granted}==")
        if request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return web.Response(status=401)
        return await super().answer(request)


class Google(Requests):
    """Compute Engine's: a request that waits is answered when the value has changed, or its time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.flavor = "Google"
        self.waiting = 0
        self.changed = anyio.Event()

    def put(self, key: str, value: str) -> None:
        self.values[key] = value
        self.changed.set()
        self.changed = anyio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        key = request.path.rpartition("/")[2]
        self.seen.append((request.method, request.path))
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        if request.query.get("wait_for_change") == "true" and request.query["last_etag"] == self.etag(key):
            self.waiting += 1
            with anyio.move_on_after(int(request.query["timeout_sec"])):
                while request.query["last_etag"] == self.etag(key):
                    await self.changed.wait()
        return web.Response(text=self.values[key], headers={"ETag": self.etag(key), "Metadata-Flavor": self.flavor})

    def etag(self, key: str) -> str:
        return f"{key}{self.values[key]}".encode().hex()[:16] + f"{len(self.values[key]):02x}"


class Azure(Requests):
    """Azure's: the header is required, and a POST approves events."""

    def __init__(self, *events: dict[str, Any]) -> None:
        super().__init__()
        self.events = list(events)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path))
        if request.headers.get("Metadata") != "true" or not request.query.get("api-version"):
            return web.Response(status=400)
        if request.path == "/metadata/instance/compute/name":
            return web.Response(text="pool_1")
        if request.method == "POST":
            self.approved.append(await request.json())
            return web.Response()
        return web.json_response({"DocumentIncarnation": 1, "Events": self.events})


@asynccontextmanager
async def hearing(
    service: Requests, source_of: Callable[[HttpService], AnySource]
) -> AsyncIterator[tuple[StandInHandler, AnySource]]:
    """A source that polls this service at a port of its own."""
    handler = StandInHandler()
    async with answering(service.answer) as port, open_session() as session:
        source = source_of(HttpService(session, f"http://127.0.0.1:{port}"))
        async with while_running(partial(source.poll, handler)):
            yield handler, source


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110  # of another process
            await anyio.sleep(0.01)


async def test_a_spot_notice_is_heard_once_with_the_time_of_the_instance() -> None:
    service = Imds()
    async with hearing(service, Ec2Source) as (handler, source):
        await until(lambda: service.count(REBALANCE) >= 2)
        assert handler.notices == []
        assert source.problem == ""
        service.answers[ACTION] = f'{{"action": "terminate", "time": "{AT_TEXT}"}}'
        await until(lambda: bool(handler.notices))
        seen = service.count(ACTION)
        await until(lambda: service.count(ACTION) >= seen + 3)
        assert handler.notices == [Notice(kind=Kind.SPOT, at=AT, text="terminate")]
        service.answers[ACTION] = '{"action": "terminate", "time": "2026-01-01T00:01:00Z"}'
        await until(lambda: len(handler.notices) == 2)
        assert set(handler.sleeps) == {5.0}
    assert service.granted == 1


async def test_a_rebalance_recommendation_has_no_end() -> None:
    service = Imds()
    service.answers[REBALANCE] = '{"noticeTime": "2026-01-01T00:00:00Z"}'
    async with hearing(service, Ec2Source) as (handler, _):
        await until(lambda: bool(handler.notices))
        assert handler.notices == [Notice(kind=Kind.REBALANCE, at=None, issued=T)]


async def test_a_token_that_is_refused_is_replaced() -> None:
    service = Imds()
    async with hearing(service, Ec2Source) as (handler, source):
        await until(lambda: service.count(ACTION) >= 1)
        service.tokens.clear()
        service.answers[ACTION] = f'{{"action": "stop", "time": "{AT_TEXT}"}}'
        await until(lambda: bool(handler.notices))
        assert source.problem == ""
        assert set(handler.sleeps) == {5.0}
    assert service.granted == 2


async def test_a_preemption_is_heard_by_a_request_that_waits() -> None:
    service = Google()
    async with hearing(service, GceSource) as (handler, _):
        await until(lambda: service.waiting == 2)
        asked = len(service.seen)
        service.put("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        service.put("preempted", "TRUE")
        await until(lambda: bool(handler.notices))
        await until(lambda: service.waiting == 4)
        assert handler.notices == [Notice(kind=Kind.SPOT, at=T + 30, text="preempted")]
        assert len(service.seen) == asked + 2, "a request that waits was repeated"


async def test_a_machine_that_maintenance_terminates_goes_at_an_unknown_time() -> None:
    service = Google()
    service.put("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    async with hearing(service, GceSource) as (handler, _):
        await until(lambda: bool(handler.notices))
        assert handler.notices == [Notice(kind=Kind.OTHER, at=None, text="maintenance-event")]


async def test_another_server_at_the_address_is_not_believed() -> None:
    service = Google()
    service.flavor = "Other"
    service.put("preempted", "TRUE")
    async with hearing(service, GceSource) as (handler, source):
        await until(lambda: source.problem == "preempted: not Google's")
        assert handler.notices == []


async def test_events_of_azure_are_heard_if_they_end_this_machine() -> None:
    service = Azure(
        {**EVENT, "EventId": "other", "Resources": ["pool_2"]},
        {**EVENT, "EventId": "freeze", "EventType": "Freeze"},
        {**EVENT, "EventId": "E1"},
        {**EVENT, "EventId": "E2", "EventType": "Redeploy", "EventStatus": "Started", "NotBefore": ""},
        {**EVENT, "EventId": "E3", "EventType": "Terminate", "Resources": ["pool_2", "pool_1"]},
    )
    async with hearing(service, AzureSource) as (handler, _):
        await until(lambda: len(handler.sleeps) >= 3)
        assert [(each.kind, each.at, each.text) for each in handler.notices] == [
            (Kind.SPOT, AT, "Preempt"), (Kind.MAINTENANCE, T, "Redeploy"), (Kind.OTHER, AT, "Terminate"),
        ]  # fmt: skip
        assert set(handler.sleeps) == {1.0}
        handler.drained.set()
        asked = len(service.seen)
        await until(lambda: len(service.seen) >= asked + 3)
    assert service.approved == []


async def test_an_event_is_approved_once_when_the_node_is_drained_and_no_other_machine_is_in_it() -> None:
    both = {**EVENT, "EventId": "both", "Resources": ["pool_1", "pool_2"]}
    service = Azure(EVENT, both, {**EVENT, "EventId": "begun", "EventStatus": "Started"})
    async with hearing(service, lambda each: AzureSource(each, approves=True)) as (handler, _):
        await until(lambda: len(handler.sleeps) >= 3)
        assert len(handler.notices) == 3
        assert service.approved == []
        handler.drained.set()
        await until(lambda: bool(service.approved))
        asked = len(service.seen)
        await until(lambda: len(service.seen) >= asked + 3)
    assert service.approved == [{"StartRequests": [{"EventId": "E1"}]}]


async def _too_long(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" " * 65536)
    return response


async def _never(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await anyio.sleep(0.01)


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/secret")


async def _malformed(request: web.Request) -> web.StreamResponse:
    return web.Response(text='{"action": 1}')


async def _no_time(request: web.Request) -> web.StreamResponse:
    return web.Response(text='{"action": "stop", "time": "soon\\u001b"}')


@pytest.mark.parametrize(("answer", "problem"), [
    (_too_long, "notices: answer longer than 256 KiB"),
    (_never, "notices: no answer in 0.3 s; pods may need agent.hostNetwork to reach it"),
    (_elsewhere, "notices: status 302"),
    (_malformed, "notices: Expected `str`, got `int` - at `$.action`"),
    (_no_time, "notices: "),
])  # fmt: skip
async def test_a_service_that_misbehaves_is_bounded_reported_and_asked_again(
    answer: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ANSWER_SECONDS", 0.3)
    service = Imds()
    service.answers[ACTION] = answer
    async with hearing(service, Ec2Source) as (handler, source):
        await until(lambda: bool(source.problem))
        assert source.problem.startswith(problem)
        assert source.problem.isprintable()
        assert handler.notices == []
        service.answers[ACTION] = f'{{"action": "stop", "time": "{AT_TEXT}"}}'
        await until(lambda: bool(handler.notices))
        await until(lambda: source.problem == "")
    assert service.count("/secret") == 0
