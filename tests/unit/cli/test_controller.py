"""Bad input to `gracectl controller`: one clear message, an exit code that scripts can rely on, never a traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from click.testing import CliRunner, Result
from kubesim.apiserver import ApiServer
from kubesim.http import HttpFace
from kubesim_support.accounts import guarded, rule
from kubesim_support.patience import PATIENCE

from gracectl.cli.root import root
from gracectl.runtime.clock import SystemClock

CONFIGURATION, CLUSTER = 2, 3

A_KUBECONFIG: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    # Port 1 of this machine: nothing listens there.
    "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "me", "user": {}}],
    "contexts": [{"name": "mine", "context": {"cluster": "here", "user": "me"}}],
    "current-context": "mine",
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """A good kubeconfig of a server that is not there."""
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(dict(A_KUBECONFIG)))
    return path


@pytest.fixture(autouse=True)
def without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubeconfig of the account that runs the tests is found."""
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("KUBECONFIG", raising=False)


def run(*arguments: str | Path) -> Result:
    """`gracectl controller` with these arguments."""
    return CliRunner().invoke(root, ["controller", *map(str, arguments)])


def assert_told(result: Result, code: int, *words: str) -> None:
    """It ended with the code, after one message that has all these words."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    message = result.stderr
    assert "Traceback" not in message
    assert isinstance(result.exception, SystemExit)
    lines = [line for line in message.splitlines() if line.startswith("gracectl: ")]
    assert len(lines) == 1, message
    for word in words:
        assert word in lines[0]


# -- identity, and the server in use -------------------------------------------------------------------------------


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert_told(run("--kubeconfig", missing), CONFIGURATION, str(missing), "--kubeconfig")


def test_no_kubeconfig_at_all(tmp_path: Path) -> None:
    assert_told(run(), CONFIGURATION, str(tmp_path / "empty" / ".kube" / "config"), "--kubeconfig", "KUBECONFIG")


def test_a_server_that_cannot_be_reached(kubeconfig: Path) -> None:
    result = run("--kubeconfig", kubeconfig)
    assert_told(result, CLUSTER, "cannot be reached", "127.0.0.1:1", "kubeconfig")


# -- the settings ------------------------------------------------------------------------------------------------------

BAD_SETTINGS = [
    pytest.param("drian: {}\n", ("the document", "unknown field `drian`"), id="unknown field"),
    pytest.param("eviction: {qsp: 1}\n", ("eviction", "unknown field `qsp`"), id="unknown field inside"),
    pytest.param("eviction: {qps: fast}\n", ("eviction.qps", "Expected `float`, got `str`"), id="wrong type"),
    pytest.param("eviction: {qps: -1}\n", ("eviction.qps", ">= 0"), id="out of range"),
    pytest.param("log: {format: xml}\n", ("log.format", "xml"), id="not one of the choices"),
    pytest.param(
        "nodeSelector: {matchExpressions: [{key: a, operator: Near}]}\n", ("nodeSelector", "Near"), id="bad operator"
    ),
    pytest.param(
        "nodeSelector: {matchExpressions: [{key: a, operator: In}]}\n", ("nodeSelector", "In"), id="In without values"
    ),
    pytest.param("provider: {name: ec3}\n", ("provider.name", "ec3", "none", "simulated"), id="unknown provider"),
    pytest.param("provider: {name: none, options: {region: x}}\n", ("provider.options", "region"), id="unknown option"),
    pytest.param(
        "provider: {name: simulated, options: {endpoint: 5}}\n",
        ("provider.options.endpoint: Expected `str`, got `int`; put it in quotes (provider simulated)",),
        id="wrong option",
    ),
    pytest.param("provider: {name: simulated}\n", ("provider.options", "endpoint"), id="missing option"),
    pytest.param("drain: [\n", ("is not YAML",), id="not YAML"),
    pytest.param("- drain\n", ("the document", "Expected `object`, got `array`"), id="a list"),
]


@pytest.mark.parametrize(("content", "words"), BAD_SETTINGS)
def test_settings_that_do_not_fit(tmp_path: Path, kubeconfig: Path, content: str, words: tuple[str, ...]) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(content)
    assert_told(run("--kubeconfig", kubeconfig, "--config", settings), CONFIGURATION, *words)


def test_a_settings_file_that_is_not_there(tmp_path: Path, kubeconfig: Path) -> None:
    missing = tmp_path / "missing.yaml"
    result = run("--kubeconfig", kubeconfig, "--config", missing)
    assert_told(result, CONFIGURATION, str(missing), "No such file")


def test_an_unknown_option_is_told_as_click_does() -> None:
    result = run("--kubconfig", "x")
    assert result.exit_code == CONFIGURATION
    assert "No such option" in result.stderr


# -- what we may do ----------------------------------------------------------------------------------------------------

READER = rule("get list watch", "nodes pods poddisruptionbudgets", "", "policy")


@pytest.fixture
async def guarded_server() -> AsyncIterator[str]:
    """The URL of an API server that knows the token `t`, whose user may look at most things and touch none."""
    face = HttpFace(await guarded(SystemClock(), "reader", READER))
    try:
        yield await face.start()
    finally:
        await face.stop()


async def run_with_token(url: str, token: str, folder: Path, *more: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own: the server lives in this one."""
    config = {
        **A_KUBECONFIG,
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": token}}],
    }
    kubeconfig = folder / "kubeconfig"
    await anyio.Path(kubeconfig).write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "gracectl", "controller", "--kubeconfig", str(kubeconfig), *more]
    return await anyio.run_process(command, check=False)


