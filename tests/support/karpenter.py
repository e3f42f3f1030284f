"""Karpenter next to the controllers of a stage: its definitions, the model of it that kubesim has, and its nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from kubesim.controllers.karpenter import Karpenter, karpenters
from kubesim.server.api import JsonObject

from gracectl.controllers.settings import AssistSettings, TerminationSettings
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.forecast import draining_nodes
from gracectl.inspect.owner_reports import read_owner_reports, with_reports
from gracectl.inspect.progress import forecast_of
from gracectl.inspect.status import NodeStatus, node_statuses, with_forecasts
from gracectl.inspect.watcher import snapshot
from gracectl.model import names
from gracectl.policy.forecast import Assumptions
from gracectl.runtime.supervise import while_running
from support.clients import a_client
from support.stage import Stage, staged

if TYPE_CHECKING:
    from support.fleet import Fleet

ALONE = TerminationSettings(assist=AssistSettings(karpenter=False))

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
        await stage.clock.sleep(0.9)  # instants are whole seconds again
    karpenter = Karpenter(stage.cluster.api, stage.cluster.pace)
    async with while_running(karpenter.run):
        for name in nodes:
            await stage.add_nodes(name, claim=karpenters(**claim))
        await stage.until(lambda: all(names.FINALIZER in _finalizers(stage, name) for name in nodes))
        yield karpenter


def _finalizers(stage: Stage, node: str) -> list[str]:
    found = stage.node(node)
    return [] if found is None else found["metadata"].get("finalizers", [])


@asynccontextmanager
async def karpenter_stage(
    *nodes: str, objects: tuple[JsonObject, ...] = (), claim: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Stage, Karpenter]]:
    """These nodes of Karpenter, which has taken charge of them, the node `other`, and these objects."""
    async with staged("other", **options) as stage, karpenter_runs(stage, *nodes, **(claim or {})) as karpenter:
        if objects:
            await stage.create(*objects)
        yield stage, karpenter


@contextmanager
def installed(place: Fleet) -> Iterator[None]:
    """A cluster in a process of its own has its definitions while the block lasts."""
    place.ask("POST", DEFINITIONS, NODE_POOLS)
    try:
        place.until("NodePools are served", lambda: "nodepools" in str(place.ask("GET", "/apis/karpenter.sh/v1")))
        yield
    finally:
        place.ask("DELETE", NODE_POOLS_DEFINITION)


async def status_of(stage: Stage, node: str, settings: TerminationSettings = ALONE) -> NodeStatus:
    """What `gracectl status` reads of a node, without a controller."""
    client, now = a_client(stage), stage.clock.now()
    cluster = await snapshot(client, lambda each: True)
    statuses = with_forecasts(
        node_statuses(cluster, settings, {node}, now),
        forecast_of(draining_nodes(cluster, settings, now), now, Assumptions()),
    )
    (status,) = with_reports(statuses, await read_owner_reports(client, cluster, [node]))
    return status


def pod_of(status: NodeStatus, name: str) -> PodStatus:
    (pod_status,) = [pod for pod in status.pods or () if pod.entry.pod.name == name]
    return pod_status
