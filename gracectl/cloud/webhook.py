"""Provider that calls a user-defined HTTP endpoint; docs/providers.md has its contract.

Every call is signed, and may be repeated: the calls of one termination have the same id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec
from tenacity import stop_after_attempt

from gracectl.cloud.http import HttpClient, HttpResponse
from gracectl.cloud.provider import (
    TRACEPARENT,
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderRefused,
    ProviderUnavailable,
)
from gracectl.cloud.responses import Action, ProviderResponse, decode_response, display_text, request_id
from gracectl.kube.auth.credentials import Trust
from gracectl.model.encoding import encode
from gracectl.runtime.backoff import Backoff, requested_wait, retried
from gracectl.runtime.clock import Clock, SystemClock

API_VERSION: Final = "gracectl.io/v1"
LONGEST_WAIT: Final = 10.0
"""Seconds. A longer Retry-After is left to the caller's own retries."""
_BUSY: Final = frozenset({408, 425, 429})
_REMEDIES: Final = {
    400: "check which version of the contract the endpoint supports",
    401: "check that both sides have the same secret, and that their clocks agree",
    403: "check why the endpoint forbids it",
    409: "check what protects the instance",
}


class _Busy(ProviderUnavailable):
    """Transient failure; `retry_after` in seconds, if given."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class _Request(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    action: Action
    provider_id: str = msgspec.field(name="providerID")
    request_id: str = msgspec.field(name="requestID")
    node: NodeIdentity | None = None


class WebhookProvider:
    """POSTs a request to one URL."""

    name = "webhook"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`insecure` allows http:// to other hosts than this machine. The files are reread for each call."""

        url: str
        secret_file: str
        ca_file: str = ""
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0
        attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
        insecure: bool = False

        def __post_init__(self) -> None:
            """Raises ValueError."""
            _check(self.url, is_insecure_allowed=self.insecure)
            if self.ca_file and not self.url.startswith("https:"):
                raise ValueError("caFile: applies to https:// only")

    def __init__(self, options: Options, *, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        """Raises ValueError for invalid files."""
        self._options = options
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        # Without the query: it may hold a password, and messages are widely visible.
        self._name = f"endpoint {options.url.partition('?')[0]}"
        self._client = HttpClient(self._name, options.timeout_seconds)
        self._secrets = ReloadedFile("secretFile", options.secret_file, lambda content: read_secrets(content.decode()))
        ca_file = options.ca_file
        self._tls = ReloadedFile("caFile", ca_file, lambda _: Trust(ca_file=ca_file).context()) if ca_file else None

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        # A new id each time: an endpoint may reject repeated ids.
        decoded = await self._call("state", provider_id, f"state-{secrets.token_hex(20)}")
        if decoded is None:
            raise ProviderUnavailable(f"{self._name}: status 202 for a state")
        return decoded

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""
        if await self._call("terminate", provider_id, request_id(provider_id), node) is InstanceState.GONE:
            raise InstanceGone(f"{self._name}: {provider_id} is gone")

    async def aclose(self) -> None:
        """Close the HTTP session."""
        await self._client.aclose()

    async def _call(
        self, action: Action, provider_id: str, id_: str, node: NodeIdentity | None = None
    ) -> InstanceState | None:
        """State returned by the endpoint; None: the termination is accepted."""
        body = encode(_Request(API_VERSION, action, provider_id, id_, node))

        async def post() -> InstanceState | None:
            return self._state_of(await self._post(body, id_))

        return await retried(
            post,
            may_repeat=_is_retryable,
            wait=lambda: requested_wait(_requested, Backoff(0.5, LONGEST_WAIT, rng=self._rng)),
            sleep=self._clock.sleep,
            stop=stop_after_attempt(self._options.attempts),
        )

    async def _post(self, body: bytes, id_: str) -> HttpResponse:
        headers = signed_headers(self._secrets.current(), id_, int(self._clock.now()), body)
        headers |= {"Content-Type": "application/json", "Idempotency-Key": id_}
        if traceparent := TRACEPARENT.get():
            headers["traceparent"] = traceparent
        tls = self._tls.current() if self._tls else None
        try:
            return await self._client.request("POST", self._options.url, body=body, headers=headers, tls=tls)
        except ProviderUnavailable as error:
            raise _Busy(str(error)) from error

    def _state_of(self, response: HttpResponse) -> InstanceState | None:
        """State of a response. Raises ProviderError for everything that is no valid response."""
        status, prefix = response.status, f"{self._name}: status {response.status}"
        if status in (200, 202):
            return self._accepted_state(response, prefix)
        if 300 <= status < 400:
            where = display_text(response.headers.get("location", "")) or "no location"
            raise ProviderRefused(f"{prefix}: redirect to {where}", "set the final address as provider.options.url")
        if status >= 500 or status in _BUSY:
            raise _Busy(f"{prefix}: {_reason(response)}", self._retry_after(response))
        if status in (404, 410):
            if _decoded(response).instance is InstanceState.GONE:
                return InstanceState.GONE
            remedy = 'check provider.options.url; only a body with {"state": "gone"} means that the instance is gone'
            raise ProviderRefused(f'{prefix} without {{"state": "gone"}}: {_reason(response)}', remedy)
        remedy = display_text(_decoded(response).remedy) or _REMEDIES.get(status, "see the endpoint's documentation")
        raise ProviderRefused(f"{prefix}: {_reason(response)}", remedy)

    def _accepted_state(self, response: HttpResponse, prefix: str) -> InstanceState | None:
        if response.status == 202 and not response.body.strip():
            return None
        try:
            decoded = decode_response(response.body)
        except ValueError as error:
            raise ProviderUnavailable(f"{prefix}: its body {error}") from error
        if decoded.instance is None and response.status == 200:
            raise ProviderUnavailable(f'{prefix}: its body has no "state"')
        return decoded.instance

    def _retry_after(self, response: HttpResponse) -> float | None:
        """Seconds until a retry, from a number or a date."""
        text = response.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return float(text)
        try:
            return max(parsedate_to_datetime(text).timestamp() - self._clock.now(), 0.0)
        except (ValueError, OverflowError):  # no valid date
            return None


def _check(url: str, *, is_insecure_allowed: bool) -> None:
    """Raise ValueError for an invalid URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"url: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f'url: "{url}" is not a URL such as https://machines.example.com/gracectl')
    if parts.username is not None:
        raise ValueError("url: must not have credentials; calls are signed with the secret of secretFile")
    if parts.fragment:
        raise ValueError("url: has a fragment, which HTTP does not send; remove it")
    if parts.scheme == "http" and not is_insecure_allowed and not is_loopback(host):
        raise ValueError("url: http:// can be read and changed on the way; use https://, or set insecure: true")


def is_loopback(host: str) -> bool:
    """Whether this host is the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _decoded(response: HttpResponse) -> ProviderResponse:
    """Decoded response, or an empty one: a refusal may have any body."""
    try:
        return decode_response(response.body)
    except ValueError:
        return ProviderResponse()


def _reason(response: HttpResponse) -> str:
    return display_text(_decoded(response).message or response.body) or "no reason given"


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, _Busy) and (error.retry_after or 0.0) <= LONGEST_WAIT


