"""The embedded cluster in a process of its own, so that what is measured does not share an event loop with it.

    python -m benchmarks.ground.cluster '{"nodes": [{"name": "old-1"}], "start": 0.05, "ready": 0.25, "stop": 0.4}'

Prints its URL as the first line, and runs until its standard input ends.
"""

from __future__ import annotations

import gc
import sys

import anyio
import anyio.to_thread
import msgspec
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.behaviour import PodBehaviour, Stage
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.kubelet import KubeletSettings
from kubesim.http import HttpFace

from gracectl.runtime.clock import SystemClock


class ClusterSpec(msgspec.Struct, frozen=True):
    """Nodes, and how long (seconds) every pod takes from bound to running, from running to Ready, and to stop."""

    nodes: tuple[NodeSpec, ...]
    start: float = 0.05
    ready: float = 0.25
    stop: float = 0.4


async def serve(spec: ClusterSpec) -> None:
    """Run the cluster until standard input ends."""
    behaviour = PodBehaviour(start_delay=spec.start, ready_delay=spec.ready, stop_delay=spec.stop)
    # What is there mostly stays: the collector's walks over all of it would be taken for slowness of what is measured.
    gc.set_threshold(10_000, 50, 1_000)
    options = ClusterOptions(
        kubelet=KubeletSettings(behaviours=(Stage(behaviour),)), cloud=CloudSettings(terminate_delay=0.5)
    )
    cluster = EmbeddedCluster(SystemClock(), options)
    face = HttpFace(cluster.server)
    url = await face.start()
    try:
        async with anyio.create_task_group() as group:
            await group.start(cluster.run)
            for node in spec.nodes:
                await cluster.add_node(node)
            print(url, flush=True)
            await anyio.to_thread.run_sync(sys.stdin.read)
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()


if __name__ == "__main__":
    anyio.run(serve, msgspec.json.decode(sys.argv[1], type=ClusterSpec))
