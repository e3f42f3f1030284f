"""Certificates that are replaced while an API server asks without a break: not one question is refused."""

from __future__ import annotations

import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.streams.tls import TLSAttribute
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from kubesim_support.patience import PATIENCE
from support.admission import NODES, SECRET, Hosted, hosted
from support.servers import free_port

from gracectl.admission import admission, files, rotation, serving_certificate
from gracectl.admission.server import LIMITS
from gracectl.model import names
from gracectl.runtime.certificates import Issued, issue
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time

HOSTS = ("gracectl.infra.svc", "gracectl.infra.svc.cluster.local", "gracectl.infra")
DAY = 86_400.0
SETTLING = 0.5
LINGER = 1e6
"""Until the test says that all clients know."""
PATIENT = {"timeoutSeconds": 30}
NODE = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "dry"}}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes takes parts of a second; each is as much longer than another as it is in life."""
    monkeypatch.setattr(admission, "LINGER_SECONDS", 0.0)
    # A machine that stands still for seconds breaks off no handshake.
    monkeypatch.setattr(admission, "LIMITS", msgspec.structs.replace(LIMITS, handshake=PATIENCE))
    for module, name, seconds in (
        (files, "RELOAD_SECONDS", 0.02),
        (rotation, "READ_SECONDS", 0.05),
        (rotation, "SYNC_SECONDS", 0.05),
        (admission, "LOOK_SECONDS", 0.05),
        (rotation, "SETTLING_SECONDS", SETTLING),
        (serving_certificate, "SETTLING_SECONDS", SETTLING),
    ):
        monkeypatch.setattr(module, name, seconds)


def made(age: float = 0.0) -> Issued:
    """A certificate of our own, as old as this."""
    return issue(HOSTS, SystemClock().now() - age, rotation.LIFE_SECONDS)


def put(folder: Path, issued: Issued) -> dict[str, str]:
    """Write files; returns the settings that name them."""
    contents = {"certFile": issued.pair.certificate, "keyFile": issued.pair.key, "caFile": issued.authority}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: str(folder / name) for name in contents}


class LingeringClock(SystemClock):
    """A stopping process keeps serving until its clients know that it stops, however slow this machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        monkeypatch.setattr(admission, "LINGER_SECONDS", LINGER)
        self.is_lingering, self.all_know = anyio.Event(), anyio.Event()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        if seconds == LINGER:
            self.is_lingering.set()
            await self.all_know.wait()
        else:
            await super().sleep(seconds)


class Asked:
    """Answers so far: the finalizers of each node. A node without our finalizer was not reviewed."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def again(self) -> None:
        """Return when two whole requests more, one over a new connection and one over a kept one, are answered."""
        enough = len(self.seen) + 3  # the first may have begun before
        with anyio.fail_after(PATIENCE):
            while len(self.seen) < enough:
                await SystemClock().sleep(0.005)


@asynccontextmanager
async def asking(place: Hosted) -> AsyncIterator[Asked]:
    """Create nodes without a break while the block runs, as dry runs, over a new connection and a kept one in turn.
    Afterwards, each must have been reviewed."""
    asked = Asked()
    enough = anyio.Event()

    async def ask() -> None:
        while not enough.is_set():  # and what is asked then is answered: no handshake is broken off
            response = await place.ask("POST", NODES, NODE, dryRun="All")
            asked.seen.append(response.body["metadata"].get("finalizers"))
            if len(asked.seen) % 2:
                # The next question finds no connection, and shakes hands.
                await place.server.aclose()
            await anyio.sleep(0.005)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        yield asked
        enough.set()
    assert {tuple(each or ()) for each in asked.seen} == {(names.FINALIZER,)}


async def is_shown(port: int, authority: bytes) -> bool:
    """Whether new connections are shown a certificate of this authority. No handshake is broken off for that: in its
    debug mode asyncio would call it an error of the server."""
    credulous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    credulous.check_hostname, credulous.verify_mode = False, ssl.CERT_NONE
    try:
        stream = await anyio.connect_tcp("127.0.0.1", port, ssl_context=credulous, tls_standard_compatible=False)
    except OSError:
        return False
    async with stream:
        binary = stream.extra(TLSAttribute.peer_certificate_binary)
        await stream.send(b"GET / HTTP/1.1\r\nHost: gracectl\r\nConnection: close\r\n\r\n")
        await stream.receive()  # the server has shaken hands, too
    assert binary is not None
    shown = x509.load_der_x509_certificate(binary)
    try:
        shown.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, InvalidSignature):
        return False
    return True


async def until_shown(port: int, authority: bytes) -> None:
    with anyio.fail_after(PATIENCE):
        while not await is_shown(port, authority):
            await SystemClock().sleep(0.02)


async def test_files_that_change_with_their_authority(tmp_path: Path) -> None:
    first, second = made(), made()
    certificates = put(tmp_path, first)
    port = free_port()
    async with hosted() as place, place.controller(port=port, admission={"certificates": certificates, **PATIENT}):
        await place.routed(port)
        await place.register()
        async with asking(place) as asked:
            await until_shown(port, first.authority)
            await asked.again()
            put(tmp_path, second)
            assert await is_shown(port, first.authority)
            while second.authority not in b64decode((await place.call("GET", SECRET))["data"]["ca.crt"]):
                await place.clock.sleep(0.02)
            assert await is_shown(port, first.authority)  # until the new one is registered
            await place.register()
            await until_shown(port, second.authority)
            await asked.again()


async def test_a_certificate_of_an_earlier_version() -> None:
    old = made(age=61 * DAY)
    async with hosted() as place:
        data = {"tls.crt": old.pair.certificate, "tls.key": old.pair.key, "ca.crt": old.authority}
        encoded = {name: b64encode(value).decode() for name, value in data.items()}
        body = {"metadata": {"name": SECRET.rpartition("/")[2]}, "type": "kubernetes.io/tls", "data": encoded}
        await place.call("POST", SECRET.rpartition("/")[0], body)
        port = free_port()
        async with place.controller(port=port, admission=PATIENT):
            await place.routed(port)
            await place.register()
            async with asking(place) as asked:
                await until_shown(port, old.authority)
                await asked.again()
                bundle = b64decode((await place.call("GET", SECRET))["data"]["ca.crt"])
                assert old.authority in bundle
                new = bundle.replace(old.authority, b"")
                await until_shown(port, new)
                assert not await is_shown(port, old.authority)
                await asked.again()
            kept = (await place.call("GET", SECRET))["data"]
            assert set(kept) == {"tls.crt", "tls.key", "ca.crt", "ca.key", "path"}


async def test_a_replica_that_is_told_to_stop_answers_until_all_clients_know(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_port(), free_port()
    lease = {"enabled": True, "namespace": "infra"}
    async with hosted() as place:
        place.clock = clock = LingeringClock(monkeypatch)
        async with (
            place.controller(port=first, leaderElection=lease, admission=PATIENT) as (going, stop),
            place.controller(port=second, leaderElection=lease, admission=PATIENT) as (staying, _),
        ):
            await place.routed(first)
            await place.register()
            await place.until(
                lambda: all(check.is_ok for check in (*going.process.readiness(), *staying.process.readiness()))
            )
            async with asking(place) as asked:
                await asked.again()
                stop.set()
                with anyio.fail_after(PATIENCE):
                    await clock.is_lingering.wait()
                await asked.again()  # so long the Service goes on leading to it
                assert not all(check.is_ok for check in going.process.readiness())
                await place.routed(second)
                clock.all_know.set()
                await place.until(lambda: "admission" not in going.process.components.statistics().running)
                await asked.again()
