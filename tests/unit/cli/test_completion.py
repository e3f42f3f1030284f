"""Completion: what it offers, that it is quiet and ends, and the two ways in which shells ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from kubesim_support.patience import PATIENCE
from support.servers import mute
from support.shell import run_program

from gracectl.cli import completion
from gracectl.cli.commands import COMMANDS
from gracectl.cli.root import root

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[3]


def offered(*words: str) -> list[str]:
    """What completes the last word."""
    *before, last = words
    return [
        item.value for item in ShellComplete(root, {}, "gracectl", completion.VARIABLE).get_completions(before, last)
    ]


def answer(words: str, number: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """What bash's script is answered."""
    asked = {completion.VARIABLE: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    patient = "from gracectl.cli import completion, main; completion.DEADLINE_SECONDS = 50; main()"  # on a busy machine
    command = [sys.executable, "-c", patient]
    whole = {**os.environ, **asked, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=whole)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster that happens to be there is asked, and a busy machine may take its time."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.setattr(completion, "READ_SECONDS", 60.0)


def test_commands_complete_without_being_imported() -> None:
    assert offered("") == list(COMMANDS)
    assert offered("st") == ["status"]
    program = (
        "import sys\n"
        "from click.shell_completion import ShellComplete\n"
        "from gracectl.cli.root import root\n"
        "ShellComplete(root, {}, 'gracectl', '').get_completions([], '')\n"
        "assert 'aiohttp' not in sys.modules\n"
    )
    run_program(program)


def test_nodes_complete_each_once_and_from_the_cluster_that_is_named(tmp_path: Path) -> None:
    with mute(tmp_path, "node-1", "node-2", "other") as (_, path):
        assert offered("plan", "--kubeconfig", str(path), "node-") == ["node-1", "node-2"]
        assert offered("drain", "--kubeconfig", str(path), "node-1", "") == ["node-2", "other"]
        assert offered("uncordon", "--kubeconfig", str(path), "--context", "none-such", "") == []
    assert offered("status", "") == []


def test_namespaces_contexts_scenarios_and_values_complete(tmp_path: Path) -> None:
    with mute(tmp_path, "shop") as (_, path):
        assert offered("budgets", "--kubeconfig", str(path), "-n", "") == ["shop"]
        assert offered("uninstall", "--kubeconfig", str(path), "--namespace", "s") == ["shop"]
        assert offered("status", "--kubeconfig", str(path), "--context", "") == ["x"]
    assert offered("simulate", "--scenario", "node-") == ["node-budgets"]
    assert "json" in offered("plan", "-o", "")
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def test_a_name_that_would_break_a_line_is_not_offered(tmp_path: Path) -> None:
    with mute(tmp_path, "fine", "two\nlines", "\x1b[2J") as (_, path):
        assert offered("plan", "--kubeconfig", str(path), "") == ["fine"]


def test_a_silent_server_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "READ_SECONDS", 0.2)
    with mute(tmp_path, "node-1", deaf=True) as (state, path):
        assert offered("plan", "--kubeconfig", str(path), "") == []
        assert state.asked[""].is_set()
        assert not state.over.is_set()


def test_the_process_is_quiet_and_ends_though_a_credential_plugin_hangs(tmp_path: Path) -> None:
    with mute(tmp_path, "node-1") as (_, path):
        plugin = tmp_path / "plugin"
        plugin.write_text(f"#!/bin/sh\necho complaint >&2\ntouch {tmp_path}/ran\nexec sleep 50\n")
        plugin.chmod(0o755)
        command = f'{{"user": {{"exec": {{"apiVersion": "client.authentication.k8s.io/v1", "command": "{plugin}"}}}}}}'
        text = path.read_text().replace("user: {}", f"user: {command[9:-1]}")
        (tmp_path / "hanging").write_text(text)
        done = answer("gracectl plan ", 2, KUBECONFIG=str(tmp_path / "hanging"))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    assert (tmp_path / "ran").exists()


def test_the_process_ends_in_time_whatever_blocks_it() -> None:
    program = (
        "import time\n"
        "from gracectl.cli import completion\n"
        "completion.DEADLINE_SECONDS = 0.1\n"
        "completion.become_quiet()\n"
        "time.sleep(1000)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_bash_is_answered_in_its_protocol() -> None:
    done = answer("gracectl sta", 1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,status\n", "")
    broken = answer("gracectl plan ", 2, KUBECONFIG="/nowhere/config")
    assert (broken.returncode, broken.stdout.strip(), broken.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_a_shell_is_printed_and_the_shell_takes_it(shell: str) -> None:
    printed = CliRunner().invoke(root, ["completion", shell])
    assert printed.exit_code == 0
    assert completion.VARIABLE in printed.stdout
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=printed.stdout, text=True, timeout=PATIENCE, check=True)


def test_an_unknown_shell_is_refused_with_those_that_are_known() -> None:
    refused = CliRunner().invoke(root, ["completion", "tcsh"])
    assert refused.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in refused.stderr


def test_kubectl_is_answered_in_its_own_protocol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completion.complete_for_kubectl(["stat"])
    assert capsys.readouterr().out == f"status\t{COMMANDS['status'].summary}\n:4\n"
    with mute(tmp_path, "node-1") as (_, path):
        completion.complete_for_kubectl(["plan", "--kubeconfig", str(path), ""])
    assert capsys.readouterr().out == "node-1\n:4\n"
    completion.complete_for_kubectl(["plan", "--config", ""])
    assert capsys.readouterr().out == ":0\n"


def test_the_program_that_kubectl_looks_for_is_installed() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl_complete-grace"] == "gracectl.cli:complete"
