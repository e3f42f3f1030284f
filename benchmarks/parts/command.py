"""What it costs to start a command: CPU until it has ended, next to the libraries that any such command needs."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import anyio

from benchmarks.ground.ground import at
from benchmarks.ground.world import WorldSpec, world
from benchmarks.report import Figure, Outcome
from benchmarks.trial import PUBLISHED_ROUNDS

LIBRARIES = "import aiohttp, anyio, click, msgspec, rich.console, yaml"
HELP, STATUS = 0.1, 0.6
"""Seconds of CPU, at most."""


async def run(rounds: int = PUBLISHED_ROUNDS) -> Outcome:
    """Start each in turns."""
    async with world(WorldSpec("small")) as (opened, _):
        with tempfile.TemporaryDirectory(prefix="gracectl-bench-") as name:
            kubeconfig = at(opened.url, Path(name, "kubeconfig"))
            program = (sys.executable, "-m", "gracectl")
            commands = {
                "libraries": (sys.executable, "-c", LIBRARIES),
                "help": (*program, "--help"),
                "status": (*program, "status", f"--kubeconfig={kubeconfig}"),
            }
            seconds: dict[str, list[float]] = {each: [] for each in commands}
            for _ in range(rounds):
                for each, command in commands.items():
                    seconds[each].append(await _cpu(command))
    libraries, help_, status = (median(seconds[each]) for each in ("libraries", "help", "status"))
    return Outcome(
        scenario="command",
        about=f"commands on a cluster with {opened.nodes} nodes and {opened.pods} pods",
        figures=(
            Figure("gracectl --help, CPU", help_, " s", HELP),
            Figure("gracectl status, CPU", status, " s", STATUS),
            Figure("gracectl status, next to the start of its libraries", status / libraries, " ×"),
        ),
        parameters={"rounds": rounds, "nodes": opened.nodes, "pods": opened.pods},
    )


async def _cpu(command: tuple[str, ...]) -> float:
    """CPU seconds of a program, which must succeed."""
    before = _children()
    await anyio.run_process(command, stdout=subprocess.DEVNULL)
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
