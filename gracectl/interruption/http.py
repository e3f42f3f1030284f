"""Source `http`: a webhook for everything else, in every replica; docs/interruptions.md has its contract.

Invariants: no request has an effect without a valid signature (https://www.standardwebhooks.com) or the token; a
request that was answered with 200 is on the node, or about no node of ours, and all others may be repeated.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio
import msgspec
from aiohttp import web

from gracectl.cloud.webhook import ReloadedFile, has_valid_signature, is_loopback, read_secrets
from gracectl.interruption.source import Handler, Notice, Outcome
from gracectl.kube.errors import ApiError
from gracectl.model.encoding import encode
from gracectl.model.foreign import harmless
from gracectl.model.selectors import is_subdomain
from gracectl.model.times import parse_time
from gracectl.model.untrusted import Decoder
from gracectl.policy.interruption import Kind
from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.connections import BodyReader, BodyRefused, Limits
from gracectl.telemetry.server import Endpoint, Servers
from gracectl.telemetry.settings import parse_address

logger = logging.getLogger(__name__)

NOTICE_PATH: Final = "/v1/interruptions"
ALERT_PATH: Final = "/v1/alertmanager"
RECORD_SECONDS: Final = 10.0
RETRY_SECONDS: Final = "5"
MOST_ALERTS: Final = 100
LONGEST_ID: Final = 1000
LIMITS: Final = Limits(largest_body=256 * 1024, bodies=4 * 1024 * 1024)


class _Notice(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    node: str = ""
    provider_id: str = msgspec.field(default="", name="providerID")
    kind: Kind
    at: str | None = None
    issued: str | None = None
    text: str = ""


class _Alert(msgspec.Struct, frozen=True, rename="camel"):
    status: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    starts_at: str = ""


class _Alerts(msgspec.Struct, frozen=True):
    alerts: tuple[_Alert, ...]


_NOTICE, _ALERTS = Decoder(_Notice), Decoder(_Alerts)


class HttpSource:
    """Serves one address."""

    name = "http"

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`secretFile`: secrets of signatures, one per line; `tokenFile`: a bearer token, which needs TLS. `insecure`
        allows it without."""

        listen: str
        secret_file: str = ""
        token_file: str = ""
        cert_file: str = ""
        key_file: str = ""
        insecure: bool = False

        def __post_init__(self) -> None:
            """Raises ValueError."""
            try:
                host, _ = parse_address(self.listen)
            except ValueError as error:
                raise ValueError(f"listen: {error}") from error
            if not self.secret_file and not self.token_file:
                raise ValueError("secretFile: is missing, and so is tokenFile; set one of them")
            if bool(self.cert_file) != bool(self.key_file):
                raise ValueError("certFile and keyFile: set both, or none")
            if self.token_file and not (self.cert_file or self.insecure or is_loopback(host or "")):
                raise ValueError("tokenFile: needs TLS: set certFile and keyFile, or insecure: true")

    def __init__(self, options: Options) -> None:
        """Raises ValueError for invalid files."""
        self._options = options
        secrets, token, certificate = options.secret_file, options.token_file, options.cert_file
        self._secrets = ReloadedFile("secretFile", secrets, _read_secrets) if secrets else None
        self._token = ReloadedFile("tokenFile", token, _read_token) if token else None
        self._tls = ReloadedFile("certFile", certificate, lambda _: self._context()) if certificate else None
        self._servers: Servers | None = None

    async def open(self, handler: Handler) -> None:
        """See Serves."""
        endpoint = Endpoint(
            "interruption.sources: http: listen",
            self._options.listen,
            {
                NOTICE_PATH: self._handling(handler, _read_notice),
                ALERT_PATH: self._handling(handler, _read_alerts),
            },
            method="POST",
            tls=self._tls.current if self._tls else None,
            limits=LIMITS,
        )
        self._servers = Servers((endpoint,), LoopClock())
        self.urls = await self._servers.open()

    async def serve(self) -> None:
        """See Serves."""
        assert self._servers is not None
        await self._servers.run()

    async def close(self) -> None:
        """See Serves."""
        if self._servers is not None:
            await self._servers.close()

    def _handling(
        self, handler: Handler, read: Callable[[bytes], Sequence[Notice]]
    ) -> Callable[[web.BaseRequest, BodyReader], Awaitable[web.Response]]:
        async def handle(request: web.BaseRequest, bodies: BodyReader) -> web.Response:
            try:
                async with bodies.read(request) as body:
                    if not self._is_trusted(request, bytes(body), handler.now()):
                        handler.count(Outcome.REFUSED)
                        return _response(401, "no valid signature or token; check secret and clocks")
                    notices = read(bytes(body))
            except BodyRefused as error:
                response = _response(error.status, str(error))
                response.force_close()
                return response
            except ValueError as error:
                handler.count(Outcome.REFUSED)
                return _response(400, harmless(str(error), 400))
            return await _receive(handler, notices)

        return handle

    def _is_trusted(self, request: web.BaseRequest, body: bytes, now: float) -> bool:
        if self._token is not None:
            given = request.headers.get("authorization", "").encode("utf-8", "replace")
            if hmac.compare_digest(given, b"Bearer " + self._token.current()):
                return True
        return self._secrets is not None and has_valid_signature(self._secrets.current(), request.headers, body, now)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._options.cert_file, self._options.key_file)
        return context