def _requested(error: BaseException | None) -> float | None:
    return error.retry_after if isinstance(error, _Busy) else None


SHORTEST: Final = 24
"""Bytes of a secret."""
MOST_SIGNATURES: Final = 10
_PREFIX: Final = "whsec_"


def read_secrets(text: str) -> tuple[bytes, ...]:
    """Secrets of a file, one per line, base64 with or without `whsec_`; several during a rotation. ValueError names the
    line, never its content."""
    secrets = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            secret = base64.b64decode(line.strip().removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"line {number} is not base64; create one with: openssl rand -base64 32") from error
        if len(secret) < SHORTEST:
            raise ValueError(
                f"line {number}: the secret has {len(secret)} bytes, and must have {SHORTEST} at least; "
                "create one with: openssl rand -base64 32"
            )
        secrets.append(secret)
    if not secrets:
        raise ValueError("no secret found; create one with: openssl rand -base64 32")
    return tuple(secrets)


def signed_headers(secrets: Sequence[bytes], id_: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of a signed request (https://www.standardwebhooks.com); the signature has a part for each
    secret."""
    signed = f"{id_}.{seconds}.".encode() + body
    parts = (base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets)
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{part}" for part in parts),
    }


TOLERANCE_SECONDS: Final = 300.0
"""How far the clock of a sender may be off; a request that is older may be a replay."""


def has_valid_signature(secrets: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether one of these secrets has signed a request, a short while ago. `now`: Unix seconds."""
    id_, text = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (id_.isascii() and text.isascii() and text.isdigit() and len(text) < 12):
        return False
    if abs(int(text) - now) > TOLERANCE_SECONDS:
        return False
    found = headers.get("webhook-signature", "").split(" ")[:MOST_SIGNATURES]
    given = [part.encode("utf-8", "replace") for part in found]
    expected = signed_headers(secrets, id_, int(text), body)["webhook-signature"].split(" ")
    matches = [hmac.compare_digest(part, each.encode()) for part in given for each in expected]
    return any(matches)


T = TypeVar("T")

logger = logging.getLogger(__name__)


class ReloadedFile(Generic[T]):
    """File that is replaced from time to time, reread at each use. `read` parses its content; it raises ValueError or
    OSError for invalid content.

    Invariant: invalid content changes nothing, and is logged once. Raises ValueError when it is made, naming the
    option, if the file is invalid at the start.
    """

    def __init__(self, option: str, path: str, read: Callable[[bytes], T]) -> None:
        self._option = option
        self._path = Path(path)
        self._read = read
        self._warned = ""
        try:
            self._content = self._path.read_bytes()
            self._value = read(self._content)
        except (OSError, ValueError) as error:
            raise ValueError(f"{option}: {path}: {_error_text(error)}") from error

    def current(self) -> T:
        """Current value, or the last valid one. Small files of a memory file system: no need for a thread."""
        try:
            content = self._path.read_bytes()
            if content != self._content:
                self._value = self._read(content)
                self._content = content
        except (OSError, ValueError) as error:
            self._warn(_error_text(error))
        else:
            self._warned = ""
        return self._value

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            logger.warning("%s: %s: %s; keeping the previous content", self._option, self._path, text)


def _error_text(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
