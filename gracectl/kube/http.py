"""Transport over HTTP(S), on aiohttp.

It sets what aiohttp would decide itself: no proxy from the environment (reading it costs two thread hops a
request), no compression (20 µs a pod on a LAN), no cookies, no redirects, limits on responses and lines, and timeouts
on connecting and on silence. aiohttp itself repeats one thing: a GET or DELETE whose kept-alive connection turns out
to be closed; our deletions carry a UID as precondition.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode

import aiohttp
import anyio.lowlevel
import msgspec
from aiohttp.connector import AddrInfoType
from yarl import URL

from gracectl import __version__
from gracectl.kube.auth.credentials import Credentials, CredentialsError, Identity
from gracectl.kube.client.watch import LineSplitter
from gracectl.kube.errors import ApiError, TooLarge, Unauthorized, Unreachable
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import operation_of
from gracectl.kube.transport.skew import SkewEstimate
from gracectl.runtime.clock import Clock

HEADERS: Final[Mapping[str, str]] = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"gracectl/{__version__}",
}
"""Headers of every HTTP request."""

# aiohttp does not wait for a TLS connection that was cut: closing takes a round trip.
_CLOSING_SECONDS = 0.25
# Of each connection; aiohttp buffers twice as much.
_READ_BUFFER = 512 * 1024
# Pieces within `HttpSettings.busy` seconds from which a stream is busy until they are over.
_BUSY_PIECES = 16
# A piece of this many bytes is followed by the next read immediately: so large a piece has already accumulated.
_LARGE_PIECE = 64 * 1024
# Bytes of a line after which other tasks run first: decoding it takes as long as a hundred ordinary lines.
_LARGE_LINE = 256 * 1024


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`connections` at once, watches included, for each pool of requests: more than all components use, as a
    request without one waits behind the others. Seconds: `connect`; `silence` of an open watch; `idle`, for which an
    unused connection is kept: less than the API server's 90, and long enough that deletions of one second find those of
    the last wave, since a TLS handshake costs as much as the request; `dead`, after which a peer that does not even
    acknowledge counts as lost (Linux), while one that takes longer to answer does not; `gathering`: how often a stream
    is read while it is busy (from the 16th piece within `busy` seconds on): each line that comes alone wakes the
    process, which takes as long as to decode ten. It is shorter than what a watch lags anyway: the protection of a pod
    must not be seen long after the deletion of its node that came next.
    """

    connections: int = 2000
    connect: float = 10.0
    idle: float = 75.0
    dead: float = 10.0
    silence: float = 120.0
    gathering: float = 0.01
    busy: float = 0.1


