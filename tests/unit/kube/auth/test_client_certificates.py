"""A client with a certificate is the user that it names, whatever token it sends."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from kubesim.apiserver import ApiServer
from kubesim.http import HttpFace
from kubesim.server.calls import User
from kubesim_support.accounts import grant, rule
from support.servers import FixedToken

from gracectl.kube.auth.credentials import Credentials, Trust
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.http import HttpTransport
from gracectl.kube.resources import NODES
from gracectl.runtime.clock import SystemClock


@asynccontextmanager
async def client_of(url: str, token: str = "", trust: Trust | None = None) -> AsyncIterator[KubeClient]:
    """gracectl's own client, with a token."""
    clock = SystemClock()
    credentials = Credentials(url, FixedToken(f"Bearer {token}" if token else ""), trust=trust)
    async with HttpTransport(credentials, clock) as transport:
        yield KubeClient(transport, clock)


@pytest.mark.real_time
async def test_a_certificate_names_the_user_and_beats_a_token() -> None:
    folder = Path(__file__).parents[1] / "certificates"
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    tls.load_cert_chain(folder / "server.pem", folder / "server.key")
    tls.verify_mode = ssl.CERT_OPTIONAL
    server = ApiServer(SystemClock(), tokens={"of-the-admin": "admin", "t": User("jane")})
    # The certificate is the user gracectl's, of the group testers.
    await grant(server, {"kind": "Group", "name": "testers"}, rule("list", "nodes"))
    face = HttpFace(server)
    url = await face.start(tls=tls)
    ours = Trust(ca_file=str(folder / "ca.pem"))
    shown = msgspec.structs.replace(
        ours, certificate_file=str(folder / "client.pem"), key_file=str(folder / "client.key")
    )
    try:
        async with client_of(url, trust=shown) as client:
            assert [len(page.items) async for page in client.list(NODES)] == [0]
            with pytest.raises(Forbidden, match='User "gracectl" cannot get'):
                await client.get(NODES, ("", "n1"))
        async with client_of(url, "t", trust=shown) as client:
            with pytest.raises(Forbidden, match='User "gracectl" cannot get'):
                await client.get(NODES, ("", "n1"))
        async with client_of(url, "t", trust=ours) as client:
            with pytest.raises(Forbidden, match='User "jane" cannot get'):
                await client.get(NODES, ("", "n1"))
    finally:
        await face.stop()
