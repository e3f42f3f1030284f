"""Authorization headers, and how they are renewed.

Every source keeps what it last had until it has something better, and can be asked to renew when the server refused it.
Times are the server's (`Clock.now`), because it is the server that expires a token.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec

from gracectl.kube.kubeconfig import CredentialsError
from gracectl.model.times import parse_time
from gracectl.model.untrusted import Decoder
from gracectl.runtime.clock import Clock

# Kubelet rotates a service account's token long before it expires; client-go, too, looks once a minute.
_FILE_SECONDS = 60.0
# A token is replaced this long before it expires: the time for a request to arrive.
_LEAD_SECONDS = 10.0
# A server that refuses whatever the plugin says must not start a process per request.
_PLUGIN_SECONDS = 10.0
_PLUGIN_TIMEOUT = 60.0


class TokenSource(Protocol):
    """Where the Authorization header comes from."""

    async def header(self) -> str:
        """The header's value now; "" for none. Raises CredentialsError when there has never been one."""

    async def renew(self) -> bool:
        """Look for a better one, because the server refused the last; True if there is."""


def is_header(value: str) -> bool:
    """Whether HTTP can send that as the value of a header."""
    return value.isascii() and value.isprintable()


class FixedToken:
    """A header that never changes (a token or password in the kubeconfig, or none at all)."""

    def __init__(self, value: str = "") -> None:
        self._value = value

    async def header(self) -> str:
        return self._value

    async def renew(self) -> bool:
        return False


class RefreshedToken:
    """A header that the library renews itself when asked to load again (auth providers oidc and gcp)."""

    def __init__(self, value: str, load: Callable[[], Awaitable[str]]) -> None:
        self._value = value
        self._load = load

    async def header(self) -> str:
        return self._value

    async def renew(self) -> bool:
        before, self._value = self._value, await self._load()
        return self._value != before


class TokenFile:
    """Bearer token in a file that is replaced from time to time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._value = ""
        self._read_at: float | None = None

    async def header(self) -> str:
        if self._read_at is None or self._clock.monotonic() - self._read_at >= _FILE_SECONDS:
            await self._read()
        return self._value

    async def renew(self) -> bool:
        before = self._value
        await self._read()
        return self._value != before

    async def _read(self) -> None:
        try:
            token = (await anyio.Path(self._path).read_text()).strip()
        except (OSError, ValueError) as error:  # ValueError: no text, or no path
            token = ""
            problem = f"the token cannot be read: {error}"
        else:
            problem = "the token file is empty" if not token else "it holds what is no token"
            token = token if is_header(token) else ""
        if token:
            self._value = f"Bearer {token}"
        elif not self._value:
            raise CredentialsError(problem, source=str(self._path), remedy="mount or write a token there")
        self._read_at = self._clock.monotonic()


class PluginAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `status` of an ExecCredential; certificate and key are PEM."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class Plugin:
    """An exec plugin: asked when its credential expires, and when the server refuses it. `config` names a command and
    an apiVersion at least."""

    def __init__(self, config: Mapping[str, Any], source: str, cluster: Mapping[str, Any], clock: Clock) -> None:
        self._args: list[str] = [config["command"], *(config.get("args") or ())]
        self._env = {variable["name"]: variable.get("value") or "" for variable in config.get("env") or ()}
        self._api_version: str = config["apiVersion"]
        self._hint = str(config.get("installHint") or "")
        self._cluster = cluster if config.get("provideClusterInfo") else None
        self._interactive = config.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()
        self._source = source
        self._clock = clock
        self._answer = PluginAnswer()
        self._expires: float | None = None
        self._ran_at: float | None = None
        self._lock = anyio.Lock()
        self.on_certificate: Callable[[str, str], None] = lambda certificate, key: None

    async def header(self) -> str:
        async with self._lock:
            if self._ran_at is None or (self._expires is not None and self._clock.now() >= self._expires):
                await self._run()
        return f"Bearer {self._answer.token}" if self._answer.token else ""

    async def renew(self) -> bool:
        async with self._lock:
            if self._ran_at is not None and self._clock.monotonic() - self._ran_at < _PLUGIN_SECONDS:
                return False
            before = self._answer
            await self._run()
            return self._answer != before

    async def _run(self) -> None:
        command = self._args[0]
        try:
            with anyio.fail_after(_PLUGIN_TIMEOUT):
                done = await anyio.run_process(
                    self._args,
                    stdin=None if self._interactive else subprocess.DEVNULL,
                    stderr=None if self._interactive else subprocess.PIPE,
                    env={**os.environ, **self._env, "KUBERNETES_EXEC_INFO": self._information()},
                    check=False,
                )
        except TimeoutError as error:
            raise self._failed(f"{command} gave no answer in {_PLUGIN_TIMEOUT:g} s") from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in its name, arguments or environment
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise self._failed(f"{command} cannot be started: {reason}", self._hint) from error
        if done.returncode:
            said = (done.stderr or b"").decode("utf-8", "replace").strip()
            raise self._failed(f"{command} failed with code {done.returncode}" + (f": {said}" if said else ""))
        try:
            answer = read_plugin_answer(done.stdout, self._api_version)
            expires = parse_time(answer.expiration_timestamp) if answer.expiration_timestamp else None
        except ValueError as error:
            raise self._failed(f"{command} answered with something else than an ExecCredential: {error}") from error
        self._take(answer, expires)

    def _take(self, answer: PluginAnswer, expires: float | None) -> None:
        self._ran_at = self._clock.monotonic()
        self._expires = expires - _LEAD_SECONDS if expires is not None else None
        if answer.client_certificate_data and answer.client_certificate_data != self._answer.client_certificate_data:
            self.on_certificate(answer.client_certificate_data, answer.client_key_data)
        self._answer = answer

    def _information(self) -> str:
        spec: dict[str, Any] = {"interactive": self._interactive}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        return json.dumps({"apiVersion": self._api_version, "kind": "ExecCredential", "spec": spec})

    def _failed(self, problem: str, remedy: str = "") -> CredentialsError:
        return CredentialsError(problem, source=self._source, field="exec", remedy=remedy)


def read_plugin_answer(stdout: bytes, api_version: str) -> PluginAnswer:
    """The credential that a plugin has printed. ValueError says what is wrong with it."""
    try:
        credential = _CREDENTIAL.decode(stdout)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if credential.api_version != api_version:
        raise ValueError(f"its apiVersion is {credential.api_version}, expected {api_version}")
    answer = credential.status
    if not answer.token and not (answer.client_certificate_data and answer.client_key_data):
        raise ValueError("it has neither a token nor a certificate with its key")
    if not is_header(answer.token):
        raise ValueError("its token holds characters that no header can")
    return answer


class _ExecCredential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    status: PluginAnswer


_CREDENTIAL = Decoder(_ExecCredential)
