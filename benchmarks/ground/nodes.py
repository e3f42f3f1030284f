"""Nodes of a cluster, looked at one by one until they are as they should be: held by a controller, or gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import anyio

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.resources import NODES
from gracectl.model.names import FINALIZER
from gracectl.model.node import Node
from gracectl.runtime.clock import SystemClock

PATIENCE = 300.0
"""Seconds after which nothing more is waited for."""

clock = SystemClock()


async def until_held(client: KubeClient, names: Iterable[str]) -> None:
    """Wait until a controller has put its finalizer on these nodes."""
    await _all(client, names, lambda node: node is not None and FINALIZER in node.finalizers)


async def until_they_take_pods(client: KubeClient, names: Iterable[str]) -> None:
    """Wait until no taint of Kubernetes, but a cordon, keeps pods away from these nodes."""
    await _all(client, names, lambda node: node is not None and not _is_kept_free(node))


async def until_gone(client: KubeClient, names: Iterable[str]) -> None:
    """Wait until these nodes are not there any more."""
    await _all(client, names, lambda node: node is None)


async def delete(client: KubeClient, names: Iterable[str]) -> None:
    """Ask for the end of these nodes, all at once."""
    await together([partial(client.delete, NODES, ("", name)) for name in names])


def _is_kept_free(node: Node) -> bool:
    cordon = "node.kubernetes.io/unschedulable"
    return any(taint.key.startswith("node.kubernetes.io/") and taint.key != cordon for taint in node.taints)


async def _all(client: KubeClient, names: Iterable[str], condition: Callable[[Node | None], bool]) -> None:
    await together([partial(_until, client, name, condition) for name in names])


async def _until(client: KubeClient, name: str, condition: Callable[[Node | None], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition(await _look(client, name)):
            await clock.sleep(0.25)


async def _look(client: KubeClient, name: str) -> Node | None:
    try:
        return await client.get(NODES, ("", name))
    except NotFound:
        return None


async def together(calls: Iterable[Callable[[], Awaitable[Any]]], at_once: int = 32) -> None:
    """Do all of these, so many at a time."""
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call()

    async with anyio.create_task_group() as group:
        for _ in range(at_once):
            group.start_soon(work)
