"""The serving certificate of this process, and the bundle of authorities that API servers are to trust.

Certificates of any source are offered here. Invariants: an invalid pair never replaces a valid one; a pair is served
only when clients trust its authority, unless the served one is no longer valid; an authority stays in the bundle for a
while after it was last named, because other replicas may still serve its pair.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

from gracectl.model.times import format_time
from gracectl.runtime import certificates
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

SETTLING_SECONDS: Final = 60.0
"""From when the webhook configurations have an authority until every API server has read it."""
RETAINED_SECONDS: Final = 900.0
"""How long an authority stays in the bundle after it was last named."""


class Material(msgspec.Struct, frozen=True):
    """Pair with the authorities that vouch for it (PEM; empty: unknown)."""

    pair: certificates.KeyPair
    authorities: bytes = b""


class ServingCertificate:
    """The serving certificate. `trusted_for`: seconds for which all clients have had an authority; `hosts`: names that
    a pair must have ("" among them or none at all: any)."""

    def __init__(self, clock: Clock, trusted_for: Callable[[bytes], float], hosts: tuple[str, ...] = ()) -> None:
        self.context = _context()
        """Context of the next handshake; replaced when the authorities of clients change."""
        self._clients: bytes | None = None
        self._clock = clock
        self._trusted_for = trusted_for
        self._hosts = frozenset(filter(None, hosts))
        self._served: certificates.KeyPair | None = None
        self._info: certificates.CertificateInfo | None = None
        self._authorities: dict[bytes, float] = {}
        """Monotonic instant at which each authority was last named, by authority."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a certificate to serve."""
        return self._served is not None

    @property
    def info(self) -> certificates.CertificateInfo | None:
        """Contents of the served certificate."""
        return self._info

    @property
    def served(self) -> certificates.KeyPair | None:
        """The pair that is served."""
        return self._served

    def is_good(self) -> bool:
        """Whether the served certificate is valid, for all hosts."""
        return self._info is not None and self._info.not_after > self._clock.now() and self._info.names >= self._hosts

    def offer(self, material: Material) -> bool:
        """Serve this pair as soon as it is trusted; True if it is served. If the pair is not served immediately, the
        caller must offer it again.

        Raises ValueError if the pair is invalid; the previous pair stays in use.
        """
        named = certificates.authorities_in(material.authorities)
        info = certificates.certificate_info(material.pair.certificate)
        now = self._clock.monotonic()
        for authority in named:
            self._authorities[authority] = now
        if material.pair == self._served:
            return True
        if self.is_good() and not self._is_trusted(material, named):
            certificates.check(material.pair)
            return False
        certificates.load(self.context, material.pair)
        self._served, self._info = material.pair, info
        logger.info("certificate for %s: in use, valid until %s", self._hosts_of(info), format_time(info.not_after))
        return True

    def require_clients(self, authorities: bytes) -> None:
        """Require client certificates of these authorities (PEM) from the next handshake on. ValueError if they cannot
        be read: the previous ones apply still."""
        if authorities == self._clients:
            return
        if not certificates.authorities_in(authorities):
            raise ValueError("contains no certificate")
        context = _context()
        context.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        context.verify_mode = ssl.CERT_REQUIRED
        if self._served is not None:
            certificates.load(context, self._served)
        self.context, self._clients = context, authorities

    def bundle(self) -> bytes:
        """Bundle that API servers must trust now: recently named authorities, and the authorities of the served pair.
        Empty if no authority was ever named."""
        now = self._clock.monotonic()
        issuers = certificates.issuers_of(self._served.certificate, self._authorities) if self._served else ()
        for authority in [each for each, last in self._authorities.items() if last + RETAINED_SECONDS < now]:
            if authority not in issuers:
                del self._authorities[authority]
        return b"".join(certificates.unexpired(self._authorities, self._clock.now()))

    def _is_trusted(self, material: Material, named: tuple[bytes, ...]) -> bool:
        """Whether clients trust an authority of a pair; without authorities there is no reason to wait."""
        issuers = certificates.issuers_of(material.pair.certificate, named)
        return not issuers or any(self._trusted_for(each) >= SETTLING_SECONDS for each in issuers)

    @staticmethod
    def _hosts_of(info: certificates.CertificateInfo) -> str:
        return ", ".join(sorted(info.names)) or "no host"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
