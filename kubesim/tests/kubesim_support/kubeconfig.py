"""How a kubeconfig reaches its cluster: URL, TLS, headers. Tokens and client certificates; no plug-ins."""

from __future__ import annotations

import ssl
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Access(NamedTuple):
    """What a request needs; `tls` is None over plain HTTP."""

    url: str
    tls: ssl.SSLContext | None
    headers: dict[str, str]


def access_of(kubeconfig: Path) -> Access:
    """The access of the current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"]).get("user") or {}
    headers = {"authorization": f"Bearer {user['token']}"} if user.get("token") else {}
    if not cluster["server"].startswith("https:"):
        return Access(cluster["server"], None, headers)
    with tempfile.TemporaryDirectory() as folder:
        authority = _file(cluster, "certificate-authority", Path(folder))
        tls = ssl.create_default_context(cafile=str(authority) if authority else None)
        certificate, key = (_file(user, field, Path(folder)) for field in ("client-certificate", "client-key"))
        if certificate is not None:
            tls.load_cert_chain(certificate, key)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return Access(cluster["server"], tls, headers)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _file(section: dict[str, Any], field: str, folder: Path) -> Path | None:
    """The file that a field names, or one of what its `-data` holds."""
    if f"{field}-data" in section:
        file = folder / field
        file.write_bytes(b64decode(section[f"{field}-data"]))
        return file
    return Path(section[field]) if field in section else None
