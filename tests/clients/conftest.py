"""A cluster over HTTP, and other people's clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from clients.people import Kubectl, Place

from gracectl.runtime.clock import SystemClock
from gracectl.sim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec, write_kubeconfig
from gracectl.sim.http import HttpFace


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A cluster of two nodes that lives ten times as fast as a real one."""
    cluster = EmbeddedCluster(SystemClock(), ClusterOptions(speed=10.0))
    face = HttpFace(cluster.server)
    url = await face.start()
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, url)
    try:
        async with anyio.create_task_group() as group:
            await group.start(cluster.run)
            for name in ("n1", "n2"):
                await cluster.add_node(NodeSpec(name=name))
            yield Place(cluster, url, kubeconfig)
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()


@pytest.fixture
def kubectl(place: Place, tmp_path: Path) -> Kubectl:
    """The real kubectl, at home in a folder of its own."""
    return Kubectl(place.kubeconfig, tmp_path)
