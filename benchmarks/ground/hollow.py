"""The kubelet of our nodes on a foreign cluster: `python -m benchmarks.ground.hollow KUBECONFIG LABEL PREFIX`.

It serves the nodes whose label LABEL has a value that begins with PREFIX, and no others: its heartbeats keep them
Ready, pods start and stop as their annotations say. Prints a line once it sees the cluster; runs until its standard
input ends.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
from kubesim.controllers.client import OverHttp
from kubesim.controllers.informers import Informers
from kubesim.controllers.kubelet import HollowKubelet, KubeletSettings
from kubesim.controllers.objects import labels_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import NODES, PODS
from kubesim.server.api import JsonObject

from gracectl.kube.auth import lookup
from gracectl.runtime.clock import SystemClock


async def serve(kubeconfig: Path, label: str, prefix: str) -> None:
    """Be the kubelet of these nodes until standard input ends."""
    clock = SystemClock()

    def is_ours(node: JsonObject) -> bool:
        return labels_of(node).get(label, "").startswith(prefix)

    async with connected(kubeconfig) as api, anyio.create_task_group() as group:
        informers = Informers(api, clock)
        kubelet = HollowKubelet(informers, Pace(clock), KubeletSettings(), manages=is_ours)
        group.start_soon(informers.run)
        await informers.of(NODES).synced.wait()
        await informers.of(PODS).synced.wait()
        group.start_soon(kubelet.run)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        group.cancel_scope.cancel()


@asynccontextmanager
async def connected(kubeconfig: Path, more: Mapping[str, str] | None = None) -> AsyncIterator[OverHttp]:
    """Plain requests to the cluster of a kubeconfig, with the identity that the controller would have; `more`: headers
    of every request."""
    found = await lookup.load(str(kubeconfig), clock=SystemClock())
    identity = await found.identity()
    async with aiohttp.ClientSession(trust_env=False) as session:
        yield OverHttp(session, found.url, headers={**identity.headers, **(more or {})}, tls=identity.tls)


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
