"""Which clients may ask, where API servers prove by certificates that it is them: over real sockets."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from support.admission import StandInGate, a_node_object, a_review
from support.servers import free_port, serving
from support.stage import staged, the_settings

from gracectl.admission.files import RELOAD_SECONDS, ClientAuthorities
from gracectl.admission.nodes import NodeDeletionValidator
from gracectl.admission.server import LIMITS, WebhookServer
from gracectl.admission.serving_certificate import Material, ServingCertificate
from gracectl.admission.webhooks import NODE_DELETE_WEBHOOK
from gracectl.app.controller import Controller
from gracectl.config import ConfigError
from gracectl.runtime.certificates import issue
from gracectl.runtime.clock import LoopClock, SystemClock
from gracectl.runtime.supervise import while_running
from gracectl.telemetry.server import Endpoint

REVIEW: Final = orjson.dumps(a_review("DELETE", "nodes", None, a_node_object()))
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
LONG: Final = timedelta(days=36_500)


class Authority:
    """Of clients."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._certificate(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def issue(self, folder: Path, name: str, *, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH) -> Path:
        """A file with a certificate for that name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._certificate(subject, key.public_key()).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        file = folder / f"{name}.pem"
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM) + private)
        return file

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number(), EPOCH, EPOCH + LONG)


class Place:
    """The webhooks behind TLS that asks for a certificate."""

    def __init__(self, identity: ServingCertificate, authority: bytes, port: int) -> None:
        self.identity = identity
        self._authority = authority
        self._port = port

    async def ask(self, certificate: Path | None) -> int | None:
        """The status of the answer to a review; None if TLS does not let it through."""
        context = ssl.create_default_context(cadata=self._authority.decode())
        if certificate:
            context.load_cert_chain(certificate)
        head = f"POST {NODE_DELETE_WEBHOOK.path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(REVIEW)}\r\n\r\n"
        try:
            stream = await anyio.connect_tcp("127.0.0.1", self._port, ssl_context=context, tls_hostname="a")
            async with stream:
                await stream.send(head.encode() + REVIEW)
                return int((await stream.receive())[9:12])
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream):
            return None


@asynccontextmanager
async def place(authorities: bytes, names: frozenset[str] = frozenset()) -> AsyncIterator[Place]:
    clock = SystemClock()
    identity, issued = ServingCertificate(clock, lambda authority: 1e9), issue(("a",), clock.now(), 10_000.0)
    identity.offer(Material(issued.pair))
    identity.require_clients(authorities)
    gate = NodeDeletionValidator(StandInGate(), lambda: True)
    reception = WebhookServer({NODE_DELETE_WEBHOOK: gate}, clock, 10.0, names)
    port = free_port()
    door = Endpoint(
        "x", f"127.0.0.1:{port}", {}, method="POST", tls=lambda: identity.context, limits=LIMITS, find=reception.find
    )
    async with serving(door):
        yield Place(identity, issued.authority, port)


@pytest.mark.real_time
async def test_only_a_client_with_a_certificate_of_these_authorities_is_answered(tmp_path: Path) -> None:
    ours, others = Authority("ours"), Authority("others")
    async with place(ours.pem) as there:
        assert await there.ask(ours.issue(tmp_path, "kube-apiserver")) == 200
        assert await there.ask(None) is None
        assert await there.ask(others.issue(tmp_path, "kube-apiserver")) is None
        assert await there.ask(ours.issue(tmp_path, "a-server", usage=ExtendedKeyUsageOID.SERVER_AUTH)) is None


@pytest.mark.real_time
async def test_a_certificate_must_have_an_allowed_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = Authority("ours")
    async with place(ours.pem, frozenset({"kube-apiserver"})) as there:
        assert await there.ask(ours.issue(tmp_path, "kube-apiserver")) == 200
        with caplog.at_level(logging.WARNING):
            assert await there.ask(ours.issue(tmp_path, "system:node:n1")) == 403
    assert "client certificate for system:node:n1: not allowed" in caplog.text


@pytest.mark.real_time
async def test_authorities_that_change_count_from_the_next_handshake_on(tmp_path: Path) -> None:
    before, after = Authority("before"), Authority("after")
    old, new = before.issue(tmp_path, "old"), after.issue(tmp_path, "new")
    async with place(before.pem) as there:
        assert (await there.ask(old), await there.ask(new)) == (200, None)
        there.identity.require_clients(after.pem)
        assert (await there.ask(old), await there.ask(new)) == (None, 200)
        there.identity.offer(
            Material(issue(("b",), SystemClock().now(), 10_000.0).pair)
        )  # another pair of ours changes nothing
        assert await there.ask(None) is None


async def test_a_file_broken_later_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "clients.pem"
    clock = LoopClock()
    identity = ServingCertificate(clock, lambda authority: 1e9)
    authorities = ClientAuthorities(str(file), identity, clock)
    file.write_bytes(Authority("ours").pem)
    authorities.require()
    context = identity.context
    assert context.verify_mode == ssl.CERT_REQUIRED
    async with while_running(authorities.run):
        file.write_text("nonsense")
        with caplog.at_level(logging.WARNING):
            await clock.sleep(3 * RELOAD_SECONDS)
        assert len(caplog.records) == 1
        assert "clients.pem: not a PEM file of certificates" in caplog.text
        assert identity.context is context
        file.write_bytes(Authority("others").pem)
        await clock.sleep(RELOAD_SECONDS)
        assert identity.context is not context


@pytest.mark.real_time
@pytest.mark.parametrize(("content", "why"), [
    (None, "cannot be read: No such file or directory; provide a PEM file, or correct the path"),
    ("", "not a PEM file of certificates: contains no certificate; provide a PEM file, or correct the path"),
    ("nonsense", "not a PEM file of certificates: "),
])  # fmt: skip
async def test_a_controller_does_not_start_without_them(tmp_path: Path, content: str | None, why: str) -> None:
    file = tmp_path / "clients.pem"
    if content is not None:
        file.write_text(content)
    admission = {
        "listen": f"127.0.0.1:{free_port()}",
        "service": {"name": "gracectl", "namespace": "infra"},
        "clientCertificates": {"caFile": str(file)},
    }
    async with staged(settings=the_settings(admission=admission)) as stage:
        controller = Controller(stage.settings, stage.transport.line(), stage.clock, stage.provider)
        with pytest.raises(ConfigError) as caught:
            await controller.run(anyio.Event())
    assert f"admission.clientCertificates.caFile: {file}: {why}" in str(caught.value)
