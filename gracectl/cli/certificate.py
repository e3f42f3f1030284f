"""A certificate for the embedded cluster, which proves its address to whoever reads the kubeconfig, and to nobody else.

Clients send no token over plain HTTP, so a cluster that asks for tokens needs one.
"""

from __future__ import annotations

import ipaddress
import shutil
import ssl
from pathlib import Path
from subprocess import CalledProcessError

import anyio
import msgspec

from gracectl.config import ConfigError

DAYS = "30"


class Certificate(msgspec.Struct, frozen=True):
    """What the server shows (`context`), and what clients check it by (`authority`, PEM)."""

    context: ssl.SSLContext
    authority: bytes


async def self_signed(folder: Path, host: str) -> Certificate:
    """A certificate for localhost and `host`, made by openssl. Raises ConfigError where there is no openssl."""
    if shutil.which("openssl") is None:
        raise ConfigError("--tls and --rbac need the program openssl, which is not on PATH; install it")
    names = {"DNS:localhost", "IP:127.0.0.1", _subject(host)}
    key, certificate = folder / "tls.key", folder / "tls.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", DAYS, "-subj", "/CN=gracectl-sim", "-addext", f"subjectAltName={','.join(sorted(names))}"]
    try:
        await anyio.run_process([*command, "-keyout", str(key), "-out", str(certificate)])
    except CalledProcessError as error:
        said = " ".join(error.stderr.decode(errors="replace").split())
        raise ConfigError(f"openssl could not make a certificate: {said}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return Certificate(context, certificate.read_bytes())


def _subject(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"
