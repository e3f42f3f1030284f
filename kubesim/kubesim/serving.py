"""A cluster behind HTTP for a time: its listener, its certificate, and the kubeconfig that leads to it."""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import msgspec
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubesim.cluster import EmbeddedCluster
from kubesim.http import HttpFace

LOOPBACK = "127.0.0.1"
SKEW_SECONDS, LIFE_SECONDS = 300.0, 30 * 86_400.0
"""A certificate is valid from so long before now, and so long after."""


class CannotServe(Exception):
    """The cluster cannot be served; the message says why and what to choose instead."""


class Certificate(msgspec.Struct, frozen=True):
    """What the server shows (`context`), and what clients check it by (`authority`, PEM)."""

    context: ssl.SSLContext
    authority: bytes


@asynccontextmanager
async def listening(
    cluster: EmbeddedCluster,
    kubeconfig: Path,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    token: str = "",
    certificate: Certificate | None = None,
) -> AsyncIterator[str]:
    """Serve a cluster while the block runs; yields the URL, after writing the kubeconfig. The caller runs the cluster.
    Raises CannotServe."""
    face = HttpFace(cluster.server)
    try:
        try:
            url = await face.start(host, port, tls=certificate.context if certificate else None)
        except OSError as error:
            remedy = "--port" if host == LOOPBACK else "--bind or --port"
            raise CannotServe(f"the cluster cannot start: {error}; choose another {remedy}") from error
        try:
            write_kubeconfig(kubeconfig, url, token=token, ca=certificate.authority if certificate else b"")
        except OSError as error:
            raise CannotServe(f"the cluster cannot start: {error}; choose another --kubeconfig") from error
        yield url
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()


def write_kubeconfig(path: Path, url: str, *, token: str = "", ca: bytes = b"", name: str = "kubesim") -> None:
    """Write a kubeconfig, readable by its owner only. `ca`: the server's certificate (PEM). Raises OSError."""
    proof = {"certificate-authority-data": b64encode(ca).decode()} if ca else {}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url, **proof}}],
        "users": [{"name": name, "user": {"token": token} if token else {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(config, file, sort_keys=False)


def self_signed(host: str, now: float) -> Certificate:
    """A certificate for this machine and `host` that is its own authority: a client that trusts it trusts no other."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubesim")])
    begins, ends = (datetime.fromtimestamp(at, UTC) for at in (now - SKEW_SECONDS, now + LIFE_SECONDS))
    hosts = dict.fromkeys(("localhost", LOOPBACK, host))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begins, ends)
        .add_extension(x509.SubjectAlternativeName([_alternative(each) for each in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    proof = certificate.public_bytes(Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder, "pair.pem")
        pair.touch(mode=0o600)
        pair.write_bytes(proof + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        context.load_cert_chain(pair)
    return Certificate(context, proof)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
