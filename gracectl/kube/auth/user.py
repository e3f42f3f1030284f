"""The user of a kubeconfig, and the credential that kubernetes_asyncio obtains for it.

The library runs once for each credential. Here it is asked again before the credential expires and after the server
refuses it. Three things of the library are replaced, for the reasons of ADR 0071: how it runs an exec plugin, how it
trusts an identity provider, and how long its files with keys stay.
"""

from __future__ import annotations

import math
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import msgspec

from gracectl.kube.auth.credentials import Credentials, CredentialsError, TokenFile, Trust, is_header
from gracectl.kube.auth.kubeconfig import Context
from gracectl.kube.auth.library import Configuration, ExecProvider, OpenIDRequestor, kube_config
from gracectl.model.encoding import encode
from gracectl.model.times import parse_time
from gracectl.model.untrusted import Decoder
from gracectl.runtime.clock import Clock

_TIMEOUT: Final = 60.0  # of a plugin, and of an identity provider
# A credential is replaced this long before it expires: the time for a request to arrive.
_LEAD_SECONDS: Final = 10.0
# A server that refuses every credential must not cause a process per request.
_RENEWAL_SECONDS: Final = 10.0
# How often the library looks whether the token of an auth provider expires within five minutes.
_PROVIDER_SECONDS: Final = 60.0


class KubeconfigUser:
    """TokenSource of a context."""

    def __init__(self, context: Context, clock: Clock) -> None:
        self._context = context
        self._clock = clock
        self._user = _library_user(context)
        self._has_plugin, self._has_provider = "exec" in self._user, "auth-provider" in self._user
        self._file = TokenFile(Path(context.user["tokenFile"]), clock) if "tokenFile" in context.user else None
        self._header = ""
        self._expires = math.inf
        self._obtained_at = -math.inf
        self._lock = anyio.Lock()
        self._replace_trust: Callable[[Trust], None] = lambda trust: None

    async def credentials(self) -> Credentials:
        """The first credential, with what the kubeconfig says about the connection. Raises CredentialsError."""
        async with self._obtained() as settings:
            credentials = Credentials(
                settings.host or "",
                self,
                trust=_trust(settings),
                proxy=settings.proxy,
                source=self._context.source,
                context=self._context.name,
            )
        self._replace_trust = credentials.replace_trust
        return credentials

    async def header(self) -> str:
        """See TokenSource."""
        if self._file is not None:
            return await self._file.header()
        async with self._lock:
            if self._clock.now() >= self._expires:
                try:
                    await self._load()
                except CredentialsError:
                    if self._has_plugin:
                        raise
                    # Good for five minutes more; then the server refuses it, and `renew` says why.
                    self._expires = self._clock.now() + _RENEWAL_SECONDS
        return self._header

    async def renew(self) -> bool:
        """See TokenSource."""
        is_costly = self._has_plugin or self._has_provider
        async with self._lock:
            if is_costly and self._clock.monotonic() - self._obtained_at < _RENEWAL_SECONDS:
                return False
            before = self._header
            try:
                await self._load()
            except CredentialsError:
                if is_costly:
                    raise  # it says more than the refusal
            return await self._file.renew() if self._file is not None else self._header != before

    async def _load(self) -> None:
        async with self._obtained() as settings:
            self._replace_trust(_trust(settings))

    @asynccontextmanager
    async def _obtained(self) -> AsyncIterator[Configuration]:
        """Credential of the context from the library. Raises CredentialsError.

        Data of the kubeconfig is in files until the end, since OpenSSL reads keys from files only.
        """
        try:
            yield await self._obtain()
        finally:
            kube_config._cleanup_temp_files()

    async def _obtain(self) -> Configuration:
        loader, settings = _Loader(self._context, self._user), Configuration()
        try:
            with anyio.fail_after(_TIMEOUT):
                await loader.load_and_set(settings)
        except CredentialsError:
            raise
        except Exception as error:  # what the library makes of a malformed field comes as it comes
            raise self._failed(error) from error
        header = str(settings.api_key.get("BearerToken", "")).strip()
        if not is_header(header):
            raise self._wrong("token", "has characters that are not allowed in a header", "correct it")
        self._header, self._obtained_at = header, self._clock.monotonic()
        self._expires = loader.expires - _LEAD_SECONDS
        if self._has_provider:
            self._expires = self._clock.now() + _PROVIDER_SECONDS
        return settings

    def _failed(self, error: Exception) -> CredentialsError:
        if self._has_provider:
            reason = f"no answer in {_TIMEOUT:g} s" if isinstance(error, TimeoutError) else " ".join(str(error).split())
            problem = f"kubernetes_asyncio obtains no token: {reason or type(error).__name__}"
            return self._wrong("auth-provider", problem, "correct it, or use an exec plugin")
        return self._wrong("", f"kubernetes_asyncio cannot use it: {error}", "correct the file")

    def _wrong(self, field: str, problem: str, remedy: str) -> CredentialsError:
        place = f"users[{self._context.user_name}]"
        return CredentialsError(
            problem, source=self._context.user_source, field=f"{place}.{field}".rstrip("."), remedy=remedy
        )


def _library_user(context: Context) -> dict[str, Any]:
    """The user with the fields that count. The library puts into it what an identity provider answers."""
    user = dict(context.user)
    if "tokenFile" in user:
        return {name: value for name, value in user.items() if name.startswith("client-")}
    if "token" in user:
        user.pop("exec", None)
    if "exec" in user or user.get("auth-provider", {}).get("name") not in ("gcp", "oidc"):
        user.pop("auth-provider", None)
    if "username" in user:
        user.setdefault("password", "")
    if provider := user.get("auth-provider"):
        user["auth-provider"] = {**provider, "config": {"client-secret": "", **provider.get("config", {})}}
    return user


