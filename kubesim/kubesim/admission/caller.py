"""Callers of webhooks: the Protocol, and one for webhooks in this process (for virtual time).

A caller only carries bytes; its own caller sets the deadline. Transport errors are `CallFailed` in Go's words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
import orjson

from kubesim.admission.failures import CallFailed
from kubesim.admission.webhooks import Client
from kubesim.server.api import JsonObject

HTTPS_PORT: Final = 443


class Reply(msgspec.Struct, frozen=True):
    """What came back over HTTP."""

    status: int
    body: bytes
    content_type: str = "application/json"


class WebhookCaller(Protocol):
    """Reaches webhooks. Belongs to one server, which closes it."""

    async def post(self, client: Client, url: str, body: bytes) -> Reply:
        """POST JSON to a webhook; `url` is the client's, with its query. Raises CallFailed when there is no answer."""
        ...

    async def aclose(self) -> None:
        """Let go of connections. Calls may follow all the same."""
        ...


Handler = Callable[[JsonObject], Awaitable[JsonObject | Reply]]
"""Answers an AdmissionReview with an AdmissionReview, or with whatever else a webhook might send."""


class InProcessWebhooks:
    """Webhooks that are functions of this process, by URL. Others refuse the connection."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def register(self, url: str, handler: Handler) -> None:
        """Let `handler` answer at `url` (of a webhook behind a Service: `https://NAME.NAMESPACE.svc:PORT/PATH`)."""
        self._handlers[url.rstrip("/")] = handler

    def remove(self, url: str) -> None:
        """Remove the webhook at `url`. Raises KeyError if there is none."""
        del self._handlers[url.rstrip("/")]

    async def post(self, client: Client, url: str, body: bytes) -> Reply:
        """See WebhookCaller."""
        handler = self._handlers.get(client.url.rstrip("/"))
        if handler is not None:
            answer = await handler(orjson.loads(body))
            return answer if isinstance(answer, Reply) else Reply(200, orjson.dumps(answer))
        address = urlsplit(client.url)
        dialled = f"{address.hostname}:{address.port or HTTPS_PORT}"
        raise CallFailed(post_failed(url, f"dial tcp {dialled}: connect: connection refused"))

    async def aclose(self) -> None:
        """See WebhookCaller."""


def post_failed(url: str, why: str) -> str:
    """The text of a call that was not answered, or took too long."""
    return f'failed to call webhook: Post "{url}": {why}'


STATUS_WORDS: Final[Mapping[int, str]] = {
    400: "the server rejected our request for an unknown reason",
    401: "the server has asked for the client to provide credentials",
    404: "the server could not find the requested resource",
    405: "the server does not allow this method on the requested resource",
    409: "the server reported a conflict",
    422: "the server rejected our request due to an error in our request",
    429: "the server has received too many requests and has asked us to try again later",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted, but may still be processing the request",
}


def body_of(reply: Reply) -> bytes:
    """The body of an answer that is one. Raises CallFailed for a status that is none, or for nothing at all."""
    if 200 <= reply.status <= 206:
        if not reply.body:
            kind = reply.content_type
            text = f"0-length response with status code: {reply.status} and content type: {kind}"
            raise CallFailed(f"failed to call webhook: {text}")
        return reply.body
    is_text = reply.content_type.startswith("text/")
    text = reply.body[:2048].decode(errors="replace").strip() if is_text else "unknown"
    if reply.status in (403, 415):
        words = text
    elif reply.status in STATUS_WORDS:
        words = STATUS_WORDS[reply.status]
    elif reply.status >= 500:
        words = f"an error on the server ({orjson.dumps(text).decode()}) has prevented the request from succeeding"
    else:
        words = f"the server responded with the status code {reply.status} but did not return more information"
    raise CallFailed(f"failed to call webhook: {words}")
