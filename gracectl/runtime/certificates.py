"""Server certificates: issued, read, and loaded into a TLS context, all in memory.

An authority is made once; a client that trusts it trusts every certificate that is signed later. PEM everywhere;
instants are seconds since the epoch.

`cryptography` is imported when it is first needed: 10 MiB that a process without its own certificates does not need.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

SKEW_SECONDS: Final = 300.0
"""A certificate is valid from this much before now: the client's clock may be behind."""

_LONGEST_NAME: Final = 64
"""Characters of a common name (X.520)."""


class KeyPair(msgspec.Struct, frozen=True):
    """Certificate with its chain, and its key."""

    certificate: bytes
    key: bytes


class Issued(msgspec.Struct, frozen=True):
    """New key pair and the authority that signed it."""

    pair: KeyPair
    authority: bytes


class CertificateInfo(msgspec.Struct, frozen=True):
    """Contents of a certificate: host names and addresses, and validity."""

    names: frozenset[str]
    not_before: float
    not_after: float


def new_authority(now: float, life: float) -> KeyPair:
    """Authority that signs server certificates, valid from SKEW_SECONDS before `now` until `life` seconds after it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Each authority of a bundle has a unique subject, so that clients pick the right one.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gracectl {serial:x}"[:_LONGEST_NAME])])
    not_before, not_after = _moment(now - SKEW_SECONDS), _moment(now + life)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial, not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def issue(names: Iterable[str], now: float, life: float, authority: KeyPair | None = None) -> Issued:
    """Key pair for these hosts and IP addresses, valid from SKEW_SECONDS before `now` until `life` seconds after it, at
    most until the authority ends. `authority` None: a new one, valid for as long.

    ValueError if the authority cannot be read.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority = authority or new_authority(now, life)
    issuer, signer = _signer(authority)
    hosts = tuple(names)
    key = ec.generate_private_key(ec.SECP256R1())
    not_before, not_after = _moment(now - SKEW_SECONDS), min(_moment(now + life), issuer.not_valid_after_utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:_LONGEST_NAME])])
    of_authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        x509.CertificateBuilder(
            issuer.subject, subject, key.public_key(), x509.random_serial_number(), not_before, not_after
        )
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(of_authority, critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Issued(_pair(certificate, key), authority.certificate)


def check_authority(pair: KeyPair) -> None:
    """ValueError if the pair is not an authority that `issue` can sign with."""
    check(pair)
    _signer(pair)


def _signer(authority: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Certificate and key of an authority. ValueError if it is none of ours."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate = _read(authority.certificate)[0]
    key = load_pem_private_key(authority.key, password=None)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise ValueError(str(error)) from error
    if not constraints.ca or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an authority with an elliptic-curve key")
    return certificate, key


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(certificate.public_bytes(Encoding.PEM), private)


def certificate_info(chain: bytes) -> CertificateInfo:
    """Contents of the first certificate of a chain. ValueError if it cannot be read."""
    certificate = _read(chain)[0]
    return CertificateInfo(_names(certificate), *_times(certificate))


def authorities_in(bundle: bytes) -> tuple[bytes, ...]:
    """Certificates of a bundle in canonical form; none if it is empty. ValueError for an invalid bundle."""
    if not bundle.strip():
        return ()
    from cryptography.hazmat.primitives.serialization import Encoding

    return tuple(each.public_bytes(Encoding.PEM) for each in _read(bundle))


def unexpired(authorities: Iterable[bytes], now: float) -> tuple[bytes, ...]:
    """Authorities that are still valid at `now`. ValueError for an invalid certificate."""
    return tuple(each for each in authorities if certificate_info(each).not_after > now)


def issuers_of(chain: bytes, authorities: Iterable[bytes]) -> tuple[bytes, ...]:
    """Authorities that have signed a certificate of the chain, or are part of it. Raises ValueError for an invalid
    certificate."""
    certificates = _read(chain)
    return tuple(each for each in authorities if _is_issuer(_read(each)[0], certificates))


def check(pair: KeyPair) -> None:
    """ValueError if certificate and key cannot be read or do not belong together."""
    _load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)


def load(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Use this pair in handshakes from now on; established connections keep theirs. ValueError if certificate and key
    cannot be read or do not belong together; nothing has changed then."""
    check(pair)
    _load_into(context, pair)


def _load_into(context: ssl.SSLContext, pair: KeyPair) -> None:
    with _readable(pair.certificate) as certificate, _readable(pair.key) as key:
        try:
            # Without a password the library would prompt for that of an encrypted key, on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError("the key does not belong to the certificate") from error
            raise ValueError(f"certificate and key cannot be read: {error.reason or error}") from error


@contextmanager
def _readable(content: bytes) -> Iterator[str]:
    """Path at which the content can be read; on Linux it never touches a disk, and the root may be read-only."""
    try:
        descriptor = os.memfd_create("gracectl")
    except (AttributeError, OSError):  # not Linux, or a sandbox without it
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
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error


def _is_issuer(authority: x509.Certificate, chain: Iterable[x509.Certificate]) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

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
    from cryptography import x509

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


def canonical_host(host: str) -> str:
    """Canonical spelling of a host, as in `CertificateInfo`: an IP address has several."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _moment(instant: float) -> datetime:
    """Certificates have whole seconds."""
    return datetime.fromtimestamp(int(instant), UTC)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """An authority signs certificates; a server proves that it has the key."""
    from cryptography import x509

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
