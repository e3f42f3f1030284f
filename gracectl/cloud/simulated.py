"""Provider of the simulated cluster: its cloud has an HTTP API, and can fail and be slow like a real one."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec

from gracectl.cloud.http import HttpClient
from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable
from gracectl.model.untrusted import Decoder

STATES = {
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.ENDING,
    "terminated": InstanceState.GONE,
}


class _Instance(msgspec.Struct):
    id: str
    state: str


class _Error(msgspec.Struct):
    message: str = ""


_INSTANCE = Decoder(_Instance)
_ERROR = Decoder(_Error)


class SimulatedProvider:
    """Client of `/cloud/v1/instances/{id}` of `gracectl simulate`; the id is the last part of the providerID."""

    name = "simulated"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
        """`endpoint`: base URL of the simulated cluster."""

        endpoint: Annotated[str, msgspec.Meta(pattern="^https?://")]
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 10.0

    def __init__(self, options: Options) -> None:
        self._base = options.endpoint.rstrip("/") + "/cloud/v1/instances/"
        self._client = HttpClient("cloud of the simulated cluster", options.timeout_seconds)

    def instance_key(self, provider_id: str) -> str:
        """See KeysInstances."""
        return _id(provider_id)

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider.state; an instance that the cloud does not know is gone."""
        status, body = await self._call("GET", provider_id)
        if status == 404:
            return InstanceState.GONE
        self._check(status, body, provider_id)
        try:
            instance = _INSTANCE.decode(body)
        except msgspec.DecodeError as error:
            message = f"instance {_id(provider_id)}: invalid response ({error}); check endpoint"
            raise ProviderUnavailable(message) from error
        return STATES.get(instance.state, InstanceState.UNKNOWN)

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider.terminate."""
        status, body = await self._call("DELETE", provider_id)
        if status == 404:
            raise InstanceGone(f"instance {_id(provider_id)} does not exist")
        self._check(status, body, provider_id)

    async def aclose(self) -> None:
        """Close the HTTP session."""
        await self._client.aclose()

    async def _call(self, method: str, provider_id: str) -> tuple[int, bytes]:
        response = await self._client.request(method, self._base + quote(_id(provider_id), safe=""))
        return response.status, response.body

    def _check(self, status: int, body: bytes, provider_id: str) -> None:
        if status < 400:
            return
        message = _message(body) or f"HTTP {status}"
        if status == 409:
            raise ProviderRefused(message, f"remove the termination protection of instance {_id(provider_id)}")
        raise ProviderUnavailable(f"instance {_id(provider_id)}: {message}")


def _id(provider_id: str) -> str:
    return provider_id.strip().rsplit("/", 1)[-1]


def _message(body: bytes) -> str:
    try:
        return _ERROR.decode(body).message
    except msgspec.DecodeError:
        return body.decode(errors="replace").strip()
