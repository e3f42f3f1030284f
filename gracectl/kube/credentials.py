"""Credentials for an API server: one address, one TLS context, one Authorization header, each as of now.

Token files are read again, exec plugins run again when their token or certificate expires or is refused. Auth providers
(oidc, gcp) are left to kubernetes_asyncio, which is imported here only, and only for them: with its 850 modules of
models it costs half a second and 34 MiB.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from gracectl.kube.kubeconfig import Context, CredentialsError, context_names, read_context, shown_address
from gracectl.kube.tokens import FixedToken, Plugin, RefreshedToken, TokenFile, TokenSource, is_header
from gracectl.runtime.clock import Clock

__all__ = ["ClusterAddress", "Credentials", "CredentialsError", "Identity", "Trust", "load", "own_namespace"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_AUTH_PROVIDERS = frozenset({"gcp", "oidc"})  # that kubernetes_asyncio knows


def own_namespace() -> str | None:
    """Namespace of the pod that this process runs in; None outside of one."""
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or None
    except OSError:
        return None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How the two sides prove themselves in TLS; files hold PEM, `server_name` replaces the address' own in the
    check. `ca` is PEM itself.
    """

    ca_file: str = ""
    ca: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """A TLS context of this trust. Raises OSError (ssl.SSLError for content) naming no file."""
        context = ssl.create_default_context(cafile=self.ca_file or None, cadata=self.ca or None)
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
    """What one request goes out with. `tls` is None for plain HTTP, and another object after a certificate was
    renewed.
    """

    headers: Mapping[str, str]
    tls: ssl.SSLContext | None


class ClusterAddress(msgspec.Struct, frozen=True):
    """Which cluster a command talks to. `context`: of the kubeconfig; None: the pod's service account was used.

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
        if isinstance(tokens, Plugin):
            tokens.on_certificate = self._take_certificate

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
        if await self.identity() != refused or self._has_new_certificate():
            return True
        return await self._tokens.renew()

    def _has_new_certificate(self) -> bool:
        """Whether the file of the client certificate has another one than before, which is used from now on. A kubelet
        renews its certificate long before the old one expires."""
        found = self._trust.certificate()
        if not found or found == self._certificate:
            return False
        self._tls, self._certificate = self._make_context(), found
        return True

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

    def _take_certificate(self, certificate: str, key: str) -> None:
        # OpenSSL reads keys from files only; the folder is ours alone and gone at once.
        with tempfile.TemporaryDirectory(prefix="gracectl-") as folder:
            files = Path(folder, "tls.crt"), Path(folder, "tls.key")
            for file, content in zip(files, (certificate, key), strict=True):
                file.write_text(content)
            self._trust = msgspec.structs.replace(self._trust, certificate_file=str(files[0]), key_file=str(files[1]))
            self._tls = self._make_context()


async def load(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    clock: Clock,
    environ: Mapping[str, str] | None = None,
    service_account: Path = _SERVICE_ACCOUNT,
) -> Credentials:
    """The credentials that kubectl would use with --kubeconfig and --context.

    Looked for in this order: the file given, the files of KUBECONFIG, the service account of the pod we run in,
    ~/.kube/config. Raises CredentialsError.
    """
    environ = os.environ if environ is None else environ
    if not _paths(kubeconfig, environ) and not context and (service_account / "token").is_file():
        credentials = _in_cluster(service_account, environ, clock)
    else:
        credentials = await _from_kubeconfig(_paths_or_default(kubeconfig, environ), context, clock)
    # Now rather than with the first request: a plugin that fails is a matter of configuration.
    await credentials.identity()
    return credentials


def contexts(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the contexts that there are to choose from. Raises CredentialsError."""
    return context_names(_paths_or_default(kubeconfig, environ))


