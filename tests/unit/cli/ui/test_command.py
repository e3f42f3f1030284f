"""`gracectl ui` and `gracectl demo --ui`: what is refused, what is said, and that the demo stays on its page."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kubesim_support.patience import PATIENCE

from gracectl.cli.root import root
from gracectl.cli.ui.access import TokenFile
from gracectl.cli.ui.command import _announce
from gracectl.cli.ui.server import ServingOptions
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.connection import Connection
from gracectl.runtime.clock import LoopClock

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


@pytest.mark.parametrize(("arguments", "message"), [
    (("--bind", "localhost"), "Invalid value for '--bind': 'localhost' is not an address such as"),
    (("--bind", "127.0.0.1:99999"), "'--bind': '127.0.0.1:99999' has port 99999; the highest is 65535"),
    (("--base-path", "gracectl"), "'--base-path': 'gracectl' is no path such as /gracectl"),
    (("--base-path", "/a/../b"), "'--base-path': '/a/../b' is no path"),
    (("--base-path", "/a b"), "'--base-path': '/a b' is no path"),
    (("--allowed-host", "board.example.com:80"), "'--allowed-host': 'board.example.com:80' is no host name"),
    (("--allowed-host", "http://x"), "'--allowed-host': 'http://x' is no host name"),
    (("--grafana-url", "javascript:alert(1)"), "'--grafana-url': 'javascript:alert(1)' is no URL such as"),
    (("--token-file", "/nowhere/token"), "/nowhere/token: cannot be read: No such file or directory"),
])  # fmt: skip
def test_what_is_not_valid_is_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(root, ["ui", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.real_time
def test_a_port_in_use_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    (tmp_path / "config.yaml").write_text("plan: {replacementSeconds: 5}\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        files = (f"--kubeconfig={tmp_path / 'kubeconfig'}", f"--config={tmp_path / 'config.yaml'}")
        result = CliRunner().invoke(root, ["ui", f"--bind={address}", *files])
    message = f"gracectl: --bind: cannot listen on {address}: Address already in use; give another one, or port 0\n"
    assert (result.exit_code, result.stderr) == (2, message)


@pytest.mark.parametrize("has_token", [False, True])
@pytest.mark.parametrize(("bind", "is_warned"), [("127.0.0.1:1", False), ("localhost:1", False), (":1", True)])
def test_a_warning_says_what_is_exposed(
    bind: str, is_warned: bool, has_token: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("a token of some length")
    token = TokenFile(tmp_path / "token") if has_token else None
    connection = Connection(None, LoopClock(), None, ClusterAddress("c", "https://10.0.0.1:6443"))  # type: ignore[arg-type]
    _announce("http://127.0.0.1:1/", connection, ServingOptions(bind=bind, token=token), opens=False)
    out, err = capsys.readouterr()
    assert "a token of some length" not in out + err
    assert ("#token=" in out) is has_token
    assert ("reads names of nodes, pods and budgets of https://10.0.0.1:6443" in err) is is_warned
    assert not is_warned or ("every client that has the token" if has_token else "every client that reaches it") in err


def test_a_page_and_an_object_for_a_program_exclude_each_other() -> None:
    result = CliRunner().invoke(root, ["demo", "--ui", "-o", "json"])
    assert (result.exit_code, "give --ui or -o json, not both" in result.stderr) == (2, True)


def board_at(url: str) -> Any:
    with urllib.request.urlopen(f"{url}api/v1/board", timeout=PATIENCE) as answer:
        return json.load(answer)


@pytest.mark.real_time
def test_the_demo_is_shown_on_its_page_and_stays_there() -> None:
    command = (sys.executable, "-m", "gracectl", "demo", "--ui", "--speed", "5")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            url = next(match[0] for line in demo.stdout if (match := re.search(r"http://\S+/", line)))
            with urllib.request.urlopen(f"{url}api/v1/changes", timeout=PATIENCE) as stream:
                assert stream.readline().startswith(b"id: ")
                assert next(line for line in demo.stdout if line.startswith("The page stays"))
            # The board may be a second behind.
            boards = (board_at(url) for _ in range(1000))
            assert next(board for board in boards if len(board["history"]) == 3)
            demo.send_signal(signal.SIGINT)
            assert demo.wait(PATIENCE) == 0
        finally:
            demo.kill()