@pytest.mark.real_time
async def test_missing_rights_are_told_verb_by_verb_and_all_at_once(guarded_server: str, tmp_path: Path) -> None:
    ended = await run_with_token(guarded_server, "t", tmp_path)
    assert ended.returncode == CLUSTER
    output = ended.stderr.decode()
    assert "Traceback" not in output
    assert [line for line in output.splitlines() if line.startswith("  - ")] == [
        "  - patch nodes",
        "  - delete nodes",
        "  - patch nodes/status",
        "  - delete pods",
        "  - patch pods/status",
        "  - create pods/eviction",
        "  - list volumeattachments in API group storage.k8s.io",
        "  - watch volumeattachments in API group storage.k8s.io",
        "  - get persistentvolumeclaims",
        "  - create events",
        "  - patch events",
        *(
            f"  - {verb} leases gracectl in API group coordination.k8s.io in namespace kube-system"
            for verb in ("get", "list", "watch", "update")
        ),
        "  - create leases in API group coordination.k8s.io in namespace kube-system",
        *(f"  - {verb} configmaps gracectl-freeze in namespace kube-system" for verb in ("list", "watch")),
    ]


@pytest.mark.real_time
async def test_a_token_that_the_server_does_not_know(guarded_server: str, tmp_path: Path) -> None:
    ended = await run_with_token(guarded_server, "forgotten", tmp_path)
    assert ended.returncode == CLUSTER
    output = ended.stderr.decode()
    assert output.startswith("gracectl: ")
    assert "Unauthorized" in output
    assert "Traceback" not in output


@contextmanager
def indiscreet(status: int, *, knows_version: bool) -> Iterator[str]:
    """A server that repeats in each refusal what it was sent, headers and all; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if knows_version and self.path == "/version":
                self.answer(200, b'{"gitVersion": "v1.31.0"}')
            else:
                self.answer(status, f"bad request:\n{self.requestline}\n{self.headers}".encode())

        def do_POST(self) -> None:
            self.do_GET()

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not here."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("status", "knows_version"), [(400, True), (401, True), (401, False), (403, False), (500, True)]
)
async def test_a_token_repeated_by_a_server_is_not_printed(status: int, knows_version: bool, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("log: {level: debug, format: json}\n")
    token = "a-very-secret-token.0123456789"
    with indiscreet(status, knows_version=knows_version) as url:
        ended = await run_with_token(url, token, tmp_path, "--config", str(settings))
    assert ended.returncode == CLUSTER
    output = (ended.stdout + ended.stderr).decode()
    assert "a-very-secret" not in output
    assert status == 401 or "***" in output, "it was repeated, so something stands in its place"


@pytest.mark.real_time
@pytest.mark.parametrize(("section", "more"), [("metrics", ""), ("admission", ", service: {name: gracectl}")])
async def test_a_port_that_is_taken(tmp_path: Path, section: str, more: str) -> None:
    """Nothing has been changed by then: the server has been asked who we are, and that was all."""
    face = HttpFace(ApiServer(SystemClock()))
    url = await face.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            settings = tmp_path / "settings.yaml"
            settings.write_text(f"{section}: {{listen: '{listen}'{more}}}\n")
            ended = await run_with_token(url, "", tmp_path, "--config", str(settings))
    finally:
        await face.stop()
    assert ended.returncode == CONFIGURATION
    output = ended.stderr.decode()
    assert f"gracectl: {section}.listen: cannot listen on {listen}: " in output
    assert "Address already in use; choose another address" in output
    assert "Traceback" not in output


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.mark.real_time
def test_a_signal_ends_it_while_the_server_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        path = tmp_path / "kubeconfig"
        path.write_text(
            yaml.safe_dump({**A_KUBECONFIG, "clusters": [{"name": "here", "cluster": {"server": address}}]})
        )
        command = [sys.executable, "-m", "gracectl", "controller", "--kubeconfig", str(path)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            clock = SystemClock()
            began = clock.monotonic()
            connection, _ = silent.accept()
            with connection:
                process.terminate()
                # Before any request gives up, or in less time than its start took.
                assert process.wait(max(8.0, clock.monotonic() - began)) == 0


def test_the_command_itself_ends_like_that(kubeconfig: Path) -> None:
    command = [sys.executable, "-m", "gracectl", "controller", "--kubeconfig", str(kubeconfig), "--context", "theirs"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == CONFIGURATION
    assert ended.stdout == ""
    assert ended.stderr.startswith("gracectl: ")
    assert len(ended.stderr.splitlines()) == 1
