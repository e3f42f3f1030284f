"""`gracectl agent`: what it says where it has nothing to do, and where the settings make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gracectl.cli.root import root

RANGES = "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 60}]\n"
GATE_OFF = "featureGates: {PodPriorityBasedGracefulNodeShutdown: false}\n"


def agent(tmp_path: Path, settings: str, *arguments: str) -> Result:
    file = tmp_path / "settings.yaml"
    file.write_text(settings)
    return CliRunner().invoke(root, ["agent", "--config", str(file), *arguments])


@pytest.mark.parametrize("arguments", [(), ("--node-name", "n1")])
def test_without_shutdown_settings_it_says_so_and_ends(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = agent(tmp_path, "", *arguments)
    assert ended.exit_code == 0
    assert ended.output == (
        "graceful shutdown is disabled: the settings have no shutdownGracePeriodByPodPriority or shutdownGracePeriod\n"
    )


def test_a_rehearsal_with_neither_form_has_nothing_to_say_and_fails(tmp_path: Path) -> None:
    ended = agent(tmp_path, "", "--simulate-shutdown", "-o", "json")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "graceful shutdown is disabled: the settings have no shutdown" in ended.stderr


def test_a_form_of_output_without_a_rehearsal_is_an_error(tmp_path: Path) -> None:
    ended = agent(tmp_path, RANGES, "-o", "json")
    assert ended.exit_code == 2
    assert "-o needs --simulate-shutdown" in ended.stderr


@pytest.mark.parametrize("name", ["Node 1/..", "UPPER", "-a", "a..b", "a_b", "a" * 254, "a\n"])
@pytest.mark.parametrize("others", [(), ("--simulate-shutdown",)])
def test_a_name_that_no_node_can_have_is_an_error(tmp_path: Path, name: str, others: tuple[str, ...]) -> None:
    ended = agent(tmp_path, RANGES, "--node-name", name, *others)
    assert ended.exit_code == 2
    assert f"{name!r} is no name of a node" in ended.stderr


def test_with_the_feature_gate_off_it_says_so(tmp_path: Path) -> None:
    ended = agent(tmp_path, RANGES + GATE_OFF)
    assert ended.exit_code == 0
    assert ended.output == (
        "graceful shutdown is disabled: shutdownGracePeriodByPodPriority is ignored: "
        "featureGates.PodPriorityBasedGracefulNodeShutdown is false\n"
    )


def test_a_kubeconfig_that_is_none_is_an_error(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("not: a kubeconfig\n")
    ended = agent(tmp_path, RANGES, "--kubeconfig", str(kubeconfig))
    assert ended.exit_code == 2
    assert "kubeconfig" in ended.stderr
