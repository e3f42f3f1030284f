"""Every HTTP client of gracectl gives a response up that has no end, unpacks to no end, or takes too long."""

from __future__ import annotations

import ast
import gzip
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Final

import pytest
import requests
from aiobotocore.utils import AioContainerMetadataFetcher
from requests.adapters import HTTPAdapter
from support.aws import at, give_credentials, provider_id, take_credentials

import gracectl
from benchmarks.ground.process import peak_memory
from gracectl.cloud.aws import clients
from gracectl.cloud.provider import ProviderError, ProviderUnavailable
from gracectl.telemetry.collector import OversizeResponse, bounded_session

pytestmark = pytest.mark.real_time

ROOT = Path(gracectl.__file__).parent
CLIENTS: Final = {
    "kube/http.py": "tests/unit/kube/test_http.py: TooLarge",
    "cloud/http.py": "tests/unit/cloud/test_webhook.py: LONGEST_RESPONSE", "cloud/aws/clients.py": "below",
    "telemetry/collector.py": "below", "telemetry/tracing.py": "below: its session is of telemetry/collector.py",
    "telemetry/otlp_metrics.py": "below: its session is of telemetry/collector.py",
    "cli/demo_play.py": "reads the page of its own process",
    "cli/demo_traffic.py": "asks servers of its own",
    "interruption/metadata.py": "tests/unit/interruption/test_metadata.py: LARGEST_ANSWER",
    "app/apprise_sender.py": "tests/unit/cli/test_notifications.py: LONGEST_MEMORY",
}  # fmt: skip
"""Modules that make an HTTP client, and where their limits are tested."""

MAKERS = {"ClientSession", "Session", "get_session", "urlopen", "OTLPSpanExporter", "OTLPMetricExporter", "Apprise"}

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\n"
MIB = 1024 * 1024
BOMB = gzip.compress(bytes(MIB)) * 512
SENT_AT_MOST = 64 * MIB
"""Buffers of both sockets are in it."""


def test_these_are_all_clients() -> None:
    users = set()
    for file in ROOT.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if any(maker in source for maker in MAKERS) else ():
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in MAKERS:
                    users.add(str(file.relative_to(ROOT)))
    assert users == set(CLIENTS)


class Hostile:
    """Answers each request with `body`, piece by piece, until the client closes the connection."""

    def __init__(self, head: bytes, body: Callable[[], Iterator[bytes]]) -> None:
        self._head, self._body = head, body
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        self.has_stopped = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(self._head)
            for piece in self._body():
                connection.sendall(piece)
                self.sent += len(piece)
        self.has_stopped.set()

    def close(self) -> None:
        self._listener.close()


def _endless() -> Iterator[bytes]:
    return repeat(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def _bomb() -> Iterator[bytes]:
    return iter((BOMB,))


def _dripping() -> Iterator[bytes]:
    pause = threading.Event()
    for piece in repeat(b"1\r\nx\r\n"):
        yield piece
        pause.wait(0.02)


@pytest.fixture
def served() -> Iterator[Callable[[bytes, Callable[[], Iterator[bytes]]], Hostile]]:
    servers: list[Hostile] = []

    def serve(head: bytes, body: Callable[[], Iterator[bytes]]) -> Hostile:
        servers.append(Hostile(HEAD + head, body))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


CHUNKED, PACKED = b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"


def test_a_collector_that_answers_without_end_fails_the_export(served: Callable[..., Hostile]) -> None:
    server = served(CHUNKED, _endless)
    with pytest.raises(OversizeResponse, match="response exceeds 64 KiB"):
        bounded_session(lambda: 0.0).post(server.url, b"", timeout=10)
    assert server.has_stopped.wait(10)
    assert server.sent < SENT_AT_MOST


def test_a_huge_compressed_response_is_refused(served: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    read = HTTPAdapter.send

    def counting(*arguments: object, **options: object) -> requests.Response:
        response = read(*arguments, **options)  # type: ignore[arg-type]
        read1 = response.raw.read1

        def counted(amount: int, *, decode_content: bool) -> bytes:
            data: bytes = read1(amount, decode_content=decode_content)
            lengths.append(len(data))
            return data

        response.raw.read1 = counted
        return response

    monkeypatch.setattr(HTTPAdapter, "send", counting)
    server = served(PACKED, _bomb)
    with pytest.raises(OversizeResponse, match="response exceeds 64 KiB"):
        bounded_session(lambda: 0.0).post(server.url, b"", timeout=10)
    assert max(lengths) <= 64 * 1024


def test_a_collector_whose_answer_drips_fails_the_export(served: Callable[..., Hostile]) -> None:
    server = served(CHUNKED, _dripping)
    instants = iter(range(0, 1000, 3))  # three seconds pass between two reads
    with pytest.raises(OversizeResponse, match="response takes more than 10 s"):
        bounded_session(lambda: next(instants)).post(server.url, b"", timeout=10)
    assert server.has_stopped.wait(10)


@pytest.mark.parametrize(
    ("head", "body", "seconds", "message"),
    [
        (CHUNKED, _endless, 30, "DescribeInstances"),
        (CHUNKED, _dripping, 2, "DescribeInstances|no response of AWS within 2 s"),
        (PACKED, _bomb, 30, "DescribeInstances"),
    ],
)
async def test_a_response_of_aws_without_end_is_given_up(
    served: Callable[..., Hostile],
    head: bytes,
    body: Callable[[], Iterator[bytes]],
    seconds: float,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give_credentials(monkeypatch)
    monkeypatch.setattr(clients, "ATTEMPTS", 1)
    server = served(head, body)
    before = peak_memory(os.getpid())
    async with at(server.url, timeoutSeconds=seconds) as provider:
        with pytest.raises(ProviderUnavailable, match=message):
            await provider.state(provider_id("i-0123456789abcdef0"))
    assert server.has_stopped.wait(10)
    assert server.sent < SENT_AT_MOST
    assert peak_memory(os.getpid()) - before < 100


@pytest.mark.parametrize("body", [_endless, _dripping])
@pytest.mark.parametrize("source", ["instance", "container", "STS"])
async def test_credentials_without_end_are_given_up(
    served: Callable[..., Hostile],
    body: Callable[[], Iterator[bytes]],
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """botocore's clients of the instance metadata service, of the agent of a container, and of STS."""
    server = served(CHUNKED, body)
    take_credentials(monkeypatch)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
    if source == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        monkeypatch.setattr(AioContainerMetadataFetcher, "RETRY_ATTEMPTS", 1)
    elif source == "STS":
        (tmp_path / "token").write_text("token")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    async with at(server.url, timeoutSeconds=2) as provider:
        with pytest.raises(ProviderError):
            await provider.state(provider_id("i-0123456789abcdef0"))
    assert server.has_stopped.wait(10)
    assert server.sent < SENT_AT_MOST
