"""Notifications by apprise itself, to a receiver on this machine, and what is refused at the start.

Without apprise (an extra) tests of it are skipped, and say so; where CI is set they fail.
"""

from __future__ import annotations

import gzip
import importlib.util
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from click.testing import CliRunner
from kubesim_support.patience import PATIENCE
from support.servers import answering

from benchmarks.ground.process import peak_memory
from gracectl.app import apprise_sender
from gracectl.app.apprise_sender import LONGEST_MEMORY, AppriseSender, NotSentError
from gracectl.cli.root import root
from gracectl.telemetry import logs

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning"),  # apprise, on Python 3.11 and 3.12
]

SECRET = "s3cr3t-t0k3n"


@pytest.fixture
def apprise() -> None:
    """Skip the test where apprise is not installed."""
    if importlib.util.find_spec("apprise") is None:
        assert not os.environ.get("CI"), "apprise is not installed"
        pytest.skip("apprise is not installed: the extra dev has it")


@asynccontextmanager
async def a_receiver(status: int = 200) -> AsyncIterator[tuple[str, list[Any]]]:
    """A receiver's URL for apprise, and what it has taken."""
    taken: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        taken.append((request.path, await request.json()))
        return web.Response(status=status)

    async with answering(take) as port:
        yield f"json://127.0.0.1:{port}/{SECRET}", taken


@pytest.mark.usefixtures("apprise")
async def test_a_receiver_takes_the_text_and_a_changed_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    async with a_receiver() as (first, taken), a_receiver() as (second, others):
        file.write_text(f"# on call\n\n{first}\n")
        sender = AppriseSender(str(file))
        sender.check()
        with anyio.fail_after(PATIENCE):
            await sender.send("gracectl: drain-stuck", "prod: drain-stuck: node n1: blocked\nand 1 more: n2")
            file.write_text(f"{second}\n")
            await sender.send("gracectl: drain-stuck", "again")
    ((path, body),) = taken
    assert path == f"/{SECRET}"
    assert body["title"] == "gracectl: drain-stuck"
    assert body["message"] == "prod: drain-stuck: node n1: blocked\nand 1 more: n2"
    assert len(others) == 1


@pytest.mark.usefixtures("apprise")
async def test_a_refusal_is_reported_without_the_url(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "urls"
    for name, level in logs._LIBRARIES.items():
        monkeypatch.setattr(logging.getLogger(name), "level", level)
    async with a_receiver(status=500) as (url, _):
        file.write_text(url)
        with anyio.fail_after(PATIENCE), caplog.at_level(logging.DEBUG), pytest.raises(Exception) as refused:  # noqa: PT011
            await AppriseSender(str(file)).send("title", "text")
    assert str(refused.value).startswith("a service has refused it, or cannot be reached")
    assert SECRET not in str(refused.value)
    assert SECRET not in caplog.text


MIB = 1 << 20
BOMB = gzip.compress(bytes(MIB), compresslevel=1) * 1024


@pytest.mark.usefixtures("apprise")
@pytest.mark.parametrize("body", ["endless", "bomb"])
async def test_a_service_that_answers_without_end_costs_this_process_nothing(body: str, tmp_path: Path) -> None:
    file, sent, before = tmp_path / "urls", 0, peak_memory(os.getpid())

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        await request.read()
        if body == "bomb":
            return web.Response(body=BOMB, headers={"Content-Encoding": "gzip"})
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)
            sent += 65_536

    async with answering(answer) as port:
        file.write_text(f"json://127.0.0.1:{port}/x")
        with anyio.fail_after(PATIENCE), pytest.raises(NotSentError, match="a service has refused it"):
            await AppriseSender(str(file)).send("title", "text")
    assert sent < LONGEST_MEMORY + 64 * MIB
    assert peak_memory(os.getpid()) - before < 100


@pytest.mark.usefixtures("apprise")
async def test_a_service_that_hangs_is_left_and_its_process_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apprise_sender, "SEND_SECONDS", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = tmp_path / "urls"
        file.write_text(f"json://127.0.0.1:{silent.getsockname()[1]}/x?rto=600\n")
        with anyio.fail_after(PATIENCE), pytest.raises(NotSentError, match="not sent in 5 s"):
            await AppriseSender(str(file)).send("title", "text")


@pytest.mark.usefixtures("apprise")
@pytest.mark.parametrize(("content", "reason"), [
    (None, "cannot be read: No such file or directory"), ("# none\n", "has 0 URLs; give 1 to 20, one per line"),
    (f"json://127.0.0.1\nnonsense://{SECRET}\n", "line 2 is no URL that apprise knows; see https://appriseit.com/"),
])  # fmt: skip
def test_urls_that_cannot_be_used_end_the_start_with_code_2(content: str | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "urls"
    if content is not None:
        file.write_text(content)
    message = started(tmp_path, file)
    assert f"notifications.urlFile: {file} {reason}" in message
    assert SECRET not in message


def test_without_the_extra_the_start_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    (tmp_path / "urls").write_text("json://127.0.0.1\n")
    message = started(tmp_path, tmp_path / "urls")
    assert (
        "notifications.urlFile: apprise is not installed; install gracectl[notify], or leave urlFile empty" in message
    )


def started(folder: Path, file: Path) -> str:
    """What the controller says as it refuses to start."""
    config = folder / "config.yaml"
    config.write_text(f"notifications: {{urlFile: {file}}}\n")
    result = CliRunner().invoke(root, ["controller", "--config", str(config)])
    assert result.exit_code == 2, result.output
    return result.output
