"""Bad input to `gracectl controller`: one clear message, an exit code that scripts can rely on, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gracectl.cli.root import root

CONFIGURATION, CLUSTER = 2, 3

A_KUBECONFIG: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    # Port 1 of this machine: nobody listens there.
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
def nobody_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs this may have a kubeconfig; it is not to be found."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
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


# -- who we are, and to whom we speak ----------------------------------------------------------------------------------


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert_told(run("--kubeconfig", missing), CONFIGURATION, str(missing), "--kubeconfig")


def test_no_kubeconfig_at_all(tmp_path: Path) -> None:
    assert_told(run(), CONFIGURATION, str(tmp_path / "nobody" / ".kube" / "config"), "--kubeconfig", "KUBECONFIG")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"clusters: [", "is not YAML", id="not YAML"),
        pytest.param(b"- 1\n", "not a kubeconfig", id="a list"),
        pytest.param(b"\xff\xfe\x00", "cannot be read", id="not text"),
    ],
)
def test_a_kubeconfig_that_is_none(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    assert_told(run("--kubeconfig", path), CONFIGURATION, str(path), words)


def test_a_kubeconfig_that_is_a_directory(tmp_path: Path) -> None:
    assert_told(run("--kubeconfig", tmp_path), CONFIGURATION, str(tmp_path))


def test_an_unknown_context_lists_those_that_there_are(kubeconfig: Path) -> None:
    result = run("--kubeconfig", kubeconfig, "--context", "theirs")
    assert_told(result, CONFIGURATION, str(kubeconfig), "theirs", "the contexts are: mine")


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


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.mark.real_time
def test_the_command_itself_ends_like_that(kubeconfig: Path) -> None:
    command = [sys.executable, "-m", "gracectl", "controller", "--kubeconfig", str(kubeconfig), "--context", "theirs"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == CONFIGURATION
    assert ended.stdout == ""
    assert ended.stderr.startswith("gracectl: ")
    assert len(ended.stderr.splitlines()) == 1
