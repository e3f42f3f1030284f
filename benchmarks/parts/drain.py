"""How soon `gracectl drain` acts in the largest cluster with nothing installed, and what it holds: it reads one node.

Nothing lives around the API server, so the drain does not end: it is stopped after some seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.contenders.alone import Run
from benchmarks.ground.ground import at
from benchmarks.ground.world import WorldSpec, world
from benchmarks.report import Figure, Outcome
from gracectl.kube.connection import connected
from gracectl.kube.resources import NODES

ROUNDS = 3
"""The best of them counts, as a busy machine only adds."""
SECONDS = 10
"""Of each run."""
ACTING, MEMORY = 1.0, 80.0
"""Seconds from the first request until the first eviction, and MiB at the peak."""


async def run(scale: float = 1.0) -> Outcome:
    """Drain one node after another."""
    async with world(WorldSpec("huge", scale, alive=False)) as (opened, _):
        with tempfile.TemporaryDirectory(prefix="gracectl-bench-") as name:
            folder = Path(name)
            kubeconfig = at(opened.url, folder / "kubeconfig")
            nodes = await _nodes(kubeconfig)
            found = []
            for node in nodes[:ROUNDS]:
                one = Run(kubeconfig, folder / node, node, "--timeout", f"{SECONDS}s")
                await one.ended()
                found.append(one.drained)
    acting = min(each.acting for each in found if each.acting is not None)
    return Outcome(
        scenario="drain-huge",
        about=f"`gracectl drain` of one node of {opened.nodes:,}, {opened.pods:,} pods, with nothing installed",
        figures=(
            Figure("from its first request until the first eviction", acting, " s", ACTING),
            Figure("memory at its peak", max(each.memory for each in found), " MiB", MEMORY),
            Figure("requests until its end", max(sum(each.usage.requests.values()) for each in found)),
        ),
        parameters={"rounds": ROUNDS, "scale": scale, "seconds": SECONDS},
    )


async def _nodes(kubeconfig: Path) -> list[str]:
    """Names of some nodes."""
    async with connected(str(kubeconfig)) as there:
        async for page in there.client.list(NODES):
            return [node.name for node in page.items]
    return []