def _trust(settings: Configuration) -> Trust:
    return Trust(
        ca_file=settings.ssl_ca_cert or "",
        certificate_file=settings.cert_file or "",
        key_file=settings.key_file or "",
        verify=settings.verify_ssl,
        server_name=settings.tls_server_name,
    )


class _Loader(kube_config.KubeConfigLoader):
    """Obtains one credential; `expires` is its instant, infinite if it has none."""

    cert_file: str | None
    key_file: str | None

    def __init__(self, context: Context, user: Mapping[str, Any]) -> None:
        super().__init__(
            {
                "current-context": "context",
                "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
                "clusters": [{"name": "cluster", "cluster": context.cluster}],
                "users": [{"name": "user", "user": user}],
            }
        )
        self.expires = math.inf
        self._context = context

    async def load_from_exec_plugin(self) -> bool:
        """Take the answer of the plugin: a token, a certificate, or both."""
        answer, self.expires = await Plugin(self._context).run()
        if answer.token:
            self.token = f"Bearer {answer.token}"
        if answer.client_certificate_data:
            pem = {"certificate": answer.client_certificate_data, "key": answer.client_key_data}
            self.cert_file, self.key_file = (
                kube_config.FileOrData(pem, "", name, base64_file_content=False).as_file() for name in pem
            )
        return True

    def _retrieve_oidc_cacert(self, provider: kube_config.ConfigNode) -> bytes | None:
        """PEM of the authorities of the identity provider; None: the system's. The library takes no file."""
        path = provider["config"].safe_get("idp-certificate-authority")
        return Path(path).read_bytes() if path else super()._retrieve_oidc_cacert(provider)


class _Requestor(OpenIDRequestor):
    """Client of an identity provider that verifies its certificate, which the library does not."""

    def _get_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=self._ssl_ca_cert))

    async def refresh_token(self, refresh_token: str) -> Any:
        """The new tokens. A provider that keeps its refresh token need not repeat it."""
        return {"refresh_token": refresh_token, **await super().refresh_token(refresh_token)}


# Into our copy of the module; there is no other way in.
setattr(kube_config, OpenIDRequestor.__name__, _Requestor)


class PluginAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `status` of an ExecCredential; certificate and key are PEM."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class Plugin(ExecProvider):
    """An exec plugin. Command, arguments and environment are the library's; how it runs is not: that has no timeout,
    reads one pipe after the other, and passes no cluster."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.user["exec"]
        for field in ("command", "apiVersion"):
            if not self._config.get(field):
                raise CredentialsError(
                    f"it has no {field}",
                    source=context.user_source,
                    field=f"users[{context.user_name}].exec",
                    remedy="correct the file",
                )
        super().__init__(kube_config.ConfigNode("exec", self._config))

    async def run(self, previous_response: str | None = None) -> tuple[PluginAnswer, float]:
        """The credential, and when it expires (infinity: never). Raises CredentialsError."""
        command = self.args[0]
        is_interactive = self._config.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self._config.get("provideClusterInfo"):
            spec["cluster"] = self._context.cluster
        info = {"apiVersion": self._config["apiVersion"], "kind": "ExecCredential", "spec": spec}
        try:
            with anyio.fail_after(_TIMEOUT):
                done = await anyio.run_process(
                    self.args,
                    stdin=None if is_interactive else subprocess.DEVNULL,
                    stderr=None if is_interactive else subprocess.PIPE,
                    env={**self.env, "KUBERNETES_EXEC_INFO": encode(info).decode()},
                    check=False,
                )
        except TimeoutError as error:
            raise self._failed(f"{command} gave no answer in {_TIMEOUT:g} s") from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in its name, arguments or environment
            reason = error.strerror if isinstance(error, OSError) else str(error)
            hint = str(self._config.get("installHint", ""))
            raise self._failed(f"{command} cannot be started: {reason}", hint) from error
        if done.returncode:
            said = (done.stderr or b"").decode("utf-8", "replace").strip()
            raise self._failed(f"{command} failed with code {done.returncode}" + (f": {said}" if said else ""))
        try:
            answer = read_plugin_answer(done.stdout, self._config["apiVersion"])
            return answer, parse_time(answer.expiration_timestamp) if answer.expiration_timestamp else math.inf
        except ValueError as error:
            raise self._failed(f"{command} answered with something else than an ExecCredential: {error}") from error

    def _failed(self, problem: str, remedy: str = "") -> CredentialsError:
        return CredentialsError(problem, source=self._context.user_source, field="exec", remedy=remedy)


def read_plugin_answer(stdout: bytes, api_version: str) -> PluginAnswer:
    """Parse the credential that a plugin has printed. Raises ValueError."""
    try:
        credential = _CREDENTIAL.decode(stdout)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if credential.api_version != api_version:
        raise ValueError(f"its apiVersion is {credential.api_version}, expected {api_version}")
    answer = credential.status
    if not answer.token and not (answer.client_certificate_data and answer.client_key_data):
        raise ValueError("it has no token and no certificate with its key")
    if not is_header(answer.token):
        raise ValueError("its token has characters that are not allowed in a header")
    return answer


class _ExecCredential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    status: PluginAnswer


_CREDENTIAL: Final = Decoder(_ExecCredential)
