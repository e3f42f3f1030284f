"""Nodes of a cluster, looked at one by one until they are as they should be: held by a controller, or gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import anyio

from benchmarks.ground.waiting import STILL, Waiting
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.policy.finalizers import has_finalizer
from gracectl.runtime.clock import SystemClock

PATIENCE = 300.0
"""Seconds that a drain may take until the first of its nodes is gone, and a program until it ends by itself."""

clock = SystemClock()


async def until_held(client: KubeClient, names: Iterable[str], why: Callable[[], str], still: float = STILL) -> None:
    """Wait until a controller has put its finalizer on these nodes. `why` it may not: what is said if it does not.
    `still`: seconds that the first of them may take."""

    def is_held(node: Node | None) -> bool:
        return node is not None and has_finalizer(node)

    await _all(client, names, "held by the controller", is_held, why, still)


async def until_they_take_pods(client: KubeClient, names: Iterable[str], why: str) -> None:
    """Wait until no taint of Kubernetes, but a cordon, keeps pods away from these nodes."""
    await _all(client, names, "Ready", lambda node: node is not None and not _is_kept_free(node), lambda: why)


async def until_gone(client: KubeClient, names: Iterable[str], still: float = PATIENCE) -> None:
    """Wait until these nodes are not there any more. `still`: seconds that the first of them may take."""
    await _all(client, names, "gone", lambda node: node is None, lambda: "", still)


async def delete(client: KubeClient, names: Iterable[str]) -> None:
    """Ask for the end of these nodes, all at once."""
    await together([partial(client.delete, NODES, ("", name)) for name in names])


def _is_kept_free(node: Node) -> bool:
    cordon = "node.kubernetes.io/unschedulable"
    return any(taint.key.startswith("node.kubernetes.io/") and taint.key != cordon for taint in node.taints)


async def _all(
    client: KubeClient,
    names: Iterable[str],
    state: str,
    condition: Callable[[Node | None], bool],
    why: Callable[[], str],
    still: float = STILL,
) -> None:
    names, reached = tuple(names), 0
    waiting = Waiting(f"{names[0]} … {names[-1]}", lambda: f"{reached:,} of {len(names):,} nodes {state}", still, clock)

    async def until(name: str) -> None:
        nonlocal reached
        while not condition(node := await _look(client, name)):
            if waiting.has_stalled:
                raise waiting.stalled(f"{name}: {_said(node)}; {why()}")
            await clock.sleep(0.25)
        reached += 1
        waiting.moved()

    await together([partial(until, name) for name in names])


def _said(node: Node | None) -> str:
    """What there is to see of it."""
    if node is None:
        return "is not there"
    words = ["Ready" if node.ready else "not Ready", *(taint.key for taint in node.taints), *node.finalizers]
    return ", ".join(words)


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
