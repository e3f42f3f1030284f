"""The real kubectl, at three kinds of servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from clients.place import Place, served, served_by_token
from kubesim.apiserver import ApiServer
from kubesim.clock import SystemClock
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.server.calls import User
from kubesim_support.kubectl import Kubectl


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A cluster of two nodes that lives ten times as fast as a real one."""
    cluster = EmbeddedCluster(SystemClock(), ClusterOptions(speed=10.0))
    async with served(cluster.server, tmp_path) as kubeconfig, anyio.create_task_group() as group:
        await group.start(cluster.run)
        for name in ("n1", "n2"):
            await cluster.add_node(NodeSpec(name=name))
        yield Place(cluster, kubeconfig)
        group.cancel_scope.cancel()


@pytest.fixture
def kubectl(place: Place, tmp_path: Path) -> Kubectl:
    """kubectl in a cluster that lives."""
    return Kubectl(place.kubeconfig, tmp_path)


@pytest.fixture
async def lonely_kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl at a server without a world."""
    async with served(ApiServer(SystemClock()), tmp_path) as kubeconfig:
        yield Kubectl(kubeconfig, tmp_path)


@pytest.fixture
async def admins_kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl of the administrator of a server without a world that asks for tokens and knows another, of joe."""
    tokens: dict[str, str | User] = {"of-the-admin": "admin", "of-joe": User("joe", "7", ("devs",))}
    server = ApiServer(SystemClock(), tokens=tokens)
    async with served_by_token(server, tmp_path, "of-the-admin") as kubeconfig:
        yield Kubectl(kubeconfig, tmp_path)
