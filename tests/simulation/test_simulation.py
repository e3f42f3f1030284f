"""A few seeds in every run of `make test-all`; `make soak SEEDS=10000` runs many.

Each batch is a program of its own: a run must not depend on PYTHONHASHSEED, nor on the tests before it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from simulation.generate import a_plan
from simulation.plan import Plan
from simulation.shrink import shrink

FIRST = "1-20"
"""Seeds that are always run."""
HERE = Path(__file__).parents[1]


def simulated(*arguments: str, script: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, or a script in its place, and what it has printed."""
    path = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parent / "kubesim" / "tests")))
    command = [sys.executable, *(["-c", script] if script else ["-m", "simulation", *arguments])]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def simulation(request: pytest.FixtureRequest) -> subprocess.CompletedProcess[str]:
    """The first seeds, or the one that was asked for."""
    seed = request.config.getoption("--seed", default=None)
    return simulated(FIRST if seed is None else str(seed), "--fingerprints", "--workers", "2", PYTHONHASHSEED="1")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_no_seed_breaks_a_rule(simulation: subprocess.CompletedProcess[str]) -> None:
    assert simulation.returncode == 0, simulation.stdout + simulation.stderr


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_seed_replays_exactly_whatever_ran_before_it(simulation: subprocess.CompletedProcess[str]) -> None:
    before = [line for line in simulation.stdout.splitlines() if re.match(r"seed [0-9]+: [0-9a-f]{16}$", line)]
    seed = before[-1].split()[1].rstrip(":")
    again = simulated(seed, "--fingerprints", "--no-shrink", PYTHONHASHSEED="2").stdout.splitlines()
    assert again[0] == before[-1]


def test_what_fails_is_shrunk_to_what_it_takes() -> None:
    plan = next(plan for plan in map(a_plan, range(100)) if plan.size > 20 and len(plan.faults) > 2)
    needed = [plan.faults[-1], plan.history[0]]
    tried: list[Plan] = []

    def fails(smaller: Plan) -> bool:
        tried.append(smaller)
        return all(act in (*smaller.faults, *smaller.history) for act in needed)

    smallest = shrink(plan, fails)
    assert [*smallest.faults, *smallest.history] == needed
    assert (smallest.objects, len(smallest.nodes), smallest.settings, smallest.processes) == ((), 1, {}, 1)
    assert len(tried) < 100


HANGING = """
import itertools, sys
from simulation import command
command.HANGS_SECONDS = 0.2
command.warm_up = lambda: None
command.run = lambda plan: all(itertools.count(1)) if plan.seed == 2 else command.Result(plan, [], [])
command.shrink = lambda plan, fails: fails(plan)
sys.exit(command.main(["1-3", "--workers", "2"]))
"""


def test_a_run_that_hangs_is_ended_also_while_it_is_shrunk() -> None:
    output = simulated(script=HANGING)
    assert output.returncode == 1, output.stderr
    assert "it hung?" in output.stdout
    assert "3 seeds run, 1 failed: 2" in output.stdout


def test_the_same_seed_makes_the_same_plan_of_plain_data() -> None:
    plan = a_plan(7)
    assert plan == a_plan(7) != a_plan(8)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
