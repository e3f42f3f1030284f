"""`kubesim up --scenario`: which world it starts, what it says of one that cannot be, and who gets in."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from kubesim.cli import main
from kubesim.scenarios import library
from kubesim_support.patience import PATIENCE

UP = (sys.executable, "-W", "error", "-m", "kubesim", "up")
MINE = """
name: mine
description: One node, one pod, and something that happens.
nodes: [{name: only}]
pods: [{name: one}]
timeline:
  - {at: 0, patch: {kind: Node, name: only, patch: {metadata: {labels: {seen: "yes"}}}}}
"""


def up(*arguments: str, columns: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["up", *arguments])


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, ended in order when the block ends."""
    with subprocess.Popen([*UP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")


def said(process: subprocess.Popen[str], last: str) -> list[str]:
    """The lines up to the one in which a word stands."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if last in line:
            break
    return lines


@pytest.mark.parametrize("columns", [80, 160])
def test_the_list_fits_the_terminal(columns: int) -> None:
    result = up("--list", columns=columns)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert max(map(len, lines)) <= columns
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(library.names())
    if columns == 160:
        assert len(lines) == len(library.names())


def test_a_scenario_is_shown_as_its_file_has_it() -> None:
    result = up("--show", "budgets")
    assert (result.exit_code, result.stdout) == (0, library.text_of("budgets"))


@pytest.mark.parametrize(
    ("arguments", "complaints"),
    [
        (["--scenario", "smal"], ["there is no scenario smal; choose among budgets, "]),
        (["--show", "smal"], ["there is no scenario smal; choose among budgets, "]),
        (["--scenario", "./none.yaml"], ["scenario file none.yaml: cannot be read: No such file or directory"]),
        (
            ["--scenario", "small", "--nodes", "3"],
            ["--nodes and --pods are for the scenario demo; for small use --scale"],
        ),
        (["--scale", "0"], ["0.0 is not in the range x>0"]),
        (["--scale", "inf"], ["inf is not a number"]),
    ],
)
def test_a_world_that_is_not_there(arguments: list[str], complaints: list[str]) -> None:
    result = up(*arguments)
    assert result.exit_code == 2
    for complaint in complaints:
        assert complaint in result.stderr


def test_everything_that_is_wrong_with_a_file_is_told_at_once_and_nothing_is_started(tmp_path: Path) -> None:
    path, kubeconfig = tmp_path / "wrong.yaml", tmp_path / "kubeconfig"
    path.write_text(
        "name: wrong\ndescription: Wrong.\nnodes:\n  - {name: a, coutn: 2}\nkubelet: {heartbeatSeconds: soon}\n"
    )
    result = up("--scenario", str(path), "--kubeconfig", str(kubeconfig))
    assert result.exit_code == 2
    assert f"scenario file {path}: nodes[0].coutn: there is no such field here; did you mean count?" in result.stderr
    assert f"scenario file {path}: kubelet.heartbeatSeconds: 'soon' is no duration" in result.stderr
    assert not kubeconfig.exists()


@pytest.mark.real_time
def test_ones_own_file_runs_and_its_timeline_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    with running("--scenario", str(path)) as process:
        lines = said(process, "patched")
    assert lines[0].startswith("A cluster of 1 nodes and 1 pods runs at http://127.0.0.1:")
    assert "mine: One node, one pod, and something that happens." in lines
    assert lines[-1] == "     0.0 s  patched Node only"


def answer(url: str, token: str, authority: ssl.SSLContext) -> tuple[int, Any]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, context=authority) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.real_time
def test_with_rbac_only_the_kubeconfig_gets_in(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with running("--scenario", "empty", "--rbac", "--kubeconfig", str(kubeconfig)) as process:
        said(process, "kubeconfig:")
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        proof = tmp_path / "ca.pem"
        proof.write_bytes(b64decode(cluster["certificate-authority-data"]))
        authority = ssl.create_default_context(cafile=str(proof))
        pods = f"{cluster['server']}/api/v1/pods"
        assert pods.startswith("https://127.0.0.1:")
        assert answer(pods, user["token"], authority)[0] == 200
        assert answer(pods, "another", authority)[0] == 401
        assert answer(pods, "", authority)[0] == 403


@pytest.mark.real_time
def test_an_address_that_others_reach_is_warned_of(tmp_path: Path) -> None:
    command = [*UP, "--scenario", "empty", "--bind", "0.0.0.0", "--kubeconfig", str(tmp_path / "kubeconfig")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said(process, "kubeconfig:")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert errors == (
        "kubesim: warning: every client that reaches 0.0.0.0 can change the cluster; "
        "--rbac admits only clients with the kubeconfig\n"
    )