class HttpTransport:
    """Transport to the server of `credentials`; an async context manager. `skew` learns from the Date of every
    response.
    """

    def __init__(
        self,
        credentials: Credentials,
        clock: Clock,
        *,
        settings: HttpSettings | None = None,
        skew: SkewEstimate | None = None,
    ) -> None:
        self._credentials = credentials
        self._server = URL(credentials.url, encoded=True)
        self._path = self._server.raw_path.rstrip("/")  # of a server behind a proxy, such as Rancher's
        self._clock = clock
        self._settings = settings or HttpSettings()
        self._skew = skew
        # The client bounds the whole request; these limits distinguish "not sent" from "no answer".
        self._limits = aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect)
        self._sessions: dict[str, aiohttp.ClientSession] | None = None  # by the pool of requests
        self._has_cut = False  # some request was not finished

    async def __aenter__(self) -> Self:
        self._sessions = {}
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._sessions is not None:
            sessions, self._sessions = self._sessions, None
            for session in sessions.values():
                await session.close()
            if self._has_cut and self._credentials.url.startswith("https:"):
                await self._clock.sleep(_CLOSING_SECONDS)

    async def send(self, request: Request) -> Response:
        """The whole answer. Credentials that the server refuses are renewed once."""
        try:
            with _Translated(request):
                answer = await self._begun(request, self._limits)
                try:
                    body = await _whole(request, answer)
                finally:
                    # A body that was read to its end has given its connection back already.
                    answer.close()
        except BaseException:
            self._has_cut = True
            raise
        return Response(status=answer.status, headers=answer.headers, body=body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """Stream the response; silence on the socket for `silence` seconds ends it."""
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=self._settings.connect, sock_read=self._settings.silence
        )
        try:
            with _Translated(request):
                answer = await self._begun(request, limits)
            try:
                yield _HttpStream(request, answer, self._clock, self._settings)
            finally:
                answer.close()
        except BaseException:
            self._has_cut = True
            raise

    async def _begun(self, request: Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """An answer that has begun, to be closed by the caller."""
        identity = await self._credentials.identity()
        answer = await self._ask(request, limits, identity)
        if answer.status != 401:
            return answer
        try:
            if not await self._credentials.renew(identity):
                return answer
        except BaseException:
            answer.close()
            raise
        answer.close()
        return await self._ask(request, limits, await self._credentials.identity())

    async def _ask(self, request: Request, limits: aiohttp.ClientTimeout, identity: Identity) -> aiohttp.ClientResponse:
        session = self._session_of(request.pool)
        url = self._server.with_path(f"{self._path}{request.path}", encoded=True)
        if request.query:
            url = URL(f"{url}?{urlencode(request.query)}", encoded=True)
        headers = dict(identity.headers)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if request.impersonate:
            headers["Impersonate-User"] = request.impersonate
        started = self._clock.monotonic()
        answer = await session.request(
            request.method,
            url,
            headers=headers,
            data=request.body,
            timeout=limits,
            allow_redirects=False,
            proxy=self._credentials.proxy,
            ssl=identity.tls if identity.tls is not None else True,
            server_hostname=self._credentials.server_name,
        )
        date = answer.headers.get("Date")
        if self._skew is not None and date:
            received = self._clock.monotonic()
            missed = self._clock.elapsed() - received
            self._skew.observe(date, self._clock.now(), received - started, missed)
        return answer

    def _session_of(self, pool: str) -> aiohttp.ClientSession:
        if self._sessions is None:
            raise RuntimeError("the transport is not open: use it as an async context manager")
        if pool not in self._sessions:
            self._sessions[pool] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._settings.connections,
                    keepalive_timeout=self._settings.idle,
                    socket_factory=partial(socket_noticing_death, self._settings.dead),
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                trust_env=False,
                read_bufsize=_READ_BUFFER,
            )
        return self._sessions[pool]


def socket_noticing_death(dead: float, address: AddrInfoType) -> socket.socket:
    """A socket for this address that notices after `dead` seconds that its peer is gone: the patience with a slow
    webhook is not to be patience with a host that has vanished."""
    made = socket.socket(*address[:3])
    if sys.platform == "linux":
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            made.setsockopt(socket.IPPROTO_TCP, option, max(int(dead / 2), 1))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(dead * 1000))
    return made


class _HttpStream:
    def __init__(self, request: Request, answer: aiohttp.ClientResponse, clock: Clock, settings: HttpSettings) -> None:
        self._request = request
        self._answer = answer
        self._clock = clock
        self._settings = settings
        self.status = answer.status
        self.headers = answer.headers

    async def lines(self) -> AsyncGenerator[bytes, None]:
        splitter = LineSplitter()
        pieces, since = 0, -math.inf
        while True:
            with _Translated(self._request):
                piece = await self._answer.content.readany()
            if not piece:
                break
            if (now := self._clock.monotonic()) - since > self._settings.busy:
                pieces, since = 0, now
            pieces += 1
            for line in splitter.feed(piece):
                yield line
                if len(line) > _LARGE_LINE:
                    await anyio.lowlevel.checkpoint()
            if pieces >= _BUSY_PIECES and len(piece) < _LARGE_PIECE:
                await self._gather(now + self._settings.gathering)
        if rest := splitter.rest():
            yield rest

    async def _gather(self, until: float) -> None:
        """Leave what the server sends until this instant (monotonic) in the socket."""
        seconds = until - self._clock.monotonic()
        connection = self._answer.connection
        reading = None if connection is None else connection.transport
        if seconds <= 0 or reading is None or reading.is_closing():
            return
        pause, resume = reading.pause_reading, reading.resume_reading
        # asyncio's TLS reads on while it is paused, unless its buffer counts as full.
        if (limit := getattr(reading, "set_read_buffer_limits", None)) is not None:
            pause, resume = partial(limit, 0), limit
        pause()
        try:
            await self._clock.sleep(seconds)
        finally:
            if not reading.is_closing():  # a TLS connection that is lost has nothing left to resume
                resume()

    async def read(self) -> bytes:
        with _Translated(self._request):
            return await _whole(self._request, self._answer)