def _paths_or_default(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    return _paths(kubeconfig, environ) or (_home(environ) / ".kube" / "config",)


def _paths(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The files given: one by the flag, as with kubectl, or a list in the variable."""
    if kubeconfig:
        return (Path(kubeconfig).expanduser(),)
    return tuple(Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _in_cluster(folder: Path, environ: Mapping[str, str], clock: Clock) -> Credentials:
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


async def _from_kubeconfig(paths: tuple[Path, ...], name: str | None, clock: Clock) -> Credentials:
    chosen = read_context(paths, name)
    _check_files(chosen)
    tokens = await _tokens(chosen, clock)
    cluster = chosen.cluster
    authorities = cluster.get("certificate-authority-data")
    with ExitStack() as stack:
        return Credentials(
            cluster["server"],
            tokens,
            trust=Trust(
                ca_file="" if authorities else cluster.get("certificate-authority") or "",
                # A comment may hold any character, which OpenSSL refuses here and not in files.
                ca=b64decode(authorities).decode("ascii", "backslashreplace") if authorities else "",
                certificate_file=_file(chosen.user, "client-certificate", stack),
                key_file=_file(chosen.user, "client-key", stack),
                verify=not cluster.get("insecure-skip-tls-verify"),
                server_name=cluster.get("tls-server-name") or None,
            ),
            proxy=cluster.get("proxy-url") or None,
            source=chosen.source,
            context=chosen.name,
        )


def _file(user: Mapping[str, Any], field: str, stack: ExitStack) -> str:
    """The file of that field, "" if there is none. What the kubeconfig has as data is in a file until `stack` ends:
    OpenSSL reads keys from files only."""
    data = user.get(f"{field}-data")
    if not data:
        return user.get(field) or ""
    file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gracectl-")), field)
    file.write_bytes(b64decode(data))
    return str(file)


async def _tokens(chosen: Context, clock: Clock) -> TokenSource:
    user = chosen.user
    if user.get("tokenFile"):
        # Before `token`, as client-go has it.
        return TokenFile(Path(user["tokenFile"]), clock)
    if isinstance(user.get("exec"), Mapping) and not user.get("token"):
        return _plugin(chosen, clock)
    if (user.get("auth-provider") or {}).get("name") in _AUTH_PROVIDERS:

        async def load() -> str:
            return await _from_auth_provider(chosen)

        return RefreshedToken(await load(), load)
    header = _fixed_header(user)
    if not is_header(header):
        raise CredentialsError(
            "holds characters that no header can",
            source=chosen.user_source,
            field=f"users[{chosen.user_name}].token",
            remedy="correct it",
        )
    return FixedToken(header)


def _fixed_header(user: Mapping[str, Any]) -> str:
    if token := (user.get("token") or "").strip():
        return f"Bearer {token}"
    if username := user.get("username"):
        password = user.get("password") or ""
        return "Basic " + b64encode(f"{username}:{password}".encode("utf-8", "replace")).decode()
    return ""


async def _from_auth_provider(chosen: Context) -> str:
    """The header that kubernetes_asyncio makes of the auth provider."""
    field = f"users[{chosen.user_name}].auth-provider"
    try:
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config import load_kube_config_from_dict
    except ModuleNotFoundError as error:
        raise CredentialsError(
            "kubernetes-asyncio is not installed",
            source=chosen.user_source,
            field=field,
            remedy="run pip install '.[oidc]' in a checkout of gracectl, or use an exec plugin",
        ) from error
    settings: Any = Configuration()
    try:
        await load_kube_config_from_dict(
            {
                "current-context": "context",
                "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
                "clusters": [{"name": "cluster", "cluster": {"server": chosen.cluster["server"]}}],
                "users": [{"name": "user", "user": {"auth-provider": chosen.user["auth-provider"]}}],
            },
            client_configuration=settings,
        )
    except Exception as error:  # what the library makes of a malformed field comes as it comes
        raise CredentialsError(
            f"the library cannot make sense of it: {error}",
            source=chosen.user_source,
            field=field,
            remedy="correct it, or use an exec plugin",
        ) from error
    return str(settings.api_key.get("BearerToken", "")).strip()


def _plugin(chosen: Context, clock: Clock) -> Plugin:
    config = chosen.user["exec"]
    for field in ("command", "apiVersion"):
        if not config.get(field):
            raise CredentialsError(
                f"it has no {field}",
                source=chosen.user_source,
                field=f"users[{chosen.user_name}].exec",
                remedy="correct the file",
            )
    return Plugin(config, chosen.user_source, chosen.cluster, clock)


def _check_files(chosen: Context) -> None:
    """Name the field of a file that is missing; OpenSSL would name neither field nor kubeconfig."""
    for thing, place, source, fields in (
        (chosen.cluster, f"clusters[{chosen.cluster_name}]", chosen.source, ("certificate-authority",)),
        (chosen.user, f"users[{chosen.user_name}]", chosen.user_source, ("client-certificate", "client-key")),
    ):
        for field in fields:
            path = thing.get(field)
            if not path or thing.get(f"{field}-data"):
                continue
            try:
                with Path(path).open("rb"):
                    pass
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise CredentialsError(
                    f"{path} cannot be read: {reason}",
                    source=source,
                    field=f"{place}.{field}",
                    remedy="put the file there or correct the path",
                ) from error
