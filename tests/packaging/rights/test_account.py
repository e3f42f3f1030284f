"""What a chart needs: a ServiceAccount with a ClusterRole may do what the role lists, and gets 403 on all the rest."""

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
from kubesim_support.accounts import account_token, grant, rule
from kubesim_support.caller import Caller
from support.servers import FixedToken

from gracectl.controllers.rbac import RIGHTS
from gracectl.kube.auth.credentials import Credentials, Trust
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden, NotFound, Unauthorized
from gracectl.kube.http import HttpTransport
from gracectl.kube.rbac import Permission
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES, PODS, VOLUME_CLAIMS
from gracectl.runtime.clock import LoopClock, SystemClock

SUBJECT = {"kind": "ServiceAccount", "name": "gracectl", "namespace": "kube-system"}
ROLE = [
    rule(right.verb, f"{right.plural}/{right.subresource}" if right.subresource else right.plural, right.group)
    for right in RIGHTS
]
METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
OPEN = {
    Permission("create", f"{kind}s", group)
    for group, kind in (
        ("authorization.k8s.io", "selfsubjectaccessreview"),
        ("authorization.k8s.io", "selfsubjectrulesreview"),
        ("authentication.k8s.io", "selfsubjectreview"),
    )
}
"""What every account may do."""


async def test_every_verb_on_every_resource() -> None:
    server = ApiServer(LoopClock(), tokens={"of-the-admin": "admin"})
    headers = {"authorization": f"Bearer {await account_token(server, 'gracectl', 'kube-system')}"}
    await grant(server, SUBJECT, *ROLE)
    allowed: set[Permission] = set()
    for resource in list(server.registry):
        group, version, plural = resource.group, resource.version, resource.plural
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        place = f"{base}/namespaces/default/{plural}" if resource.namespaced else f"{base}/{plural}"
        for verb, method in METHODS.items():
            named = verb in ("get", "update", "patch", "delete")
            # An unknown selector ends a watch, and a collection's deletion, before it begins.
            query = {"fieldSelector": "no.such=field"} if not named and method != "POST" else {}
            query |= {"watch": "1"} if verb == "watch" else {}
            path = f"{place}/x" if named else place
            answer = await Caller(server).call(method, path, b"", headers=headers, **query)
            assert answer.status != 401
            if answer.status != 403:
                allowed.add(Permission(verb, plural, group))
        for subresource in resource.subresources:
            for verb in ("get", "update", "patch", "create"):
                answer = await Caller(server).call(METHODS[verb], f"{place}/x/{subresource}", b"", headers=headers)
                if answer.status != 403:
                    allowed.add(Permission(verb, plural, group, subresource))
    assert allowed == {*RIGHTS, *OPEN}


@asynccontextmanager
async def client_of(url: str, token: str = "", trust: Trust | None = None) -> AsyncIterator[KubeClient]:
    """gracectl's own client, with a token."""
    clock = SystemClock()
    credentials = Credentials(url, FixedToken(f"Bearer {token}" if token else ""), trust=trust)
    async with HttpTransport(credentials, clock) as transport:
        yield KubeClient(transport, clock)


@pytest.mark.real_time
async def test_over_http_with_its_token() -> None:
    server = ApiServer(SystemClock(), tokens={"of-the-admin": "admin"})
    token = await account_token(server, "gracectl", "kube-system")
    await grant(server, SUBJECT, *ROLE)
    face = HttpFace(server)
    url = await face.start()
    try:
        async with client_of(url, token) as client:
            assert [len(page.items) async for page in client.list(NODES)] == [0]
            with pytest.raises(NotFound):
                await client.get(VOLUME_CLAIMS, ("default", "x"))
            with pytest.raises(NotFound):
                await client.evict(("default", "x"), uid="u")
            with pytest.raises(NotFound):
                await client.delete(NODES, ("", "n1"))
            for refused in (
                client.delete(VOLUME_CLAIMS, ("default", "x")),
                client.patch(PODS, ("default", "x"), MergePatch({})),
                client.create(NODES, "", {"metadata": {"name": "n1"}}),
            ):
                with pytest.raises(Forbidden, match="system:serviceaccount:kube-system:gracectl"):
                    await refused
        async with client_of(url, token[:-1]) as client:
            with pytest.raises(Unauthorized):
                await client.get(NODES, ("", "n1"))
    finally:
        await face.stop()


@pytest.mark.real_time
async def test_over_tls_with_a_certificate() -> None:
    folder = Path(__file__).parents[3] / "tests/unit/kube/certificates"
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