async def _whole(request: Request, answer: aiohttp.ClientResponse) -> bytes:
    """The body; raises TooLarge as soon as it is."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > request.largest:
            raise TooLarge(operation_of(request), f"more than {request.largest:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


class _Translated:
    """Whatever goes wrong on the way leaves the block as an error by meaning. A class: a generator takes three times as
    long, for each request."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        match error:
            case CredentialsError():
                # They were fine when we started: a plugin fails, a token file is gone. That may pass, as a refusal may.
                raise Unauthorized(operation_of(self._request), str(error)) from error
            case (
                aiohttp.ClientConnectorError()
                | aiohttp.ConnectionTimeoutError()
                | aiohttp.ClientHttpProxyError()
                | aiohttp.InvalidURL()
            ):
                raise _unreachable(self._request, error, sent=False) from error
            case aiohttp.ClientError() | OSError():
                raise _unreachable(self._request, error, sent=True) from error


def _unreachable(request: Request, error: Exception, *, sent: bool) -> ApiError:
    return Unreachable(operation_of(request), in_words(error), sent=sent, remedy=_remedy(_cause_of(error)))


def in_words(error: Exception) -> str:
    """Message for an error of aiohttp, whose own sentence shows its settings, and the reason as the function that
    failed."""
    cause = _cause_of(error)
    if not isinstance(error, aiohttp.ClientConnectorError) or cause is None:
        return str(error) or type(error).__name__
    place = f"{error.host}:{error.port}"
    match cause:
        case ssl.SSLCertVerificationError():
            return f"no TLS connection to {place}: its certificate is not trusted: {cause.verify_message.rstrip('.')}"
        case ssl.SSLError():
            return f"no TLS connection to {place}: {_reason(cause).replace('_', ' ').lower() or cause}"
    reason = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
    return f"no connection to {place}: {reason or 'the server closed it'}"


def _cause_of(error: Exception) -> OSError | None:
    """The error below a connection that could not be made."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return error.certificate_error if isinstance(error.certificate_error, OSError) else None
    return error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's name of the failure, if it has one."""
    return getattr(error, "reason", "") or ""


# OpenSSL's codes of a failed check: not yet valid, expired; another host name or address.
_OUT_OF_DATE, _OF_ANOTHER = (9, 10), (62, 64)


def _remedy(cause: OSError | None) -> str:
    """Remedy in the kubeconfig for a failed TLS connection; empty without a special cause."""
    match cause:
        case ssl.SSLCertVerificationError(verify_code=code) if code in _OUT_OF_DATE:
            return "renew the server's certificate, or set the clock of this machine"
        case ssl.SSLCertVerificationError(verify_code=code) if code in _OF_ANOTHER:
            return "check the server's address in the kubeconfig, or set tls-server-name next to it"
        case ssl.SSLCertVerificationError():
            return "check certificate-authority or certificate-authority-data of the cluster in the kubeconfig"
        case ssl.SSLError() if _reason(cause) in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return "the server does not speak TLS there: check scheme and port of its address in the kubeconfig"
    return ""