async def _receive(handler: Handler, notices: Sequence[Notice]) -> web.Response:
    try:
        with anyio.fail_after(RECORD_SECONDS):
            receipts = [await handler.receive(notice) for notice in notices]
    except TimeoutError:
        return _response(503, f"not recorded within {RECORD_SECONDS:g} s; repeat it", retry=True)
    except ApiError as error:
        return _response(503, f"API server: {error}; repeat it", retry=True)
    if not receipts:
        handler.count(Outcome.IGNORED)
    outcomes = [{"outcome": each.outcome, "nodes": [node.name for node in each.nodes]} for each in receipts]
    return web.Response(body=encode({"notices": outcomes}), content_type="application/json")


def _response(status: int, text: str, *, retry: bool = False) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers={"Retry-After": RETRY_SECONDS} if retry else {})


def _read_notice(body: bytes) -> tuple[Notice, ...]:
    """The notice of a body. Raises ValueError."""
    found = _decoded(_NOTICE, body)
    if bool(found.node) == bool(found.provider_id):
        raise ValueError("name the machine by node or by providerID")
    if found.node and not is_subdomain(found.node):
        raise ValueError("node: is not a DNS-1123 subdomain")
    if len(found.provider_id) > LONGEST_ID:
        raise ValueError(f"providerID: longer than {LONGEST_ID} characters")
    return (
        Notice(
            kind=found.kind,
            node=found.node,
            provider_id=found.provider_id.strip(),
            at=_time("at", found.at),
            issued=_time("issued", found.issued),
            text=found.text,
        ),
    )


def _read_alerts(body: bytes) -> tuple[Notice, ...]:
    """Notices of the firing alerts with a label `node`. Raises ValueError.

    An alert is paced unless its label `gracectl_kind` says otherwise.
    """
    alerts = _decoded(_ALERTS, body).alerts
    if len(alerts) > MOST_ALERTS:
        raise ValueError(f"more than {MOST_ALERTS} alerts")
    firing = (each for each in alerts if each.status == "firing" and is_subdomain(each.labels.get("node", "")))
    return tuple(map(_notice_of, firing))


def _notice_of(alert: _Alert) -> Notice:
    kind = alert.labels.get("gracectl_kind", Kind.MAINTENANCE)
    if kind not in list(Kind):
        raise ValueError(f"label gracectl_kind: none of {', '.join(Kind)}")
    text = f"alert {alert.labels.get('alertname', '')}: {alert.annotations.get('summary', '')}"
    return Notice(
        kind=Kind(kind),
        node=alert.labels["node"],
        at=_time("annotation gracectl_at", alert.annotations.get("gracectl_at")),
        issued=_time("startsAt", alert.starts_at or None),
        text=text,
    )


def _time(field: str, text: str | None) -> float | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


def _decoded(decoder: Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def _read_secrets(content: bytes) -> tuple[bytes, ...]:
    return read_secrets(content.decode())


def _read_token(content: bytes) -> bytes:
    token = content.strip()
    if len(token) < 16 or not token.isascii() or not token.decode().isprintable():
        raise ValueError("is no token of at least 16 characters; create one with: openssl rand -hex 32")
    return token
