"""The certificate that this process shows, and the authorities by which API servers may know it.

Wherever certificates come from, they are offered here. Invariants: a pair that cannot be used replaces none that can; a
pair is shown only when those who ask have had time to trust its authority, unless what is shown now is of no use any
more; an authority stays in the bundle for a while after nobody names it, as other replicas may still show its pair.
"""

from __future__ import annotations

import logging
import ssl
from typing import Final

import msgspec

from gracectl.model.times import format_time
from gracectl.runtime.certificates import (
    CertificateInfo,
    KeyPair,
    authorities_in,
    certificate_info,
    check,
    issuers_of,
    load,
    unexpired,
)
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

RETAINED_SECONDS: Final = 900.0
"""So long an authority that nobody names any more stays in the bundle."""


class Material(msgspec.Struct, frozen=True):
    """A pair, and the authorities by which it is to be trusted (PEM; empty: nobody says)."""

    pair: KeyPair
    authorities: bytes = b""


class _Known(msgspec.Struct):
    """An authority, by monotonic instants: when it was named first, and last."""

    first: float
    last: float


class Identity:
    """See the module. `settling`: seconds that it takes until everybody who asks trusts an authority that is new here;
    `hosts`: the names that a pair must bear ("" among them or none at all: whichever it bears)."""

    def __init__(self, clock: Clock, settling: float, hosts: tuple[str, ...] = ()) -> None:
        self.context = _context()
        """For the next handshake; another one when clients' authorities have changed."""
        self._clients: bytes | None = None
        self._clock = clock
        self._settling = settling
        self._hosts = frozenset(filter(None, hosts))
        self._shown: KeyPair | None = None
        self._facts: CertificateInfo | None = None
        self._known: dict[bytes, _Known] = {}

    @property
    def is_ready(self) -> bool:
        """Whether there is anything to show."""
        return self._shown is not None

    @property
    def facts(self) -> CertificateInfo | None:
        """What the certificate says that is shown."""
        return self._facts

    @property
    def shown(self) -> KeyPair | None:
        """What is shown."""
        return self._shown

    def is_good(self) -> bool:
        """Whether what is shown is of any use."""
        return self._facts is not None and self._facts.ends > self._clock.now() and self._facts.names >= self._hosts

    def offer(self, material: Material) -> bool:
        """Show this as soon as it is trusted; True if it is shown. The same may be offered again and again, and has to
        be where it is not shown at once.

        ValueError if it cannot be used: what was shown is shown still.
        """
        named = authorities_in(material.authorities)
        facts = certificate_info(material.pair.certificate)
        now = self._clock.monotonic()
        for authority in named:
            self._known.setdefault(authority, _Known(now, now)).last = now
        if material.pair == self._shown:
            return True
        if self.is_good() and not self._is_trusted(material, named):
            check(material.pair)
            return False
        load(self.context, material.pair)
        self._shown, self._facts = material.pair, facts
        logger.info("a certificate for %s is shown, good until %s", self._words(facts), format_time(facts.ends))
        return True

    def require(self, authorities: bytes) -> None:
        """From the next handshake on clients must show a certificate of these authorities (PEM). ValueError if they
        cannot be read: those before count still."""
        if authorities == self._clients:
            return
        if not authorities_in(authorities):
            raise ValueError("it holds no certificate")
        context = _context()
        context.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        context.verify_mode = ssl.CERT_REQUIRED
        if self._shown is not None:
            load(context, self._shown)
        self.context, self._clients = context, authorities

    def bundle(self) -> bytes:
        """What API servers are to trust now: every authority that has been named lately, and those of what is shown.
        Empty if nobody has named any."""
        now = self._clock.monotonic()
        vouchers = issuers_of(self._shown.certificate, self._known) if self._shown else ()
        for authority in [each for each, known in self._known.items() if known.last + RETAINED_SECONDS < now]:
            if authority not in vouchers:
                del self._known[authority]
        return b"".join(unexpired(self._known, self._clock.now()))

    def _is_trusted(self, material: Material, named: tuple[bytes, ...]) -> bool:
        """Whether one who vouches for a pair has been known for long enough; where nobody is named, nobody can wait."""
        vouchers = issuers_of(material.pair.certificate, named)
        trusted_since = min((self._known[each].first for each in vouchers), default=float("-inf"))
        return trusted_since + self._settling <= self._clock.monotonic()

    @staticmethod
    def _words(facts: CertificateInfo) -> str:
        return ", ".join(sorted(facts.names)) or "no name"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
