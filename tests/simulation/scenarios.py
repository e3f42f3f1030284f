"""Forecasts over the scenarios of `gracectl simulate`: what `status -w` shows, held against what then happens.

    python -m simulation.scenarios --seeds 5 --save docs/benchmarks/forecasts.json

A third of the nodes of each scenario is deleted at the same time, on virtual time, with an unmodified controller.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from unittest.mock import patch

import anyio
import msgspec
from kubesim.scenarios.library import names, scenario_named
from kubesim.scenarios.plan import scaled
from kubesim.scenarios.simulation import Simulation
from support.inprocess import InProcessTransport
from support.stage import CloudProvider, is_held, the_settings
from support.virtual import ShiftedClock, VirtualLoop

from benchmarks.page import FORECASTS
from gracectl.app.controller import Controller
from gracectl.cli.crds import shipped_definitions
from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.inspect import progress
from gracectl.inspect.status import NodeStatus, is_active
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.policy.answers import Answer
from gracectl.runtime.clock import LoopClock
from simulation.forecasts import MANY, OFTEN, SELDOM, Counts, publish

FACTORS: Final = {"large": 0.02, "huge": 0.004, "largest": 0.0015}
"""Of scenarios that only differ in size."""
EMPTY: Final = "empty"
SHARE: Final = 3
"""One of so many nodes is deleted."""
HORIZON: Final = 1800.0
"""Seconds after which what is not drained counts as never drained."""
SETTLING: Final = 20.0


class Judge:
    """Frames of `status -w` about these nodes. Each answer is judged when its node is drained."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.counts = Counts()
        self.now = 0.0
        self._left = set(nodes)
        self._said: dict[str, list[tuple[float, Answer]]] = {}

    def show(self, frame: StatusFrame) -> bool:
        """Take note of a frame; whether all of the nodes are drained."""
        self.now = frame.at
        shown = {node.name: node for node in frame.nodes}
        for name in [*self._left]:
            node = shown.get(name)
            if frame.is_complete and (node is None or _is_drained(node)):
                self._judge(name, frame.at)
            elif node is not None and node.drained is not None and node.forecast is not None:
                said = self._said.setdefault(name, [])
                if not said or frame.at >= said[-1][0] + (OFTEN if len(said) < MANY else SELDOM):
                    said.append((frame.at, node.drained))
        return not self._left

    def end(self) -> None:
        """What is left is never drained."""
        for name in [*self._left]:
            self._judge(name, None)

    def _judge(self, name: str, drained: float | None) -> None:
        self._left.discard(name)
        for _, answer in self._said.pop(name, ()):
            self.counts.judge(answer, drained, self.now)


def _is_drained(node: NodeStatus) -> bool:
    return node.step in ("volumes", "instance", "finalizer")


async def forecasts_of(name: str, seed: int) -> Counts:
    """How the forecasts of a scenario come out. As over HTTP, clients have the server's clock."""
    clock, scenario = LoopClock(), scaled(scenario_named(name), FACTORS.get(name, 1.0))
    simulation = Simulation(clock, msgspec.structs.replace(scenario, seed=seed), definitions=shipped_definitions())
    cluster, clients = simulation.cluster, ShiftedClock(clock, scenario.server.clock_offset)
    transport = InProcessTransport(cluster.server, clock, seed=seed)
    settings, stop = the_settings(), anyio.Event()
    async with anyio.create_task_group() as group:
        await group.start(simulation.run)
        provider = CloudProvider(cluster.cloud, clients)
        controller = Controller(settings, transport.line(), clients, provider, rng=random.Random(seed))
        group.start_soon(controller.run, stop)
        await controller.wait_live()
        nodes = sorted(each["metadata"]["name"] for each in cluster.server.store.table("nodes"))
        with anyio.move_on_after(SETTLING):
            await cluster.until(lambda: all(map(is_held, cluster.server.store.table("nodes"))))
        chosen = random.Random(seed).sample(nodes, max(len(nodes) // SHARE, 1))
        for each in chosen:
            await cluster.api.call("DELETE", f"/api/v1/nodes/{each}")
        judge, line = Judge(chosen), transport.line()
        connection = Connection(line, clients, KubeClient(line, clients))
        follower = StatusFollower(connection, settings, StatusScope(is_active), is_endless=True)
        with anyio.move_on_after(HORIZON):
            await follower.run(judge.show)
        judge.end()
        group.cancel_scope.cancel()
    return judge.counts


def main(arguments: list[str]) -> int:
    """Judge all scenarios; the exit code is 1 if a forecast of never was false."""
    parser = argparse.ArgumentParser(prog="python -m simulation.scenarios", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", default=[each for each in names() if each != EMPTY])
    parser.add_argument("--seeds", type=int, default=5, help="runs of each scenario")
    parser.add_argument("--save", type=Path, help=f"write the counts there, as {FORECASTS}.json of docs/benchmarks")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # controllers retry, and say so
    whole = Counts()
    # On virtual time no thread may compute a forecast.
    with patch.object(progress, "QUICK_PODS", sys.maxsize):
        for name in options.names:
            counts = Counts()
            for seed in range(1, options.seeds + 1):
                counts.add(anyio.run(forecasts_of, name, seed, backend_options={"loop_factory": VirtualLoop}))
            print(f"{name}: {counts}", flush=True)
            whole.add(counts)
    print(whole)
    if options.save:
        publish(options.save, "scenarios", whole, {"scenarios": len(options.names), "runs of each": options.seeds})
    return 1 if whole.false_never else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
