"""The command itself: what it offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from gracectl import __version__
from gracectl.cli.root import root


def test_help_names_every_command_with_its_purpose() -> None:
    shown = CliRunner().invoke(root, ["--help"])
    assert shown.exit_code == 0
    for name in ("controller", "demo", "drain", "plan", "simulate", "status", "terminate", "uncordon", "version"):
        line = next(line for line in shown.output.splitlines() if line.split()[:1] == [name])
        assert len(line.split()) > 2


def test_an_unknown_command_is_bad_usage() -> None:
    refused = CliRunner().invoke(root, ["drian"])
    assert refused.exit_code == 2
    assert "No such command 'drian'" in refused.output


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(root, ["version"]).output == f"gracectl {__version__}\n"


def test_a_controller_carries_no_embedded_cluster() -> None:
    program = (
        "import sys\n"
        "from gracectl.cli.root import root\n"
        "root.main(['controller', '--help'], standalone_mode=False)\n"
        "loaded = sorted(name for name in sys.modules if name.startswith('kubesim'))\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["demo"], ["demo", "--nodes", "4"], ["simulate", "--scenario", "small"]])
def test_without_kubesim_a_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr("gracectl.cli.root.find_spec", lambda name: None)
    refused = CliRunner().invoke(root, arguments)
    assert refused.exit_code == 2
    assert refused.stderr == (f"gracectl: {arguments[0]}: kubesim is not installed; pip install 'gracectl[demo]'\n")
    assert "gracectl[demo]" in CliRunner().invoke(root, [arguments[0], "--help"]).output


def test_without_kubesim_all_other_commands_are_there() -> None:
    program = (
        "import sys\n"
        "sys.modules['kubesim'] = None\n"
        "from gracectl.cli.root import root, COMMANDS, SIMULATED\n"
        "for name in set(COMMANDS) - set(SIMULATED):\n"
        "    root.main([name, '--help'], standalone_mode=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
