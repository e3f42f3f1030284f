"""`gracectl simulate`: `kubesim up` (whose tests are kubesim's) with the definitions and scenarios of gracectl."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from kubesim.clock import LoopClock
from kubesim.scenarios import library
from kubesim.scenarios.simulation import InitialState, Simulation
from kubesim_support.patience import PATIENCE

from gracectl.cli.crds import shipped_definitions
from gracectl.cli.root import root
from gracectl.cli.simulate import SCENARIOS


def test_the_list_has_the_scenarios_of_both() -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(root, ["simulate", "--list"])
    assert result.exit_code == 0
    assert {"node-budgets", "small"} <= {line.split()[0] for line in result.stdout.splitlines()}


def test_what_is_wrong_is_told_under_its_own_name() -> None:
    result = CliRunner().invoke(root, ["simulate", "--scenario", "none"])
    assert result.exit_code == 2
    assert result.stderr.startswith("gracectl: there is no scenario none; choose among budgets, ")


@pytest.mark.parametrize("name", sorted(set(library.names(SCENARIOS)) - set(library.names())))
async def test_each_scenario_of_ones_own_settles(name: str) -> None:
    scenario = library.scenario_named(name, SCENARIOS)
    assert scenario.name == name
    simulation = Simulation(LoopClock(), scenario, definitions=shipped_definitions())
    async with anyio.create_task_group() as group:
        settled: InitialState = await group.start(simulation.run)
        group.cancel_scope.cancel()
    assert settled.is_complete


@pytest.mark.real_time
def test_it_runs_until_it_is_told_to_end(tmp_path: Path) -> None:
    arguments = ["--nodes", "2", "--pods", "5", "--kubeconfig", str(tmp_path / "kubeconfig")]
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "gracectl", "simulate", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(8)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, [line for line in errors.splitlines() if not line.startswith("Executing <")]) == (0, [])
    assert printed[0].startswith("A cluster of 2 nodes")
    assert f"  gracectl controller --kubeconfig {tmp_path / 'kubeconfig'}\n" in printed
