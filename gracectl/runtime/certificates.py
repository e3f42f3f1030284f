"""Certificates of servers: made, read, and put into a TLS context, all in memory.

A server's certificate is signed by an authority of its own whose key nobody keeps: whoever trusts the authority trusts
this one certificate, and nothing that anybody could still sign. PEM everywhere; instants are seconds since the epoch.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW_SECONDS: Final = 300.0
"""So much earlier than now a certificate begins: the clock of whoever checks it may be behind."""

_LONGEST_NAME: Final = 64
"""Characters of a common name (X.520)."""


class Pair(msgspec.Struct, frozen=True):
    """A certificate, those that vouch for it behind it, and its key."""

    certificate: bytes
    key: bytes


class Issued(msgspec.Struct, frozen=True):
    """A new pair and the authority to trust it by."""

    pair: Pair
    authority: bytes


class Facts(msgspec.Struct, frozen=True):
    """What a certificate says: for which hosts and addresses, from when until when."""

    names: frozenset[str]
    begins: float
    ends: float


def issue(names: Iterable[str], now: float, life: float) -> Issued:
    """A pair for these hosts and IP addresses, good from SKEW_SECONDS before `now` until `life` seconds after it."""
    hosts = tuple(names)
    begins, ends = _moment(now - SKEW_SECONDS), _moment(now + life)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Of several authorities in one bundle each has a subject of its own, so that nobody tries the wrong one.
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gracectl {serial:x}"[:_LONGEST_NAME])])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:_LONGEST_NAME])])
    of_authority = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        x509.CertificateBuilder(issuer, issuer, authority_key.public_key(), serial, begins, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(of_authority, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), begins, ends)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(of_authority), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pair = Pair(certificate.public_bytes(Encoding.PEM), private)
    return Issued(pair, authority.public_bytes(Encoding.PEM))


def facts_of(chain: bytes) -> Facts:
    """What the first certificate of a chain says. ValueError if it cannot be read."""
    certificate = _read(chain)[0]
    return Facts(_names(certificate), *_times(certificate))


def authorities_in(bundle: bytes) -> tuple[bytes, ...]:
    """The certificates of a bundle one by one, each written alike; none in what is empty. ValueError for what is no
    bundle."""
    return tuple(each.public_bytes(Encoding.PEM) for each in _read(bundle)) if bundle.strip() else ()


def unexpired(authorities: Iterable[bytes], now: float) -> tuple[bytes, ...]:
    """Those that are still good at `now`. ValueError for what is no certificate."""
    return tuple(each for each in authorities if facts_of(each).ends > now)


def vouching(chain: bytes, authorities: Iterable[bytes]) -> tuple[bytes, ...]:
    """Those of the authorities that have signed a certificate of the chain, or stand in it. ValueError for what is no
    certificate."""
    shown = _read(chain)
    return tuple(each for each in authorities if _vouches(_read(each)[0], shown))


def check(pair: Pair) -> None:
    """ValueError if certificate and key cannot be read or do not belong together."""
    _load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """From now on handshakes show this pair; those that are over keep theirs. ValueError if certificate and key cannot
    be read or do not belong together; nothing has changed then."""
    check(pair)
    _load_into(context, pair)


def _load_into(context: ssl.SSLContext, pair: Pair) -> None:
    with _readable(pair.certificate) as certificate, _readable(pair.key) as key:
        try:
            # Without a password the library would ask for that of a locked key, on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError("the key is not that of the certificate") from error
            raise ValueError(f"certificate and key cannot be read: {error.reason or error}") from error


@contextmanager
def _readable(content: bytes) -> Iterator[str]:
    """A path at which the content can be read; on Linux it never touches a disk, and the root may be read-only."""
    try:
        descriptor = os.memfd_create("gracectl")
    except (AttributeError, OSError):  # not Linux, or a sandbox that does not have it
        with tempfile.NamedTemporaryFile(prefix="gracectl-") as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    with os.fdopen(descriptor, "wb") as memory:
        memory.write(content)
        memory.flush()
        yield f"/proc/self/fd/{descriptor}"


def _read(pem: bytes) -> list[x509.Certificate]:
    """All certificates of a text, at least one. ValueError if there is none or one cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error


def _vouches(authority: x509.Certificate, chain: Iterable[x509.Certificate]) -> bool:
    for certificate in chain:
        if certificate == authority:
            return True
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return True
    return False


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(str(error)) from error
    addresses = found.get_values_for_type(x509.IPAddress)
    return frozenset((*found.get_values_for_type(x509.DNSName), *map(str, addresses)))


def _times(certificate: x509.Certificate) -> tuple[float, float]:
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()


def written_alike(host: str) -> str:
    """The host as `Facts` has it: an IP address has several spellings."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _moment(instant: float) -> datetime:
    """Certificates know whole seconds."""
    return datetime.fromtimestamp(int(instant), UTC)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """An authority signs certificates; a server proves that it has the key."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
