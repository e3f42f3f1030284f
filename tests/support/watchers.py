"""Watchers of a stage's cluster, and their requests to its server."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from gracectl.inspect.watcher import ClusterWatcher, Selection
from gracectl.kube.client import INTERACTIVE, KubeClient
from gracectl.model.node import Node
from support.stage import Stage


def named(*names: str) -> Selection:
    """Chooses the nodes of these names."""
    return lambda node: node.name in names


def being_deleted(node: Node) -> bool:
    return node.deletion_timestamp is not None


def a_client(stage: Stage) -> KubeClient:
    return KubeClient(stage.transport, stage.clock, settings=INTERACTIVE, rng=random.Random(1))


@asynccontextmanager
async def seeing(stage: Stage, chooses: Selection) -> AsyncIterator[ClusterWatcher]:
    """A watcher that runs, and has listed what was chosen at first."""
    sight = ClusterWatcher(a_client(stage), chooses, stage.clock, rng=random.Random(2))
    async with anyio.create_task_group() as group:
        group.start_soon(sight.run)
        await sight.wait_live()
        yield sight
        group.cancel_scope.cancel()


def asked_pods(stage: Stage) -> list[str]:
    """Lists of pods, in order: `list spec.nodeName=n1`; `list` for those of all nodes."""
    return [
        " ".join(filter(None, (each.operation.verb, dict(each.request.query).get("fieldSelector"))))
        for each in stage.transport.executed
        if each.operation.plural == "pods" and "continue" not in dict(each.request.query)
    ]


def pods_seen(sight: ClusterWatcher, *nodes: str) -> dict[str, list[str]]:
    """By node, the names of its pods in the watcher."""
    return {node: sorted(pod.name for pod in sight.cluster.pods_on(node)) for node in nodes}
