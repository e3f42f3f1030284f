"""A place for other people's clients: an API server over HTTP, alone or with a world around it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from kubesim.apiserver import ApiServer
from kubesim.cluster import EmbeddedCluster
from kubesim.http import HttpFace
from kubesim.serving import write_kubeconfig

CERTIFICATES = Path(__file__).parents[3] / "tests/unit/kube/certificates"


class Place(NamedTuple):
    """A cluster and how to reach it."""

    cluster: EmbeddedCluster
    kubeconfig: Path


@asynccontextmanager
async def served(server: ApiServer, folder: Path) -> AsyncIterator[Path]:
    """Serve over plain HTTP; yields a kubeconfig."""
    async with _listening(HttpFace(server)) as url:
        kubeconfig = folder / "kubeconfig"
        write_kubeconfig(kubeconfig, url)
        yield kubeconfig


@asynccontextmanager
async def served_by_token(server: ApiServer, folder: Path, token: str) -> AsyncIterator[Path]:
    """Serve over HTTPS; yields a kubeconfig with a token (which kubectl does not send over plain HTTP)."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    async with _listening(HttpFace(server), tls) as url:
        kubeconfig = folder / "kubeconfig"
        write_kubeconfig(kubeconfig, url, token=token, ca=(CERTIFICATES / "ca.pem").read_bytes())
        yield kubeconfig


@asynccontextmanager
async def _listening(face: HttpFace, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    url = await face.start(tls=tls)
    try:
        yield url
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()


def deployment(name: str, replicas: int = 2, **pod: Any) -> dict[str, Any]:
    """A Deployment of pause containers; `pod` is more of its pods' spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "pause:3.9"}], **pod},
            },
        },
    }


def settings(**data: str) -> dict[str, Any]:
    """A ConfigMap."""
    metadata = {"name": "settings", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
