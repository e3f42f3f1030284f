"""Karpenter next to the controllers of a stage: its definitions, and the model of it that kubesim has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
from kubesim.cluster import NodeSpec
from kubesim.controllers.karpenter import Karpenter, karpenters

from support.stage import Stage

if TYPE_CHECKING:
    from support.fleet import Fleet

NODE_POOLS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodepools.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"plural": "nodepools", "singular": "nodepool", "kind": "NodePool", "listKind": "NodePoolList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_POOLS_DEFINITION = f"{DEFINITIONS}/nodepools.karpenter.sh"


async def karpenter_is_installed(stage: Stage) -> None:
    """Its definitions are served."""
    await stage.call("POST", DEFINITIONS, NODE_POOLS)
    await stage.clock.sleep(0.1)


@asynccontextmanager
async def karpenter_runs(
    stage: Stage, *nodes: str, is_installed: bool = True, **claim: Any
) -> AsyncIterator[Karpenter]:
    """A Karpenter with these nodes, each with a claim."""
    if is_installed:
        await karpenter_is_installed(stage)
    karpenter = Karpenter(stage.cluster.api, stage.cluster.pace)
    async with anyio.create_task_group() as group:
        group.start_soon(karpenter.run)
        for name in nodes:
            await stage.cluster.add_node(NodeSpec(name=name, claim=karpenters(**claim)))
        await stage.clock.sleep(5.0)  # until it has taken charge of them
        yield karpenter
        group.cancel_scope.cancel()


@contextmanager
def installed(place: Fleet) -> Iterator[None]:
    """A cluster in a process of its own has its definitions while the block lasts."""
    place.ask("POST", DEFINITIONS, NODE_POOLS)
    try:
        place.until("NodePools are served", lambda: "nodepools" in str(place.ask("GET", "/apis/karpenter.sh/v1")))
        yield
    finally:
        place.ask("DELETE", NODE_POOLS_DEFINITION)
