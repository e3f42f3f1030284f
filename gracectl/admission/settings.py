"""Settings of admission. Defaults are pinned by a test."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from gracectl.kube.auth.credentials import own_namespace
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE, Name, NamespaceIfAny
from gracectl.runtime.certificates import canonical_host
from gracectl.telemetry.settings import HIGHEST_PORT, Address, parse_address

HTTPS_PORT: Final = 443

Label = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description='name of a Service: lower-case letters, digits and "-", first and last a letter or digit, '
        "at most 63 characters",
    ),
]


class ServiceSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Service through which API servers reach gracectl. `namespace` "": that of the pod; outside a pod, kube-system."""

    name: Label
    namespace: NamespaceIfAny = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=HIGHEST_PORT)] = HTTPS_PORT


class CertificateFiles(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Paths of PEM files, as cert-manager's Secrets are mounted; all "": gracectl issues the certificate itself.

    `ca_file`: the authority that API servers are to trust; "": they trust it anyway, or cert-manager injects it.
    """

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    inject_from: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
            description="NAMESPACE/NAME of a Certificate of cert-manager",
        ),
    ] = ""
    """Certificate of cert-manager, NAMESPACE/NAME, whose authority `cainjector` writes into the configurations."""

    @property
    def are_given(self) -> bool:
        """Whether the certificate is in files."""
        return bool(self.cert_file)


class ClientCertificates(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Authentication of API servers by client certificates; `ca_file` "": every client that reaches the port.

    `ca_file`: PEM file with the authorities of their certificates, reread when it changes; `names`: common names or DNS
    names of which a certificate must have one; empty: any certificate of these authorities.
    """

    ca_file: str = ""
    names: tuple[str, ...] = ()


class AdmissionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`listen`: HTTPS address, `host:port`, without a host on all addresses; "": no admission server, and nothing else
    here applies."""

    listen: str = ""
    service: ServiceSettings | None = None
    url: str = ""
    """Instead of a Service: URL for API servers, `https://host[:port][/path]`."""
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    """Outcome of node deletions while no replica responds. Everything else is never blocked."""
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=30)] = 10
    """How long an API server waits for a response."""
    certificates: CertificateFiles = CertificateFiles()
    client_certificates: ClientCertificates = ClientCertificates()
    secret: Name = "gracectl-webhook-tls"
    """Secret with the self-made certificate and the secret part of the webhooks' paths, in the namespace of the
    Service."""
    name: Name = "gracectl"
    """Name of the two webhook configurations."""

    @property
    def is_wanted(self) -> bool:
        """Whether there is an admission server."""
        return bool(self.listen)

    @property
    def namespace(self) -> str:
        """Namespace of Service and Secret."""
        named = self.service.namespace if self.service else ""
        return named or own_namespace() or DEFAULT_NAMESPACE

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names that the self-made certificate needs, first the one that API servers use."""
        if self.service is None:
            return (canonical_host(urlsplit(self.url).hostname or ""),)
        short = f"{self.service.name}.{self.namespace}"
        return (f"{short}.svc", f"{short}.svc.cluster.local", short)

    def address(self) -> Address | None:
        """Listen address; None if there is none. ValueError for an invalid address."""
        return parse_address(self.listen) if self.listen else None

    def validate(self) -> None:
        """Raise ValueError, with the field in front, for an invalid combination."""
        if not self.is_wanted:
            return
        try:
            self.address()
        except ValueError as error:
            raise ValueError(f"listen: {error}") from error
        self._validate_certificates()
        if self.client_certificates.names and not self.client_certificates.ca_file:
            raise ValueError("clientCertificates.names: needs caFile; set the file of their authorities")
        self._validate_place()

    def _validate_certificates(self) -> None:
        files = self.certificates
        if bool(files.cert_file) != bool(files.key_file):
            given, missing = ("certFile", "keyFile") if files.cert_file else ("keyFile", "certFile")
            raise ValueError(f"certificates.{missing}: needed with {given}; set both, or neither")
        if files.ca_file and not files.cert_file:
            raise ValueError(
                "certificates.caFile: needs certFile and keyFile; set them, or remove it (a "
                "self-made certificate has its own authority)"
            )
        if files.inject_from and (files.ca_file or not files.cert_file):
            raise ValueError(
                "certificates.injectFrom: needs certFile and keyFile, and no caFile, as cert-manager has the authority"
            )

    def _validate_place(self) -> None:
        if self.service is not None and self.url:
            raise ValueError("url: excludes service; remove one of them")
        if self.url:
            _validate_url(self.url)
        elif self.service is None:
            raise ValueError("service: needed for the API server to reach gracectl; set its name, or a url")


def _validate_url(url: str) -> None:
    """Check a URL by the rules of API servers."""
    try:
        parts: SplitResult | None = urlsplit(url)
        assert parts is not None
        is_good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0 and url.isascii()
    except ValueError:
        parts, is_good = None, False
    if parts is None or not is_good:
        raise ValueError(f"url: {url!r} is not a URL such as https://gracectl.example.com:8443")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"url: {url!r} has a user, query or fragment, which API servers do not support; remove it")
