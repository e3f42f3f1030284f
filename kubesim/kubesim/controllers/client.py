"""The client of the controllers: in-process, or over HTTP to any API server.

Controllers see the server only through `ApiClient` and its watches, and never assume that their write has come back.
So the kubelet of the simulated cluster also runs against a real one.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple, Protocol

import aiohttp
import orjson

from kubesim.clock import Clock
from kubesim.server.api import ConnectionLost, Handler, Json, JsonObject, Request

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PAGE = "500"
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
LONGEST_SILENCE = 240.0
"""Seconds of silence after which a watch over HTTP counts as broken; a real server sends a bookmark every minute."""

logger = logging.getLogger(__name__)


class Event(NamedTuple):
    """One event of a watch: ADDED, MODIFIED, DELETED, BOOKMARK, ERROR; `follow` adds SYNCED. Do not change `object`."""

    type: str
    object: JsonObject


class Disconnected(Exception):
    """No answer came, or the stream broke. The request may have been carried out."""


class Refused(Exception):
    """The server answered with an error: `status` (HTTP) and `body` (usually a Status)."""

    def __init__(self, request: str, status: int, body: Json) -> None:
        reason = body.get("message", "") if isinstance(body, dict) else body
        super().__init__(f"{request}: {status} {reason}")
        self.status = status
        self.body = body


class ApiClient(Protocol):
    """An API server as its clients see it."""

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> tuple[int, Json]:
        """Send one request; returns the HTTP status and the body, errors included. Raises Disconnected."""
        ...

    def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        """The events of one watch until the server ends it. A refusal is one ERROR event. Raises Disconnected."""
        ...


class InProcess:
    """An API server in this very process: no sockets, and the objects are shared rather than copied."""

    def __init__(self, server: Handler, headers: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._headers = dict(headers or {})

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> tuple[int, Json]:
        """See ApiClient.call."""
        headers = {**self._headers, "content-type": content_type, "accept": JSON}
        request = Request(method=method, path=path, query=query or {}, headers=headers, body=body)
        try:
            response = await self._server(request)
        except ConnectionLost as error:
            raise Disconnected(f"{method} {path}: {error}") from error
        return response.status, response.body

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        """See ApiClient.watch."""
        headers = {**self._headers, "accept": JSON}
        request = Request(method="GET", path=path, query={**query, "watch": "1"}, headers=headers)
        try:
            response = await self._server(request)
            if response.stream is None:
                yield Event("ERROR", _status_object(response.status, response.body))
                return
            try:
                async for event in response.stream:
                    yield Event(event.type, event.object)
            finally:
                await response.stream.aclose()
        except ConnectionLost as error:
            raise Disconnected(f"watch of {path}: {error}") from error


class OverHttp:
    """Any API server over HTTP, with the session and credentials of the caller, which closes the session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`timeout` in seconds, for calls and connecting; a watch may be silent for LONGEST_SILENCE."""
        self._session = session
        self._base = base_url.rstrip("/")
        self._headers = {"Accept": JSON, "Accept-Encoding": "identity", **(headers or {})}
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> tuple[int, Json]:
        """See ApiClient.call."""
        data = None if body is None else orjson.dumps(body)
        headers = {**self._headers, "Content-Type": content_type} if data is not None else self._headers
        try:
            async with self._session.request(
                method,
                self._base + path,
                params=query,
                data=data,
                headers=headers,
                ssl=self._tls,
                timeout=self._timeout,
            ) as reply:
                return reply.status, _parsed(await reply.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Disconnected(f"{method} {path}: {error or type(error).__name__}") from error

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        """See ApiClient.watch."""
        try:
            async with self._session.get(
                self._base + path,
                params={**query, "watch": "1"},
                headers=self._headers,
                ssl=self._tls,
                timeout=aiohttp.ClientTimeout(sock_connect=self._timeout.total, sock_read=LONGEST_SILENCE),
            ) as reply:
                if reply.status != 200:
                    yield Event("ERROR", _status_object(reply.status, _parsed(await reply.read())))
                    return
                rest = b""
                # aiohttp's own line reader refuses lines longer than its buffer; an object may be larger than that.
                async for chunk in reply.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            event = orjson.loads(line)
                            yield Event(event["type"], event["object"])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Disconnected(f"watch of {path}: {error or type(error).__name__}") from error


async def ask(
    api: ApiClient,
    method: str,
    path: str,
    body: Json = None,
    *,
    content_type: str = JSON,
    allow: tuple[int, ...] = (),
) -> tuple[int, Json]:
    """Call, and raise Refused for an error that is not in `allow`. Raises Disconnected."""
    status, answer = await api.call(method, path, body, content_type=content_type)
    if status >= 400 and status not in allow:
        raise Refused(f"{method} {path}", status, answer)
    return status, answer


async def follow(api: ApiClient, path: str, query: Mapping[str, str], clock: Clock) -> AsyncGenerator[Event, None]:
    """List and watch indefinitely: ADDED, MODIFIED, DELETED, and SYNCED after each complete list. Resumes a watch, or
    lists again if its version is too old; missed deletions come as DELETED. On errors it retries after 50 ms, doubling
    to 5 s."""
    known: dict[tuple[str, str], JsonObject] = {}
    version, pause = "", FIRST_PAUSE
    while True:
        try:
            if not version:
                found, version = await _listed(api, path, query)
                for event in _differences(known, found):
                    yield event
                known = found
                yield Event("SYNCED", {"metadata": {"resourceVersion": version}})
            async with aclosing(
                api.watch(path, {**query, "resourceVersion": version, "allowWatchBookmarks": "true"})
            ) as events:
                async for event in events:
                    if event.type == "ERROR":
                        version = _after_error(path, event.object, version)
                        break
                    pause = FIRST_PAUSE
                    metadata = event.object["metadata"]
                    version = metadata["resourceVersion"]
                    if event.type == "BOOKMARK":
                        continue
                    key = (metadata.get("namespace", ""), metadata["name"])
                    if event.type == "DELETED":
                        known.pop(key, None)
                    else:
                        known[key] = event.object
                    yield event
        except (Disconnected, Refused) as error:
            logger.debug("watch of %s lost: %s", path, error)
        await clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _listed(api: ApiClient, path: str, query: Mapping[str, str]) -> tuple[dict[tuple[str, str], JsonObject], str]:
    """All objects and the version of the list, in pages."""
    found: dict[tuple[str, str], JsonObject] = {}
    token = ""
    while True:
        page = {**query, "limit": PAGE, **({"continue": token} if token else {})}
        status, body = await api.call("GET", path, query=page)
        if status != 200:
            raise Refused(f"GET {path}", status, body)
        for item in body["items"]:
            found[item["metadata"].get("namespace", ""), item["metadata"]["name"]] = item
        token = body["metadata"].get("continue", "")
        if not token:
            return found, body["metadata"]["resourceVersion"]


def _differences(
    known: Mapping[tuple[str, str], JsonObject], found: Mapping[tuple[str, str], JsonObject]
) -> list[Event]:
    """The events that lead from one view to another."""
    events = []
    for key, last_seen in known.items():
        now = found.get(key)
        if now is None or now["metadata"]["uid"] != last_seen["metadata"]["uid"]:
            events.append(Event("DELETED", last_seen))
    for key, now in found.items():
        before = known.get(key)
        if before is None or before["metadata"]["uid"] != now["metadata"]["uid"]:
            events.append(Event("ADDED", now))
        elif before["metadata"]["resourceVersion"] != now["metadata"]["resourceVersion"]:
            events.append(Event("MODIFIED", now))
    return events


def _after_error(path: str, status: JsonObject, version: str) -> str:
    """From which version to go on after an ERROR event: "" means list again."""
    if status.get("code") == 410:
        return ""
    logger.debug("watch of %s: %s", path, status.get("message"))
    return version


def _status_object(status: int, body: Json) -> JsonObject:
    return body if isinstance(body, dict) else {"kind": "Status", "code": status, "message": str(body)}


def _parsed(raw: bytes) -> Json:
    try:
        return orjson.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
