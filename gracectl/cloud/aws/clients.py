"""AWS clients: one for each service in each region, created on first use."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore import xform_name

from gracectl.cloud.aws.errors import FAULTS, Call, translate
from gracectl.cloud.provider import ProviderUnavailable

T = TypeVar("T")

CLOSED: Final = "the connections to AWS are closed"
ATTEMPTS: Final = 3
CONNECT_SECONDS: Final = 5.0

ONCE: Final = frozenset({"autoscaling"})
"""Services whose calls botocore does not repeat: a lost response may have lowered the size of a group, so the state is
checked first."""


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
            if self._profile is not None:
                self._session.set_config_variable("profile", self._profile)
        # Service descriptions are files of megabytes: a thread reads them into the loader's cache.
        await anyio.to_thread.run_sync(self._read_description, service)
        config = AioConfig(
            connect_timeout=min(CONNECT_SECONDS, self._attempt_seconds),
            read_timeout=self._attempt_seconds,
            retries={"mode": "standard", "total_max_attempts": 1 if service in ONCE else ATTEMPTS},
            user_agent_extra="gracectl",
        )
        client = self._session.create_client(
            service, region_name=region, endpoint_url=self._endpoint_url, config=config
        )
        return await self._stack.enter_async_context(client)

    def _read_description(self, service: str) -> None:
        loader = self._session.get_component("data_loader")
        for kind in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model(service, kind)
