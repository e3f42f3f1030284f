"""The kubelet of the stories' nodes on a cluster that is not ours: `python -m e2e_support.hollow KUBECONFIG RUN`.

It serves the nodes whose label says that they belong to the run, and no others: its heartbeats keep them Ready,
pods start and stop as their annotations say. Prints a line once it sees the cluster; runs until SIGTERM.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from e2e_support.names import LABEL
from e2e_support.target import connected
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.signals import set_on_signal
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.kubelet import HollowKubelet, KubeletSettings
from gracectl.sim.world.objects import labels_of
from gracectl.sim.world.pace import Pace
from gracectl.sim.world.paths import NODES, PODS
from gracectl.sim.world.view import Views


async def serve(kubeconfig: Path, run: str) -> None:
    """Be the kubelet of the run's nodes until SIGTERM."""
    clock, stop = SystemClock(), anyio.Event()

    def is_ours(node: JsonObject) -> bool:
        return labels_of(node).get(LABEL, "").startswith(run)

    async with connected(kubeconfig) as api, anyio.create_task_group() as group:
        views = Views(api, clock)
        kubelet = HollowKubelet(views, Pace(clock), KubeletSettings(), manages=is_ours)
        group.start_soon(set_on_signal, stop)
        group.start_soon(views.run)
        await views.of(NODES).synced.wait()
        await views.of(PODS).synced.wait()
        group.start_soon(kubelet.run)
        print("ready", flush=True)
        await stop.wait()
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]), sys.argv[2])
