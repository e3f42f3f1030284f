"""AWS clients: one for each service in each region, created on first use; and the translation of their errors.

Errors are of three kinds: gone (done), transient (retried), or permanent until an administrator acts; then the message
has the remedy.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import aiohttp
import anyio
import anyio.to_thread
import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from aiobotocore.utils import AioContainerMetadataFetcher, AioIMDSFetcher
from botocore import xform_name
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    InvalidRegionError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    UnknownEndpointError,
)
from botocore.parsers import ResponseParserError

from gracectl.cloud.provider import InstanceGone, ProviderError, ProviderRefused, ProviderUnavailable

T = TypeVar("T")

LONGEST_RESPONSE: Final = 4 * 1024 * 1024
"""Bytes of a response; a page of a hundred instances has 0.5 MB."""

CLOSED: Final = "the connections to AWS are closed"
ATTEMPTS: Final = 3
CONNECT_SECONDS: Final = 5.0

ONCE: Final = frozenset({"autoscaling"})
"""Services whose calls botocore does not repeat: a lost response may have lowered the size of a group, so the state is
checked first."""


class _BoundedResponse(aiohttp.ClientResponse):
    """Response of which at most LONGEST_RESPONSE bytes are read."""

    async def read(self) -> bytes:
        """See ClientResponse. Raises ClientPayloadError."""
        body = bytearray()
        try:
            async for chunk in self.content.iter_any():
                body += chunk
                if len(body) > LONGEST_RESPONSE:
                    raise aiohttp.ClientPayloadError(f"response exceeds {LONGEST_RESPONSE // 1024} KiB")
        except BaseException:  # a timeout, too: nothing else closes the connection
            self.close()
            raise
        return bytes(body)


class BoundedSession(AIOHTTPSession):  # type: ignore[misc]
    """Session of botocore with limits on the size of a response and the time of a whole attempt.

    botocore itself limits only the time between two bytes, and reads every response whole. `timeout`: seconds to
    connect and to read, or one number for both.
    """

    def __init__(self, *, timeout: tuple[float, float] | float, **options: Any) -> None:
        super().__init__(timeout=timeout, **options)
        connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        self._timeout: Any = aiohttp.ClientTimeout(total=connect + read, sock_connect=connect, sock_read=read)

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        session._response_class = _BoundedResponse  # an argument of its constructor, which botocore does not pass on
        return session


for _fetcher in (AioIMDSFetcher, AioContainerMetadataFetcher):
    # They make sessions of their own; this attribute is the only way to give them another class.
    _session_class: Any = type("BoundedMetadataSession", (BoundedSession, _fetcher._ref_counted_session_cls), {})
    _fetcher._ref_counted_session_cls = _session_class


class Clients:
    """Calls AWS with the credentials that botocore finds. A call takes about `seconds` at most, with repetitions."""

    def __init__(self, *, seconds: float, profile: str | None, endpoint_url: str | None) -> None:
        self._attempt_seconds = seconds / ATTEMPTS
        self._profile = profile
        self._endpoint_url = endpoint_url
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = anyio.Lock()
        self._stack = AsyncExitStack()
        self._is_closed = False

    async def request(self, call: Call, type_: type[T], **arguments: object) -> T:
        """Result of a call. Raises ProviderError of all kinds."""
        try:
            client = await self._client(call.service, call.region)
            response = await getattr(client, xform_name(call.operation))(**arguments)
        except FAULTS as error:
            raise translate(error, call) from error
        try:
            return msgspec.convert(response, type_)
        except msgspec.ValidationError as error:
            raise ProviderUnavailable(f"{call}: not a response of AWS: {error}") from error

    async def aclose(self) -> None:
        """Close all connections."""
        async with self._lock:
            self._is_closed = True
            await self._stack.aclose()

    async def _client(self, service: str, region: str) -> Any:
        async with self._lock:
            if self._is_closed:
                raise ProviderUnavailable(CLOSED)
            if (service, region) not in self._clients:
                self._clients[service, region] = await self._create(service, region)
            return self._clients[service, region]

    async def _create(self, service: str, region: str) -> Any:
        if self._session is None:
            self._session = get_session()
            # Of the clients that fetch credentials, as those of STS.
            self._session.set_default_client_config(AioConfig(http_session_cls=BoundedSession))
            if self._profile is not None:
                self._session.set_config_variable("profile", self._profile)
        # Service descriptions are files of megabytes: a thread reads them into the loader's cache.
        await anyio.to_thread.run_sync(self._read_description, service)
        config = AioConfig(
            connect_timeout=min(CONNECT_SECONDS, self._attempt_seconds),
            read_timeout=self._attempt_seconds,
            retries={"mode": "standard", "total_max_attempts": 1 if service in ONCE else ATTEMPTS},
            user_agent_extra="gracectl",
            http_session_cls=BoundedSession,
        )
        client = self._session.create_client(
            service, region_name=region, endpoint_url=self._endpoint_url, config=config
        )
        return await self._stack.enter_async_context(client)

    def _read_description(self, service: str) -> None:
        loader = self._session.get_component("data_loader")
        for kind in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model(service, kind)


FAULTS: Final = (BotoCoreError, ClientError, ResponseParserError, OSError, ValueError, LookupError)
"""Exceptions of a call of botocore: ValueError for an invalid address, OSError for credential files, LookupError for
XML that is not of AWS."""

THROTTLED: Final = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestThrottled",
        "RequestThrottledException",
        "ResourceContention",
        "ScalingActivityInProgress",
    }
)
DENIED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
UNKNOWN_KEY: Final = frozenset(
    {"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "OptInRequired"}
)
NO_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, NoAuthTokenError, SSOError)
NO_ADDRESS: Final = (InvalidRegionError, UnknownEndpointError, ValueError)

GIVE_CREDENTIALS: Final = (
    "give the ServiceAccount of gracectl a role (EKS Pod Identity or IRSA), or see provider.options.profile"
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call: `ec2`, `us-west-2`, `TerminateInstances`, and its instances."""

    service: str
    region: str
    operation: str
    instances: tuple[str, ...] = ()

    def __str__(self) -> str:
        about = f" of {', '.join(self.instances)}" if 0 < len(self.instances) <= 3 else ""
        return f"{self.service}:{self.operation}{about} in {self.region}"


