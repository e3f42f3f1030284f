"""The command of the benchmarks: what it refuses, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from benchmarks import run
from benchmarks.ground.ground import Ground, Pace
from benchmarks.report import Figure, Outcome, save, saved
from benchmarks.run import _keep, _placed, main


def an_outcome(scenario: str, value: float) -> Outcome:
    return Outcome(scenario=scenario, about="", figures=(Figure("f", value),), parameters={})


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """Of a server that is not there."""
    path = tmp_path / "kubeconfig"
    here = {"cluster": "here", "user": "me"}
    config = {
        "apiVersion": "v1", "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {}}], "contexts": [{"name": "mine", "context": here}],
        "current-context": "mine",
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(("arguments", "words"), [
    (["nosuch"], "'nosuch' is not one of 'pdb-chain'"),
    (["--kwok", "storm"], "name the cluster that has with --kubeconfig"),
    (["--kubeconfig", "/nosuch/file"], "does not exist"),
    (["--nodes", "100,many", "scale"], "100,many: give numbers from 50 on, each larger than the last"),
    (["--nodes", "500,100", "scale"], "500,100: give numbers from 50 on, each larger than the last"),
    (["--nodes", "100", "storm"], "--nodes: the sizes of scale, which is not measured"),
])  # fmt: skip
def test_bad_usage_is_told_before_anything_begins(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_busy_machine_publishes_only_when_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (8.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    measured: list[tuple[str, ...]] = []

    async def measure(names: tuple[str, ...], *rest: object) -> list[Outcome]:
        measured.append(names)
        return [an_outcome(name, 1.0) for name in names]

    monkeypatch.setattr(run, "_run", measure)
    file = tmp_path / "kept.json"
    refused = CliRunner().invoke(main, ["storm", "--save", str(file)])
    assert (refused.exit_code, measured, file.exists()) == (2, [], False)
    assert "load 2.0 for each of 4 processors, more than 1.5" in " ".join(refused.output.split())
    assert "--despite-load" in refused.output

    assert CliRunner().invoke(main, ["storm"]).exit_code == 0
    assert CliRunner().invoke(main, ["storm", "--save", str(file), "--despite-load"]).exit_code == 0
    (outcome,) = saved(file)
    assert outcome.machine is not None
    assert (outcome.machine.load, outcome.machine.processors) == (2.0, 4)


def test_parts_of_ours_are_not_measured_on_a_foreign_cluster(kubeconfig: Path) -> None:
    result = CliRunner().invoke(main, ["--kubeconfig", str(kubeconfig), "wheel", "storm"])
    assert result.exit_code == 2
    assert "wheel: measured on the embedded cluster only" in result.output


def test_a_cluster_that_does_not_answer_is_told_at_once(kubeconfig: Path) -> None:
    result = CliRunner().invoke(main, ["--kubeconfig", str(kubeconfig), "storm"])
    assert result.exit_code == 3
    assert "no connection to 127.0.0.1:1" in result.output


def test_an_outcome_says_where_it_was_measured_and_no_pace_that_kwok_does_not_keep(tmp_path: Path) -> None:
    outcome = Outcome(scenario="s", about="", figures=(), parameters={"pods": 12, **Pace().in_words})
    hollow = Ground(tmp_path, "bench-1", "hollow", tmp_path, "v1.37.2")
    assert _placed(outcome, hollow).parameters == {
        "Kubernetes": "v1.37.2", "kubelets": "hollow", "pods": 12, **Pace().in_words,
    }  # fmt: skip
    kwok = Ground(tmp_path, "bench-1", "kwok", tmp_path, "v1.37.2")
    assert _placed(outcome, kwok).parameters == {"Kubernetes": "v1.37.2", "kubelets": "kwok", "pods": 12}


def test_what_is_measured_anew_replaces_what_was_kept_of_it_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    save([an_outcome("storm", 1.0), an_outcome("scale", 2.0)], file)
    _keep([an_outcome("storm", 3.0), an_outcome("mixed", 4.0)], file)
    assert [(one.scenario, one.figures[0].value) for one in saved(file)] == [
        ("storm", 3.0), ("scale", 2.0), ("mixed", 4.0),
    ]  # fmt: skip
