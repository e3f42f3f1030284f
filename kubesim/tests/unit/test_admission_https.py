"""Webhooks over real sockets: a caBundle that is checked, names that are, and every kind of missing answer."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Json, JsonObject, Response
from kubesim_support.caller import Caller
from kubesim_support.webhooks import CONFIGMAPS, FAILED, config_map, configuration, webhook

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CERTIFICATES = Path(__file__).parent / "certificates"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
SERVICES = "/api/v1/namespaces/default/services"
UNKNOWN_AUTHORITY = "tls: failed to verify certificate: x509: certificate signed by unknown authority"


def bundle(*names: str) -> str:
    """A caBundle of certificates."""
    return base64.b64encode(b"".join((CERTIFICATES / f"{name}.pem").read_bytes() for name in names)).decode()


AUTHORITY = bundle("authority")


class Server:
    """A webhook server."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[tuple[str, str, Any]] = []

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Allow everything, with a warning."""
        review = await request.json()
        self.seen.append((request.path_qs, request.host, review))
        response = {"uid": review["request"]["uid"], "allowed": True, "warnings": ["asked"]}
        return web.json_response({**review, "request": None, "response": response})


@asynccontextmanager
async def serving(certificate: str = "webhook") -> AsyncIterator[Server]:
    """A webhook on 127.0.0.1 with one of the certificates ("": without TLS)."""
    server, context = Server(), None
    _mind_no_broken_handshake()
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / f"{certificate}.pem")
    runner = web.ServerRunner(web.Server(server.serve), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


def _mind_no_broken_handshake() -> None:
    """In its debug mode asyncio reports each handshake that a client breaks off, and here many do on purpose."""
    loop = asyncio.get_running_loop()
    report = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), ConnectionResetError | ssl.SSLError) and report is not None:
            report(loop, context)

    loop.set_exception_handler(handle)


@asynccontextmanager
async def asking(client: JsonObject, **more: Json) -> AsyncIterator[Caller]:
    """A client of a server that asks one webhook about config maps."""
    api = ApiServer(LoopClock())
    caller = Caller(api)
    await caller.create(VALIDATING, configuration("validating", webhook(clientConfig=client, **more)))
    try:
        yield caller
    finally:
        await api.aclose()


async def attempt(caller: Caller) -> Response:
    """Create a config map, dry."""
    return await caller.call("POST", CONFIGMAPS, config_map("one"), dryRun="All")


async def test_a_webhook_is_asked_over_https() -> None:
    async with serving() as server:
        client = {"url": f"https://127.0.0.1:{server.port}/hooks/", "caBundle": AUTHORITY}
        async with asking(client, timeoutSeconds=7) as caller:
            for _ in range(2):
                response = await attempt(caller)
                assert (response.status, response.headers["warning"]) == (201, '299 - "asked"')
    assert [(path, host) for path, host, _ in server.seen] == 2 * [("/hooks?timeout=7s", f"127.0.0.1:{server.port}")]


async def test_a_certificate_may_be_its_own_authority() -> None:
    async with serving() as server:
        client = {"url": f"https://127.0.0.1:{server.port}", "caBundle": bundle("stranger", "webhook")}
        async with asking(client) as caller:
            assert (await attempt(caller)).status == 201


@pytest.mark.parametrize(
    ("certificate", "host", "trusted", "why"),
    [
        ("webhook", "127.0.0.1", "stranger", UNKNOWN_AUTHORITY),
        ("webhook", "127.0.0.1", "", UNKNOWN_AUTHORITY),
        (
            "stranger",
            "127.0.0.1",
            "authority",
            "tls: failed to verify certificate: x509: cannot validate certificate for 127.0.0.1 because it doesn't "
            "contain any IP SANs",
        ),
        (
            "stranger",
            "localhost",
            "authority",
            "tls: failed to verify certificate: x509: certificate is not valid for any names, but wanted to match "
            "localhost",
        ),
        ("", "127.0.0.1", "authority", "tls: first record does not look like a TLS handshake"),
    ],
)
async def test_who_is_not_who_they_should_be_is_not_asked(certificate: str, host: str, trusted: str, why: str) -> None:
    async with serving(certificate) as server:
        url = f"https://{host}:{server.port}/"
        client = {"url": url, **({"caBundle": bundle(trusted)} if trusted else {})}
        async with asking(client) as caller:
            response = await attempt(caller)
    assert response.status == 500
    assert response.body["message"] == f'{FAILED}failed to call webhook: Post "{url}?timeout=10s": {why}'
    assert server.seen == []


async def test_a_bundle_that_is_none() -> None:
    async with asking({"url": "https://127.0.0.1", "caBundle": base64.b64encode(b"hello").decode()}) as caller:
        response = await attempt(caller)
    why = "could not get REST client: unable to load root certificates: unable to parse bytes as PEM block"
    assert response.body["message"] == f"{FAILED}{why}"


async def test_no_listener() -> None:
    async with serving() as server:
        port = server.port
    async with asking({"url": f"https://127.0.0.1:{port}/", "caBundle": AUTHORITY}) as caller:
        response = await attempt(caller)
    assert response.body["message"] == (
        f'{FAILED}failed to call webhook: Post "https://127.0.0.1:{port}/?timeout=10s": dial tcp 127.0.0.1:{port}: '
        "connect: connection refused"
    )


async def through_service(caller: Caller, **service: Json) -> Response:
    """The answer once there is such a Service `hook`."""
    metadata = {"name": "hook", **service.pop("metadata", {})}
    spec = {"ports": [{"port": 443, "name": "https"}], **service}
    await caller.create(SERVICES, {"metadata": metadata, "spec": spec})
    return await attempt(caller)


SERVICE = {"service": {"namespace": "default", "name": "hook", "path": "/asked"}, "caBundle": AUTHORITY}


def why_not(response: Response) -> str:
    """Why no server was reached."""
    prefix = f'{FAILED}failed to call webhook: Post "https://hook.default.svc:443/asked?timeout=10s": '
    message: str = response.body["message"]
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


async def test_a_service_that_is_not_there() -> None:
    async with asking(SERVICE) as caller:
        assert why_not(await attempt(caller)) == 'service "hook" not found'


async def test_a_service_without_endpoints() -> None:
    async with asking(SERVICE) as caller:
        assert why_not(await through_service(caller)) == 'endpoints "hook" not found'


async def test_a_service_without_the_port() -> None:
    async with asking(SERVICE) as caller:
        response = await through_service(caller, ports=[{"port": 80}])
        assert why_not(response) == 'no service port 443 found for service "hook"'


async def test_a_service_elsewhere() -> None:
    async with asking(SERVICE) as caller:
        response = await through_service(caller, type="ExternalName", externalName="a.b")
        assert why_not(response) == 'unsupported service type "ExternalName"'


ENDPOINTS = "/api/v1/namespaces/default/endpoints"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


@pytest.mark.parametrize("path", [ENDPOINTS, SLICES])
async def test_a_service_with_endpoints(path: str) -> None:
    async with serving() as server, asking(SERVICE) as caller:
        ports = [{"name": "https", "port": server.port}]
        endpoints: JsonObject = {
            "metadata": {"name": "hook"},
            "subsets": [{"addresses": [{"ip": "127.0.0.1"}], "ports": ports}],
        }
        if path == SLICES:
            endpoints = {
                "metadata": {"name": "hook-x", "labels": {"kubernetes.io/service-name": "hook"}},
                "addressType": "IPv4",
                "ports": ports,
                "endpoints": [
                    {"addresses": ["10.255.255.1"], "conditions": {"ready": False}},
                    {"addresses": ["127.0.0.1"]},
                ],
            }
        await caller.create(path, endpoints)
        assert (await through_service(caller)).status == 201
    assert len(server.seen) == 1


async def test_the_certificate_must_bear_the_name_of_the_service() -> None:
    async with serving("stranger") as server, asking(SERVICE) as caller:
        annotations = {"kubesim/url": f"127.0.0.1:{server.port}"}
        response = await through_service(caller, metadata={"annotations": annotations})
    assert why_not(response) == (
        "tls: failed to verify certificate: x509: certificate is not valid for any names, but wanted to match "
        "hook.default.svc"
    )
