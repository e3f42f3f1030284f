"""`kubesim up`: what it refuses, and that it ends when it is told to, at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from kubesim.cli import main
from kubesim_support.patience import PATIENCE

STRICTLY = (sys.executable, "-X", "dev", "-W", "error", "-m", "kubesim", "up", "--scenario", "demo")


def complaints(errors: str) -> list[str]:
    """What it wrote to stderr, but for what asyncio's debug mode says where the machine was busy for 0.1 s."""
    return [line for line in errors.splitlines() if not line.startswith("Executing <")]


def test_a_port_that_cannot_be_is_refused() -> None:
    result = CliRunner().invoke(main, ["up", "--port", "65536"])
    assert result.exit_code == 2
    assert "65536 is not in the range" in result.stderr


@pytest.mark.real_time
def test_an_address_that_is_not_here(tmp_path: Path) -> None:
    arguments = ["up", "--bind", "nowhere.invalid", "--kubeconfig", str(tmp_path / "kubeconfig")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "choose another --bind or --port" in result.stderr


@pytest.mark.real_time
def test_a_kubeconfig_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "kubeconfig"
    result = CliRunner().invoke(main, ["up", "--kubeconfig", str(path)])
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert "--kubeconfig" in result.stderr


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    command = [*STRICTLY, "--pods", "5", "--nodes", "2", "--kubeconfig", str(tmp_path / "kubeconfig")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("A cluster of 2 nodes")
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaints(errors)) == (0, [])


@pytest.mark.real_time
def test_a_temporary_kubeconfig_is_removed_at_the_end() -> None:
    command = [*STRICTLY, "--pods", "1", "--nodes", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        path = Path(process.stdout.readline().removeprefix("kubeconfig: ").strip())
        assert path.is_file()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaints(errors), path.parent.exists()) == (0, [], False)


@pytest.mark.real_time
def test_a_signal_ends_it_while_the_world_is_still_being_built(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    command = [*STRICTLY, "--speed", "0.001", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not kubeconfig.exists():  # written when the server listens, before the first object
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output, complaints(errors)) == (0, "", [])
