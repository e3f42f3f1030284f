"""Nodes of Karpenter on a stage, drained by the model of it, and what `status` says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from kubesim.controllers.karpenter import Karpenter, karpenters
from kubesim.server.api import JsonObject

from gracectl.controllers.settings import AssistSettings, TerminationSettings
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.forecast import draining_nodes
from gracectl.inspect.owner_reports import read_owner_reports, with_reports
from gracectl.inspect.progress import forecast_of
from gracectl.inspect.status import NodeStatus, node_statuses, with_forecasts
from gracectl.inspect.watcher import snapshot
from gracectl.policy.forecast import Assumptions
from support.clients import a_client
from support.karpenter import karpenter_is_installed
from support.stage import Stage, staged

ALONE = TerminationSettings(assist=AssistSettings(karpenter=False))


@asynccontextmanager
async def karpenter_stage(
    *nodes: str, objects: tuple[JsonObject, ...] = (), claim: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Stage, Karpenter]]:
    """These nodes of Karpenter, which has taken charge of them, the node `other`, and these objects."""
    async with staged("other", **options) as stage, anyio.create_task_group() as group:
        await karpenter_is_installed(stage)
        await stage.clock.sleep(0.9)  # instants are whole seconds again
        karpenter = Karpenter(stage.cluster.api, stage.cluster.pace)
        group.start_soon(karpenter.run)
        for name in nodes:
            await stage.add_nodes(name, claim=karpenters(**(claim or {})))
        await stage.until(
            lambda: all("karpenter.sh/termination" in str(each["metadata"]) for each in stage.nodes()[1:])
        )
        if objects:
            await stage.create(*objects)
        yield stage, karpenter
        group.cancel_scope.cancel()


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
