"""Credentials for an API server: one address, one TLS context, one Authorization header, each as of now.

kubernetes_asyncio knows the many forms of a kubeconfig (tokens, passwords, auth providers, TLS material, the service
account of a pod); what lives longer than one read is ours: token files are read again, exec plugins run again when
their token or certificate expires or is refused. The library is imported here only, and only when needed.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gracectl.kube.kubeconfig import Context, CredentialsError, context_names, read_context, shown_address
from gracectl.kube.tokens import FixedToken, Plugin, RefreshedToken, TokenFile, TokenSource, is_header
from gracectl.runtime.clock import Clock

__all__ = ["ClusterAddress", "Credentials", "CredentialsError", "Identity", "Trust", "load", "own_namespace"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def own_namespace() -> str | None:
    """Namespace of the pod that this process runs in; None outside of one."""
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or None
    except OSError:
        return None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How the two sides prove themselves in TLS; files hold PEM, `server_name` replaces the address' own in the
    check.
    """

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
        if await self.identity() != refused:
            return True
        return await self._tokens.renew()

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
        return _in_cluster(service_account, environ, clock)
    return await _from_kubeconfig(_paths_or_default(kubeconfig, environ), context, clock)


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
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException, load_incluster_config

    settings: Any = Configuration()
    load_library: Any = load_incluster_config
    try:
        load_library(
            settings,
            # It renews by the local clock and keeps a trailing newline; TokenFile does it better.
            try_refresh_token=False,
            token_filename=str(folder / "token"),
            cert_filename=str(folder / "ca.crt"),
            environ=dict(environ),
        )
    except (ConfigException, OSError) as error:
        raise CredentialsError(
            str(error), source=str(folder), remedy="mount the service account's token, or name a kubeconfig"
        ) from error
    return Credentials(
        str(settings.host),
        TokenFile(folder / "token", clock),
        trust=Trust(ca_file=str(folder / "ca.crt")),
        source=str(folder),
    )


async def _from_kubeconfig(paths: tuple[Path, ...], name: str | None, clock: Clock) -> Credentials:
    chosen = read_context(paths, name)
    _check_files(chosen)
    settings = await _library(chosen)
    credentials = Credentials(
        settings.host,
        _tokens(chosen, settings, clock),
        trust=Trust(
            ca_file=settings.ssl_ca_cert or "",
            certificate_file=settings.cert_file or "",
            key_file=settings.key_file or "",
            verify=settings.verify_ssl,
            server_name=settings.tls_server_name,
        ),
        proxy=settings.proxy,
        source=chosen.source,
        context=chosen.name,
    )
    # Now rather than with the first request: a plugin that fails is a matter of configuration.
    await credentials.identity()
    return credentials


async def _library(chosen: Context) -> Any:
    """kubernetes_asyncio's reading of a context, as its Configuration."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import load_kube_config_from_dict

    # Plugins and token files are renewed by us. The library wants a user, be it an empty one.
    user = {field: value for field, value in chosen.user.items() if field not in {"exec", "tokenFile"}}
    settings = Configuration()
    try:
        await load_kube_config_from_dict(
            {
                "current-context": chosen.name,
                "contexts": [{"name": chosen.name, "context": {"cluster": "cluster", "user": "user"}}],
                "clusters": [{"name": "cluster", "cluster": dict(chosen.cluster)}],
                "users": [{"name": "user", "user": user}],
            },
            client_configuration=settings,
        )
    except Exception as error:  # what the library makes of a malformed field comes as it comes
        raise CredentialsError(
            f"the library cannot make sense of it: {error}",
            source=chosen.user_source or chosen.source,
            field=f"context {chosen.name}",
            remedy="check its cluster and user",
        ) from error
    return settings


def _tokens(chosen: Context, settings: Any, clock: Clock) -> TokenSource:
    user = chosen.user
    if user.get("tokenFile"):
        # Before `token`, as client-go has it.
        return TokenFile(Path(user["tokenFile"]), clock)
    if isinstance(user.get("exec"), Mapping) and not user.get("token"):
        return _plugin(chosen, clock)
    header = str(settings.api_key.get("BearerToken", "")).strip()
    if "auth-provider" in user:

        async def load_again() -> str:
            return str((await _library(chosen)).api_key.get("BearerToken", "")).strip()

        return RefreshedToken(header, load_again)
    if not is_header(header):
        raise CredentialsError(
            "holds characters that no header can",
            source=chosen.user_source,
            field=f"users[{chosen.user_name}].{'token' if user.get('token') else 'username'}",
            remedy="correct it",
        )
    return FixedToken(header)


def _plugin(chosen: Context, clock: Clock) -> Plugin:
    from kubernetes_asyncio.config import ConfigException

    try:
        return Plugin(chosen.user["exec"], chosen.user_source, chosen.cluster, clock)
    except (ConfigException, TypeError, KeyError) as error:
        raise CredentialsError(
            str(error), source=chosen.user_source, field=f"users[{chosen.user_name}].exec", remedy="correct the file"
        ) from error


def _check_files(chosen: Context) -> None:
    """Name the field of a file that is missing; the library would name neither field nor kubeconfig."""
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
