"""What the administrator decides about admission. Defaults are pinned by a test."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from gracectl.kube.credentials import own_namespace
from gracectl.kube.settings import ELSEWHERE, Name, NamespaceIfAny
from gracectl.runtime.certificates import canonical_host
from gracectl.telemetry.settings import HIGHEST_PORT, Address, parse_address

HTTPS_PORT: Final = 443

Label = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description='the name of a Service has small letters, digits and "-", begins and ends with a letter or digit, '
        "and is no longer than 63",
    ),
]


class ServiceSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The Service through which the API server reaches us. `namespace` "" is that of the pod itself; outside a pod,
    kube-system."""

    name: Label
    namespace: NamespaceIfAny = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=HIGHEST_PORT)] = HTTPS_PORT


class CertificateFiles(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Paths of PEM files, as cert-manager's Secrets are mounted; all "": we make the certificate ourselves.

    `ca_file`: what the API server is to trust; "": what it trusts anyway, or somebody else tells it.
    """

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""

    @property
    def are_given(self) -> bool:
        """Whether somebody else makes the certificate."""
        return bool(self.cert_file)


class ClientCertificates(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """By which API servers prove that they ask; `ca_file` "": whatever reaches the port may ask.

    `ca_file`: a PEM file with the authorities of their certificates, read again when it changes; `names`: common names
    or DNS names of which a certificate must have one, empty: any certificate of these authorities will do.
    """

    ca_file: str = ""
    names: tuple[str, ...] = ()


class AdmissionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`listen`: where API servers ask us over HTTPS, `host:port`, without a host on all addresses; "" is nowhere, and
    nothing else here counts then."""

    listen: str = ""
    service: ServiceSettings | None = None
    url: str = ""
    """Instead of a Service: where the API server finds us, `https://host[:port][/path]`."""
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    """What becomes of a deletion of a node that nobody can be asked about. Everything else is never held up."""
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=30)] = 10
    """How long an API server waits for an answer."""
    certificates: CertificateFiles = CertificateFiles()
    client_certificates: ClientCertificates = ClientCertificates()
    secret: Name = "gracectl-webhook-tls"
    """Where a certificate that we make ourselves is kept, in the namespace of the Service."""
    name: Name = "gracectl"
    """Of the two webhook configurations."""
    register: bool = True
    """Whether the leader makes and mends them; if not, it only writes the authority into the webhooks that are ours."""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is to ask us at all."""
        return bool(self.listen)

    @property
    def writes_configurations(self) -> bool:
        """Whether the leader writes to the webhook configurations at all: it makes them, or has an authority to put
        into them."""
        return self.register or not self.certificates.are_given or bool(self.certificates.ca_file)

    @property
    def namespace(self) -> str:
        """Where Service and Secret are."""
        named = self.service.namespace if self.service else ""
        return named or own_namespace() or ELSEWHERE

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that our certificate must bear, the one that an API server looks for first."""
        if self.service is None:
            return (canonical_host(urlsplit(self.url).hostname or ""),)
        short = f"{self.service.name}.{self.namespace}"
        return (f"{short}.svc", f"{short}.svc.cluster.local", short)

    def address(self) -> Address | None:
        """Where we listen; None when nowhere. ValueError for what is no address."""
        return parse_address(self.listen) if self.listen else None

    def validate(self) -> None:
        """Raises ValueError, with the field in front, for what cannot work."""
        if not self.is_wanted:
            return
        try:
            self.address()
        except ValueError as error:
            raise ValueError(f"listen: {error}") from error
        self._validate_certificates()
        if self.client_certificates.names and not self.client_certificates.ca_file:
            raise ValueError("clientCertificates.names: are given without caFile; give the file of their authorities")
        self._validate_place()

    def _validate_certificates(self) -> None:
        files = self.certificates
        if bool(files.cert_file) != bool(files.key_file):
            given, missing = ("certFile", "keyFile") if files.cert_file else ("keyFile", "certFile")
            raise ValueError(f"certificates.{missing}: is needed beside {given}; give both, or neither")
        if files.ca_file and not files.cert_file:
            raise ValueError(
                "certificates.caFile: is given without a certificate; give certFile and keyFile, or remove it (a "
                "certificate that gracectl makes has an authority of its own)"
            )

    def _validate_place(self) -> None:
        if self.service is not None and self.url:
            raise ValueError("url: is given beside service; remove one of them")
        if self.url:
            _validate_url(self.url)
        elif self.service is None and self.register:
            raise ValueError(
                "service: is needed for the API server to find us; give its name, or a url, or set register to false"
            )
        elif self.service is None and not self.certificates.are_given:
            raise ValueError(
                "service: is needed to make a certificate in its name; give its name, or a url, or certificates"
            )


def _validate_url(url: str) -> None:
    """As API servers want it."""
    try:
        parts: SplitResult | None = urlsplit(url)
        assert parts is not None
        is_good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0 and url.isascii()
    except ValueError:
        parts, is_good = None, False
    if parts is None or not is_good:
        raise ValueError(f"url: {url!r} is no address such as https://gracectl.example.com:8443")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"url: {url!r} has a user, a query or a fragment, which API servers do not send; remove it")
