"""Under which name the program speaks of itself: its own, or kubectl's, of which it can be a plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from kubesim_support.kubectl import PROGRAM, needs_kubectl
from kubesim_support.patience import PATIENCE

from gracectl.cli.commands import COMMANDS
from gracectl.cli.output import command, program

MISSING = "/nowhere/kubeconfig"


@pytest.mark.parametrize(("argument", "name"), [
    ("/usr/local/bin/gracectl", "gracectl"), ("/src/gracectl/__main__.py", "gracectl"),
    ("/usr/local/bin/kubectl-grace", "kubectl grace"),
    ("kubectl-grace", "kubectl grace"), ("/opt/kubectl-gracectl", "gracectl"),
])  # fmt: skip
def test_it_is_called_as_it_was_started(argument: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [argument, "plan"])
    assert program() == name
    assert command("status", "-w", "n1") == f"{name} status -w n1"


def test_both_names_are_installed_and_are_the_same_program() -> None:
    scripts = {script.name: script.value for script in entry_points(group="console_scripts")}
    assert scripts["kubectl-grace"] == scripts["gracectl"] == "gracectl.cli:main"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which kubectl finds its plugin."""
    for name, function in (("kubectl-grace", "main"), ("kubectl_complete-grace", "complete")):
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nfrom gracectl.cli import {function}\n\n{function}()\n")
        script.chmod(0o755)
    return os.pathsep.join([str(tmp_path), os.environ["PATH"]])


def run(path: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)


def assert_speaks_as_the_plugin(path: str, *plugin: str) -> None:
    """In what click says of its usage, and in what the commands say."""
    usage = run(path, *plugin, "plan", "--help")
    assert usage.stdout.startswith("Usage: kubectl grace plan [OPTIONS] [NODE]...")
    misused = run(path, *plugin, "plan")
    assert misused.returncode == 2
    assert "Try 'kubectl grace plan --help' for help." in misused.stderr
    result = run(path, *plugin, "plan", "n1", "--kubeconfig", MISSING)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("kubectl grace: ")
    assert MISSING in result.stderr


def test_the_plugin_speaks_of_itself_as_kubectl_has_it(path: str) -> None:
    assert_speaks_as_the_plugin(path, "kubectl-grace")


@needs_kubectl
def test_kubectl_finds_and_runs_it(path: str) -> None:
    assert_speaks_as_the_plugin(path, str(PROGRAM), "grace")


@needs_kubectl
def test_kubectl_completes_it(path: str) -> None:
    offered = run(path, str(PROGRAM), "__complete", "grace", "stat")
    assert offered.stdout == f"status\t{COMMANDS['status'].summary}\n:4\n"
    files = run(path, str(PROGRAM), "__complete", "grace", "plan", "--config", "")
    assert files.stdout == ":0\n"


def test_on_its_own_it_has_its_own_name() -> None:
    result = run(os.environ["PATH"], sys.executable, "-m", "gracectl", "plan", "n1", "--kubeconfig", MISSING)
    assert result.stderr.startswith("gracectl: ")
    usage = run(os.environ["PATH"], sys.executable, "-m", "gracectl", "plan", "--help")
    assert usage.stdout.startswith("Usage: gracectl plan [OPTIONS] [NODE]...")
