"""A scenario of the library in a process of its own, behind its HTTP face.

    python -m benchmarks.ground.world '{"scenario": "large", "alive": false}'

Prints an Opened as one line of JSON when the world has settled, and runs until its standard input ends. For each line
that it is given it breaks all watches of all pods, and does not know the past any more, so that they are listed anew.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

import anyio
import anyio.to_thread
import msgspec
from kubesim.cluster import ClusterOptions
from kubesim.faults.rules import DropWatch, Expire, Rule
from kubesim.http import HttpFace
from kubesim.scenarios.library import scenario_named
from kubesim.scenarios.plan import scaled
from kubesim.scenarios.simulation import Simulation

from benchmarks.ground.ground import Service, service
from benchmarks.ground.process import memory
from gracectl.cli.crds import shipped_definitions
from gracectl.runtime.clock import SystemClock

ALL_PODS, LONG_ENOUGH = "/api/v1/pods$", 1.0
"""The path that is struck, and for how many seconds: a watch that breaks is tried again within a fraction of one."""


class WorldSpec(msgspec.Struct, frozen=True):
    """Which world; `alive` False leaves out everything around the API server, once it is filled."""

    scenario: str
    scale: float = 1.0
    alive: bool = True


class Opened(msgspec.Struct, frozen=True):
    """The world that is open: where, how many seconds it took to fill, and how much memory (MiB) it holds."""

    url: str
    nodes: int
    pods: int
    seconds: float
    memory: float


async def serve(spec: WorldSpec) -> None:
    """Run the world until standard input ends."""

    def adjust(options: ClusterOptions) -> ClusterOptions:
        return options if spec.alive else msgspec.structs.replace(options, parts=frozenset())

    began = time.perf_counter()
    scenario = scaled(scenario_named(spec.scenario), spec.scale)
    simulation = Simulation(SystemClock(), scenario, definitions=shipped_definitions(), adjust=adjust)
    face = HttpFace(simulation.cluster.server)
    url = await face.start()
    try:
        async with anyio.create_task_group() as group:
            settled = await group.start(simulation.run)
            seconds = time.perf_counter() - began
            # What is there will stay: the collector need not walk over it again and again.
            gc.collect()
            gc.freeze()
            opened = Opened(url, settled.nodes, settled.pods, seconds, memory())
            print(msgspec.json.encode(opened).decode(), flush=True)
            while await anyio.to_thread.run_sync(sys.stdin.readline):
                await forget(simulation)
                print("forgotten", flush=True)
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()


async def forget(simulation: Simulation) -> None:
    """Let every controller list all pods anew."""
    faults = simulation.cluster.server.faults
    rules = [Rule(fault=fault, path=ALL_PODS, client="^gracectl") for fault in (DropWatch(0.0), Expire())]
    for rule in rules:
        faults.add(rule)
    await anyio.sleep(LONG_ENOUGH)
    for rule in rules:
        faults.remove(rule)


@asynccontextmanager
async def world(spec: WorldSpec) -> AsyncIterator[tuple[Opened, Service]]:
    """A world in its own process, while the block runs."""
    async with service("benchmarks.ground.world", msgspec.json.encode(spec).decode()) as one:
        yield msgspec.json.decode(one.said, type=Opened), one


if __name__ == "__main__":
    uvloop = find_spec("uvloop") is not None
    anyio.run(serve, msgspec.json.decode(sys.argv[1], type=WorldSpec), backend_options={"use_uvloop": uvloop})
