"""The embedded cluster as a target: in-process, on virtual time, with the controllers of the recorder's cluster."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Literal

import anyio
import msgspec
from conformance.target import WEBHOOK_PORT, Review
from kubesim.admission.caller import InProcessWebhooks
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.controllers.client import InProcess
from kubesim.controllers.informers import Informers
from kubesim.controllers.pace import Pace
from kubesim.controllers.parts import MAKERS, PartOptions
from kubesim.server.api import Json, JsonObject, Request, Response
from kubesim.server.calls import User

PARTS = ("scheduler", "deployments", "replicasets", "disruption", "garbage-collector", "pod-gc", "attachments")
"""No kubelet: the recordings run pods by patching their status. No node lifecycle controller."""

MASTERS = ("system:masters", "system:authenticated")
USERS = {
    "conformance": User("admin", uid="admin", groups=MASTERS),
    "controllers": User("system:kube-controller-manager", groups=MASTERS),
}
"""By bearer token. As `admin` the recorder came."""

RECORDER = {"authorization": "Bearer conformance", "user-agent": "Python/3.11 aiohttp/3.9"}
CONTROLLERS = {"authorization": "Bearer controllers", "user-agent": "kube-controller-manager"}
NO_AUTHORITY = b64encode(b"in-process: never verified").decode()
LATENCY = 0.005
"""Seconds between two requests of a client; the controllers act in them, as they did beside the recorder."""


class EmbeddedTarget:
    """A fresh cluster."""

    kind: Literal["embedded", "live"] = "embedded"
    traits: frozenset[str] = frozenset()

    def __init__(self, server: ApiServer, webhooks: InProcessWebhooks, clock: LoopClock) -> None:
        self.clock = clock
        self._server = server
        self._webhooks = webhooks

    async def handle(self, request: Request) -> Response:
        """See Target."""
        headers = {**RECORDER, **request.headers}
        response = await self._server.handle(msgspec.structs.replace(request, headers=headers))
        return msgspec.structs.replace(response, body=_read(response.body))

    async def pause(self) -> None:
        """See Target."""
        await self.clock.sleep(LATENCY)

    def without_own(self, body: Json) -> Json:
        """See Target."""
        return body

    def stage(self, made: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """See Target: the cluster is a fresh one."""
        return nullcontext()

    @asynccontextmanager
    async def webhook(self, review: Review) -> AsyncIterator[str]:
        """See Target."""

        async def answer(question: JsonObject) -> JsonObject:
            return await review(question)

        url = f"https://127.0.0.1:{WEBHOOK_PORT}/"
        self._webhooks.register(url, answer)
        try:
            yield NO_AUTHORITY
        finally:
            self._webhooks.remove(url)

    def compact(self) -> None:
        """See Target."""
        store = self._server.store
        store.revision += 1
        store.compact()


@asynccontextmanager
async def embedded() -> AsyncIterator[EmbeddedTarget]:
    """A running cluster of this test's own."""
    clock, webhooks = LoopClock(), InProcessWebhooks()
    server = ApiServer(clock, tokens=USERS, webhooks=webhooks)
    informers = Informers(InProcess(server.handle, CONTROLLERS), clock)
    parts = [MAKERS[name](informers, Pace(clock), PartOptions()) for name in PARTS]
    async with anyio.create_task_group() as group:
        for run in (informers.run, *(part.run for part in parts)):
            group.start_soon(run)
        yield EmbeddedTarget(server, webhooks, clock)
        group.cancel_scope.cancel()


def _read(body: Json) -> Json:
    """A body as a client reads it."""
    if not isinstance(body, bytes):
        return body
    text = body.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
