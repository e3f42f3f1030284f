"""The webhooks over HTTP: what is no question, what has no answer, and who is still answered when we go."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import anyio
import orjson
import pytest
from support.admission import StandInGate, a_node_object, a_review
from support.servers import free_port
from support.servers import serving as running

from gracectl.admission.nodes import NodeDeletionValidator
from gracectl.admission.reviews import Handler
from gracectl.admission.server import LIMITS, WebhookServer
from gracectl.admission.webhooks import NODE_DELETE_WEBHOOK
from gracectl.kube.errors import ServerError
from gracectl.kube.transport.operation import Operation
from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.server import Endpoint, Servers

pytestmark = pytest.mark.real_time

SEGMENT = "0123456789abcdef0123456789abcdef"
DELETION = a_review("DELETE", "nodes", None, a_node_object())


class Place:
    """A reception behind its door."""

    def __init__(self, reception: WebhookServer, servers: Servers, url: str, session: aiohttp.ClientSession) -> None:
        self.reception = reception
        self.servers = servers
        self.url = url
        self.session = session

    async def ask(self, body: Any = DELETION, query: str = "") -> tuple[int, str]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(self.url + query, data=BytesIO(data)) as response:
            return response.status, await response.text()

    def verdicts(self) -> dict[str, int]:
        return {verdict: number for (_, verdict), number in self.reception.statistics().verdicts.items()}


@asynccontextmanager
async def serving(handler: Handler, *, patience: float = 10.0, grace_seconds: float = 5.0) -> AsyncIterator[Place]:
    reception = WebhookServer(
        {NODE_DELETE_WEBHOOK: handler}, LoopClock(), patience, is_ours=lambda segment: segment == SEGMENT
    )
    port = free_port()
    door = Endpoint("x", f"127.0.0.1:{port}", {}, method="POST", limits=LIMITS, find=reception.find)
    async with running(door, grace_seconds=grace_seconds) as (servers, _), aiohttp.ClientSession() as session:
        yield Place(reception, servers, f"http://127.0.0.1:{port}/{SEGMENT}{NODE_DELETE_WEBHOOK.path}", session)


def deletion(gate: StandInGate, is_live: Callable[[], bool] = lambda: True) -> NodeDeletionValidator:
    return NodeDeletionValidator(gate, is_live)


async def test_a_question_has_an_answer_with_its_uid() -> None:
    async with serving(deletion(StandInGate())) as place:
        status, text = await place.ask(query="?timeout=10s")
        assert status == 200
        assert orjson.loads(text) == {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": "u1", "allowed": True},
        }
        assert place.verdicts() == {"allowed": 1}
        assert place.reception.statistics().seconds["node-delete"].count == 1


async def test_what_is_no_question_is_told_so() -> None:
    async with serving(deletion(StandInGate())) as place:
        status, text = await place.ask(b"hello")
        assert (status, text.startswith("not an AdmissionReview of admission.k8s.io/v1: ")) == (400, True)
        status, text = await place.ask(a_review("DELETE", "nodes"))
        assert (status, text) == (400, "request.oldObject: missing\n")
        status, text = await place.ask(b" " * (LIMITS.largest_body + 1))
        assert (status, text) == (413, "not a review: body exceeds 8388608 bytes\n")
        assert (await place.ask(b" " * (LIMITS.largest_body - 1)))[0] == 400
        assert place.verdicts() == {"invalid": 4}
        async with place.session.get(place.url) as response:
            assert response.status == 405


@pytest.mark.parametrize("path", [
    "/validate/nodes", f"/{'0' * 32}/validate/nodes", f"/{SEGMENT}", f"/{SEGMENT}/validate/pods", "//validate/nodes",
    "/",
])  # fmt: skip
async def test_a_review_on_another_path_is_not_read_and_counted(path: str) -> None:
    gate = StandInGate()
    gate.error = RuntimeError("asked")
    async with serving(deletion(gate)) as place:
        place.url = place.url.removesuffix(f"/{SEGMENT}{NODE_DELETE_WEBHOOK.path}") + path
        assert (await place.ask())[0] == 404
        assert place.verdicts() == {}
        assert place.reception.statistics().strangers == 1


async def test_a_cluster_that_cannot_be_asked_leaves_it_to_the_failure_policy(caplog: pytest.LogCaptureFixture) -> None:
    gate = StandInGate()
    gate.error = ServerError(
        Operation("patch", "termination.karpenter.sh", "nodedisruptionbudgets", "status", "", "pool-a"), "etcd is away"
    )
    async with serving(deletion(gate)) as place:
        with caplog.at_level(logging.WARNING):
            status, text = await place.ask()
        assert status == 500
        assert text.startswith("API server: ")
        assert "etcd is away" in text
        assert any("etcd is away" in message for message in caplog.messages)
        assert place.verdicts() == {"failed": 1}


async def test_before_the_caches_are_live_it_is_not_ready() -> None:
    async with serving(deletion(StandInGate(), lambda: False)) as place:
        assert (await place.ask())[0] == 503
        assert place.verdicts() == {"unready": 1}


async def test_a_fault_of_ours_is_logged_and_the_next_question_answered(caplog: pytest.LogCaptureFixture) -> None:
    gate = StandInGate()
    gate.error = RuntimeError("oh")
    async with serving(deletion(gate)) as place:
        assert await place.ask() == (500, "unexpected failure of gracectl; see its log\n")
        assert any(record.exc_info for record in caplog.records)
        gate.error = None
        assert (await place.ask())[0] == 200
        assert place.verdicts() == {"failed": 1, "allowed": 1}


class SlowGate(StandInGate):
    """Takes until it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = anyio.Event()
        self.may_answer = anyio.Event()

    async def admit(self, node: Any, *, dry_run: bool = False, is_forced: bool = False) -> Any:
        self.is_asked.set()
        await self.may_answer.wait()
        return None


async def test_no_review_takes_longer_than_the_server_waits() -> None:
    async with serving(deletion(SlowGate())) as place:
        status, text = await place.ask(query="?timeout=50ms")
        assert (status, text) == (500, "no decision within 0.05 s: the API server responds too slowly\n")
    async with serving(deletion(SlowGate()), patience=0.05) as place:
        for query in ("", "?timeout=nonsense", "?timeout=-1s", "?timeout=1h"):
            assert (await place.ask(query=query))[0] == 500


async def test_an_open_request_is_answered_at_shutdown_and_its_connection_closed() -> None:
    gate = SlowGate()
    async with serving(deletion(gate)) as place:
        answers: list[tuple[int, str | None]] = []

        async def ask() -> None:
            async with place.session.post(place.url, data=orjson.dumps(DELETION)) as response:
                answers.append((response.status, response.headers.get("Connection")))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await gate.is_asked.wait()
            place.reception.is_stopping = True
            group.start_soon(place.servers.close)
            await anyio.sleep(0.05)
            assert not answers
            gate.may_answer.set()
        assert answers == [(200, "close")]
        with pytest.raises(aiohttp.ClientConnectorError):
            await place.ask()


async def test_a_kept_connection_serves_again() -> None:
    made = []

    async def note(*_: object) -> None:
        made.append(1)

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(note)
    async with serving(deletion(StandInGate())) as place, aiohttp.ClientSession(trace_configs=[trace]) as session:
        place.session = session
        for _ in range(3):
            assert (await place.ask())[0] == 200
    assert made == [1]
