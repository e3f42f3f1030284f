"""What scenarios share: a cluster to measure on, and a client that sees it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from benchmarks.ground.cluster import ClusterSpec
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.credentials import Credentials
from gracectl.kube.http import HttpTransport
from gracectl.kube.reflector import Reflector
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import BUDGETS, NODES, PODS, Resource, verbatim
from gracectl.kube.tokens import FixedToken
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.runtime.clock import SystemClock

NAMESPACES: Resource[bytes] = Resource(
    group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False, decode=verbatim
)
DEPLOYMENTS: Resource[bytes] = Resource(
    group="apps", version="v1", plural="deployments", kind="Deployment", namespaced=True, decode=verbatim
)
RAW_BUDGETS: Resource[bytes] = Resource(
    group="policy",
    version="v1",
    plural="poddisruptionbudgets",
    kind="PodDisruptionBudget",
    namespaced=True,
    decode=verbatim,
)


class Stage:
    """A cluster with live caches of its pods and budgets."""

    def __init__(self, url: str, transport: HttpTransport, clock: SystemClock) -> None:
        self.url = url
        self.transport = transport
        self.clock = clock
        self.client = KubeClient(transport, clock)
        self.pods: Cache[Pod] = Cache("pods")
        self.budgets: Cache[PodDisruptionBudget] = Cache("budgets")
        self._news = anyio.Event()
        self.pods.subscribe(lambda old, new: self._tell())
        self.budgets.subscribe(lambda old, new: self._tell())

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on pods and budgets holds; looked at after every change of one."""
        with anyio.fail_after(120):
            while not condition():
                await self._news.wait()

    async def set_schedulable(self, node: str, schedulable: bool) -> None:
        """Cordon a node, or take that back."""
        await self.client.patch(NODES, ("", node), MergePatch({"spec": {"unschedulable": not schedulable}}))

    async def deploy(self, name: str, replicas: int, *, bound: dict[str, Any] | None, pool: str = "") -> None:
        """A Deployment of `name` in its own namespace on the nodes labelled `pool: name`, or another pool, under one
        budget, or none."""
        labels = {"app": name}
        template = {
            "metadata": {"labels": labels},
            "spec": {"nodeSelector": {"pool": pool or name}, "containers": [{"name": "c", "image": "pause"}]},
        }
        selector = {"matchLabels": labels}
        await self.client.create(NAMESPACES, "", {"metadata": {"name": name}})
        await self.client.create(
            DEPLOYMENTS,
            name,
            {"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": selector, "template": template}},
        )
        if bound is None:
            await self.until(lambda: self.healthy(name) == replicas)
            return
        await self.client.create(
            RAW_BUDGETS, name, {"metadata": {"name": name}, "spec": {"selector": selector, **bound}}
        )
        await self.until(lambda: self.is_settled(name, replicas))

    def is_settled(self, name: str, replicas: int) -> bool:
        """All replicas are healthy and the budget knows it."""
        budget = self.budgets.get(name, name)
        return (
            budget is not None
            and budget.observed_generation == budget.generation
            and budget.current_healthy == replicas
            and not budget.disrupted_pods
            and self.healthy(name) == replicas
        )

    def of(self, name: str) -> list[Pod]:
        """The pods of the Deployment `name`."""
        return [pod for pod in self.pods.values() if pod.namespace == name]

    def healthy(self, name: str) -> int:
        """How many of them are Ready and not on their way out."""
        return sum(pod.ready and pod.deletion_timestamp is None for pod in self.of(name))


@asynccontextmanager
async def cluster(spec: ClusterSpec) -> AsyncIterator[str]:
    """The URL of an embedded cluster in its own process."""
    command = [sys.executable, "-m", "benchmarks.ground.cluster", msgspec.json.encode(spec).decode()]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield (await process.stdout.receive()).decode().strip()
        await process.stdin.aclose()
        await process.wait()


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[Stage]:
    """A client that watches a cluster."""
    clock = SystemClock()
    async with HttpTransport(Credentials(url, FixedToken("")), clock) as transport, anyio.create_task_group() as group:
        one = Stage(url, transport, clock)
        group.start_soon(Reflector(one.client, PODS, one.pods, clock).run)
        group.start_soon(Reflector(one.client, BUDGETS, one.budgets, clock).run)
        await one.pods.wait_live()
        await one.budgets.wait_live()
        yield one
        group.cancel_scope.cancel()


@asynccontextmanager
async def stage(spec: ClusterSpec) -> AsyncIterator[Stage]:
    """An embedded cluster in its own process, and a client that watches it."""
    async with cluster(spec) as url, watched(url) as one:
        yield one
