"""The provider that asks an HTTP endpoint of your own; docs/providers.md has the contract for whoever writes one.

Every call is signed, and may be repeated: that of an end has the same id each time.
"""

from __future__ import annotations

import ipaddress
import random
import secrets
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import tenacity

from gracectl.cloud.answers import Action, Answer, read_answer, request_id, shown_text
from gracectl.cloud.files import Replaced
from gracectl.cloud.http import Caller, Reply
from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable
from gracectl.cloud.signatures import read_secrets, signed_headers
from gracectl.kube.credentials import Trust
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock, SystemClock

API_VERSION: Final = "gracectl.io/v1"
LONGEST_WAIT: Final = 10.0
"""Seconds. Who asks for more patience than that between two tries gets it from our caller."""
_BUSY: Final = frozenset({408, 425, 429})
_REMEDIES: Final = {
    400: "see which version of the contract the endpoint speaks",
    401: "see that both sides have the same secret, and that their clocks agree",
    403: "see why the endpoint does not allow it",
    409: "see what protects the instance",
}


class _Busy(ProviderUnavailable):
    """A failure that may be over in a moment; `retry_after` in seconds, if it was said."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class _Question(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    action: Action
    provider_id: str = msgspec.field(name="providerID")
    request_id: str = msgspec.field(name="requestID")
    node: NodeIdentity | None = None


class WebhookProvider:
    """POSTs a question to one URL."""

    name = "webhook"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`insecure` allows http:// to others than this very machine. The files are read anew for each call."""

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
                raise ValueError("caFile: it counts for https:// only")

    def __init__(self, options: Options, *, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        """Raises ValueError for files that cannot be used."""
        self._options = options
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        # Without what stands behind the question mark: some write a password there, and messages are read by many.
        self._who = f"the endpoint {options.url.partition('?')[0]}"
        self._caller = Caller(self._who, options.timeout_seconds)
        self._secrets = Replaced("secretFile", options.secret_file, lambda content: read_secrets(content.decode()))
        ca_file = options.ca_file
        self._tls = Replaced("caFile", ca_file, lambda _: Trust(ca_file=ca_file).context()) if ca_file else None

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        # Another id each time: an endpoint may refuse what it has heard before.
        answer = await self._asked("state", provider_id, f"state-{secrets.token_hex(20)}")
        if answer is None:
            raise ProviderUnavailable(f"{self._who} answers 202 to a question about a state")
        return answer

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""
        if await self._asked("terminate", provider_id, request_id(provider_id), node) is InstanceState.GONE:
            raise InstanceGone(f"{self._who} says that {provider_id} is gone")

    async def aclose(self) -> None:
        """Close the HTTP session."""
        await self._caller.aclose()

    async def _asked(
        self, action: Action, provider_id: str, id_: str, node: NodeIdentity | None = None
    ) -> InstanceState | None:
        """What the endpoint says of the instance; None: it has accepted what it was asked for."""
        body = msgspec.json.encode(_Question(API_VERSION, action, provider_id, id_, node))
        backoff = Backoff(0.5, LONGEST_WAIT, rng=self._rng)
        async for attempt in tenacity.AsyncRetrying(
            sleep=self._clock.sleep,
            retry=tenacity.retry_if_exception(_is_worth_another),
            stop=tenacity.stop_after_attempt(self._options.attempts),
            wait=_wait(backoff),
            reraise=True,
        ):
            with attempt:
                return self._understood(await self._posted(body, id_))
        raise AssertionError("the last attempt returns or raises")

    async def _posted(self, body: bytes, id_: str) -> Reply:
        headers = signed_headers(self._secrets.current(), id_, int(self._clock.now()), body)
        headers |= {"Content-Type": "application/json", "Idempotency-Key": id_}
        tls = self._tls.current() if self._tls else None
        try:
            return await self._caller.ask("POST", self._options.url, body=body, headers=headers, tls=tls)
        except ProviderUnavailable as error:
            raise _Busy(str(error)) from error

    def _understood(self, reply: Reply) -> InstanceState | None:
        """Raises ProviderError for everything that is no answer to the question."""
        status, told = reply.status, f"{self._who} answers {reply.status}"
        if status in (200, 202):
            return self._accepted(reply, told)
        if 300 <= status < 400:
            where = shown_text(reply.headers.get("location", "")) or "nowhere"
            raise ProviderRefused(f"{told}, a redirect to {where}", "write the last address into provider.options.url")
        if status >= 500 or status in _BUSY:
            raise _Busy(f"{told}: {_said(reply)}", self._retry_after(reply))
        if status in (404, 410):
            if _answer(reply).instance is InstanceState.GONE:
                return InstanceState.GONE
            remedy = 'see that provider.options.url is right; only a body with {"state": "gone"} says that it is gone'
            raise ProviderRefused(f"{told}, but not that the instance is gone: {_said(reply)}", remedy)
        remedy = shown_text(_answer(reply).remedy) or _REMEDIES.get(status, "see what the endpoint wants")
        raise ProviderRefused(f"{told}: {_said(reply)}", remedy)

    def _accepted(self, reply: Reply, told: str) -> InstanceState | None:
        if reply.status == 202 and not reply.body.strip():
            return None
        try:
            answer = read_answer(reply.body)
        except ValueError as error:
            raise ProviderUnavailable(f"{told}, but what it says {error}") from error
        if answer.instance is None and reply.status == 200:
            raise ProviderUnavailable(f'{told}, but its body has no "state"')
        return answer.instance

    def _retry_after(self, reply: Reply) -> float | None:
        """Seconds, whether they are written as such or as a date."""
        text = reply.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return float(text)
        try:
            return max(parsedate_to_datetime(text).timestamp() - self._clock.now(), 0.0)
        except (ValueError, OverflowError):  # numbers that no date has
            return None


def _check(url: str, *, is_insecure_allowed: bool) -> None:
    """ValueError for an address that cannot be meant."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"url: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f'url: "{url}" is no address; write it like https://machines.example.com/gracectl')
    if parts.username is not None:
        raise ValueError("url: credentials do not belong there; calls are signed with the secret of secretFile")
    if parts.fragment:
        raise ValueError("url: what follows # is sent to nobody; remove it")
    if parts.scheme == "http" and not is_insecure_allowed and not _is_loopback(host):
        raise ValueError("url: http:// lets others read and change what is said; write https://, or insecure: true")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _answer(reply: Reply) -> Answer:
    """The answer, or an empty one: a refusal may be in any words."""
    try:
        return read_answer(reply.body)
    except ValueError:
        return Answer()


def _said(reply: Reply) -> str:
    return shown_text(_answer(reply).message or reply.body) or "it does not say why"


def _is_worth_another(error: BaseException) -> bool:
    return isinstance(error, _Busy) and (error.retry_after or 0.0) <= LONGEST_WAIT


def _wait(backoff: Backoff) -> Callable[[tenacity.RetryCallState], float]:
    def seconds(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_for = error.retry_after if isinstance(error, _Busy) else None
        return backoff.next() if asked_for is None else asked_for

    return seconds