class InvalidRequest(ProviderRefused):
    """The service rejects the request for this instance; `reason` is its message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, "see docs/aws.md")
        self.reason = reason
        self.message = message


def translate(error: Exception, call: Call) -> ProviderError:
    """Provider error for one of FAULTS."""
    if isinstance(error, ClientError):
        return _translate_response(error, call)
    reason = str(error) or type(error).__name__
    if isinstance(error, NO_CREDENTIALS):
        return ProviderRefused(f"{call}: no credentials: {reason}", GIVE_CREDENTIALS)
    if isinstance(error, (HTTPClientError, ConnectionError)):
        return ProviderUnavailable(f"{call}: no response: {reason}")
    if isinstance(error, NO_ADDRESS):
        remedy = "check provider.options.endpointUrl and provider.options.region"
        return ProviderRefused(f"{call}: invalid endpoint: {reason}", remedy)
    if isinstance(error, (ResponseParserError, LookupError)):
        return ProviderUnavailable(f"{call}: not a response of AWS: {reason}")
    return ProviderUnavailable(f"{call}: {reason}")


def _translate_response(error: ClientError, call: Call) -> ProviderError:
    details = error.response.get("Error", {})
    code = str(details.get("Code", ""))
    # The rest is for sts:DecodeAuthorizationMessage, and a thousand characters long.
    text = str(details.get("Message", "")).partition(" Encoded authorization failure message:")[0]
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = f"{call}: {code}: {text}"
    if code.startswith("InvalidInstanceID.NotFound"):
        return InstanceGone(f"{call}: no such instance: {text}")
    if code in DENIED:
        return _denied(error, call, message)
    if code in UNKNOWN_KEY:
        return ProviderRefused(message, f"AWS rejects these credentials: {GIVE_CREDENTIALS}")
    if code == "OperationNotPermitted":
        protected = "disableApiTermination" in text
        return ProviderRefused(message, _unprotect(call) if protected else "terminate it where it is managed")
    if code.startswith("InvalidInstanceID"):
        return ProviderRefused(message, "check spec.providerID of the node")
    if code == "ValidationError":
        return InvalidRequest(text, message)
    if code in EXPIRED:
        return ProviderUnavailable(f"{message}; waiting for new credentials (or the clock of this machine is wrong)")
    if code in THROTTLED or status == 429:
        return ProviderUnavailable(f"{message} (throttled)")
    return ProviderUnavailable(message)


def _denied(error: ClientError, call: Call, message: str) -> ProviderRefused:
    if error.operation_name.startswith("AssumeRole"):  # sent by botocore itself
        remedy = f"let the trust policy of the role allow sts:{error.operation_name} to gracectl's ServiceAccount"
        return ProviderRefused(message, remedy)
    return ProviderRefused(message, f"allow {call.service}:{call.operation} in the IAM policy of gracectl's role")


def _unprotect(call: Call) -> str:
    commands = (
        f"aws ec2 modify-instance-attribute --region {call.region} --instance-id {name} --no-disable-api-termination"
        for name in call.instances
    )
    return f"disable its termination protection: {'; '.join(commands)}"
