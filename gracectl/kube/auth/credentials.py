"""Credentials for an API server: one address, one TLS context, one Authorization header, each as of now.

A source of tokens keeps what it last had until it has something better, and is asked to renew when the server refuses
it. Times are the server's (`Clock.now`), because the server decides when a token expires.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import anyio
import msgspec

from gracectl.runtime.clock import Clock

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own credentials."""

# The kubelet rotates a service account's token long before it expires; client-go, too, reads it once a minute.
_FILE_SECONDS = 60.0
_USERINFO = re.compile(r"(?:(?<=//)|^)[^/?#]*@")


class CredentialsError(Exception):
    """No usable way to an API server. The message names the file and field at fault and the remedy."""

    def __init__(self, problem: str, *, source: str = "", field: str = "", remedy: str = "") -> None:
        super().__init__(problem, source, field, remedy)
        self.problem = problem
        self.source = source
        self.field = field
        self.remedy = remedy

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.source, self.field) if part)
        message = f"{place}: {self.problem}" if place else self.problem
        return f"{message}; {self.remedy}" if self.remedy else message


def shown_address(url: str) -> str:
    """The address of a server for people and logs: without a user, a password, and what may hold a token."""
    return _USERINFO.sub("", url).partition("?")[0].partition("#")[0]


def own_namespace() -> str | None:
    """Namespace of the pod that this process runs in; None outside of one."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or None
    except OSError:
        return None


def in_cluster(folder: Path, environ: Mapping[str, str], clock: Clock) -> Credentials:
    """Credentials of the service account that is mounted at `folder`. Raises CredentialsError."""
    host, port = (environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise CredentialsError(
            "service host/port is not set (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT)",
            source=str(folder),
            remedy="run it in a pod, or name a kubeconfig",
        )
    return Credentials(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        TokenFile(folder / "token", clock),
        trust=Trust(ca_file=str(folder / "ca.crt")),
        source=str(folder),
    )


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How the two sides prove themselves in TLS. Files hold PEM; `server_name`: the name to check, if not the URL's."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """A TLS context of this trust. Raises OSError (ssl.SSLError for content) naming no file."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        # From Python 3.13 on strict by default, which refuses the CA certificates of many clusters; Go's TLS is not.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None)
        return context

    def certificate(self) -> bytes:
        """Content of the client certificate's file now; empty if there is none."""
        try:
            return Path(self.certificate_file).read_bytes() if self.certificate_file else b""
        except OSError:
            return b""


class Identity(msgspec.Struct, frozen=True):
    """Credentials of one request. `tls`: None for plain HTTP; a new object after a certificate was renewed."""

    headers: Mapping[str, str]
    tls: ssl.SSLContext | None


class ClusterAddress(msgspec.Struct, frozen=True):
    """The cluster that a command talks to. `context`: of the kubeconfig; None: the pod's service account was used.

    `server`: its URL without credentials.
    """

    context: str | None = None
    server: str = ""


class Credentials:
    """Everything a transport needs to authenticate. `url` has no trailing slash; `context`: see ClusterAddress."""

    def __init__(
        self,
        url: str,
        tokens: TokenSource,
        *,
        trust: Trust | None = None,
        proxy: str | None = None,
        source: str = "",
        context: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.cluster = ClusterAddress(context, shown_address(self.url))
        self.proxy = proxy
        self.source = source
        self._tokens = tokens
        self._trust = trust or Trust()
        self._certificate = self._trust.certificate()
        self._tls = self._make_context()

    @property
    def server_name(self) -> str | None:
        """The name that the server's certificate must have, if that is not the name in the URL."""
        return self._trust.server_name

    async def identity(self) -> Identity:
        """The current identity. May run an exec plugin. Raises CredentialsError."""
        value = await self._tokens.header()
        return Identity({"Authorization": value} if value else {}, self._tls)

    async def renew(self, refused: Identity) -> bool:
        """The server refused that identity: look for another; True if there is one. Raises CredentialsError."""
        if await self.identity() != refused:
            return True
        before = self._tls
        return await self._tokens.renew() or self._tls is not before

    def replace_trust(self, trust: Trust) -> None:
        """Use the client certificate of `trust`, if it is another one. Raises CredentialsError.

        Its files need not stay.
        """
        certificate = trust.certificate()
        if certificate and certificate != self._certificate:
            self._trust, self._certificate = trust, certificate
            self._tls = self._make_context()

    def _make_context(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        try:
            return self._trust.context()
        except (OSError, ValueError) as error:
            files = ", ".join(file for file in (self._trust.ca_file, self._trust.certificate_file) if file)
            raise CredentialsError(
                f"the TLS certificates cannot be used: {error}", source=self.source, field=files, remedy="replace them"
            ) from error


class TokenSource(Protocol):
    """Source of the Authorization header."""

    async def header(self) -> str:
        """The header's value now; "" for none. Raises CredentialsError when there has never been one."""

    async def renew(self) -> bool:
        """Look for a better one, because the server refused the last; True if there is."""


def is_header(value: str) -> bool:
    """Whether HTTP can send that as the value of a header."""
    return value.isascii() and value.isprintable()


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
            problem = "the token file is empty" if not token else "it does not contain a token"
            token = token if is_header(token) else ""
        if token:
            self._value = f"Bearer {token}"
        elif not self._value:
            raise CredentialsError(problem, source=str(self._path), remedy="mount or write a token there")
        self._read_at = self._clock.monotonic()
