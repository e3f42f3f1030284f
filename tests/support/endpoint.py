"""An HTTP endpoint that terminates machines, as a user writes one for the provider `webhook`: it checks the signature,
and answers what the test wants."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

SECRET = base64.b64encode(b"a secret of thirty-two bytes ...").decode()


class Call(msgspec.Struct, frozen=True):
    """What came in, and the response's like: header names are lower-case."""

    path: str
    headers: dict[str, str]
    body: Any


Answering = Callable[[Call], Awaitable[web.StreamResponse]]


def says(status: int, body: Any = None, **headers: str) -> web.Response:
    """An answer; a text is sent as it is, all else as JSON; `retry_after` is a header."""
    text = body if isinstance(body, str) else "" if body is None else msgspec.json.encode(body).decode()
    return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})


def is_signed(call_headers: dict[str, str], raw: bytes, secret: str = SECRET) -> bool:
    """As https://www.standardwebhooks.com has it, written anew from there."""
    signed = f"{call_headers['webhook-id']}.{call_headers['webhook-timestamp']}.".encode() + raw
    wanted = base64.b64encode(hmac.new(base64.b64decode(secret), signed, hashlib.sha256).digest()).decode()
    return f"v1,{wanted}" in call_headers["webhook-signature"].split(" ")


class Endpoint:
    """`answers` are given one by one, then `otherwise` is asked."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: deque[web.StreamResponse] = deque()
        self.secret = SECRET
        self.url = ""
        self.otherwise: Answering = self._running

    async def _running(self, call: Call) -> web.StreamResponse:
        return says(200, {"state": "running"})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        call = Call(request.path_qs, headers, msgspec.json.decode(raw) if raw else None)
        self.calls.append(call)
        if not is_signed(headers, raw, self.secret):
            return says(401, {"message": "the signature does not fit"})
        return self.answers.popleft() if self.answers else await self.otherwise(call)


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """An endpoint on a port of its own while the block lasts."""
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", endpoint.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        endpoint.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/machines"
        yield endpoint
    finally:
        await runner.cleanup()
