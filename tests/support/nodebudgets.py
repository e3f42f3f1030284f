"""Node disruption budgets on a stage: made, seen, and asked by several replicas at once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import orjson
from kubesim.server.api import JsonObject

from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.controllers.cluster.informers import Reflectors
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.model.decode import decode_node
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Admitter
from gracectl.nodebudgets.status_controller import StatusController
from gracectl.runtime.backoff import Backoff
from support.stage import Stage

NODE_BUDGETS = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets"
POOL = {"pool": "a"}


def a_node_budget_manifest(name: str = "pool-a", labels: dict[str, str] | None = None, **bound: Any) -> JsonObject:
    """A budget over the nodes with these labels (POOL); `bound` is maxUnavailable or minAvailable."""
    return {
        "apiVersion": "termination.karpenter.sh/v1alpha2",
        "kind": "NodeDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": POOL if labels is None else labels}, **bound},
    }


async def create_node_budget(stage: Stage, name: str = "pool-a", **fields: Any) -> None:
    """See a_node_budget_manifest."""
    await stage.call("POST", NODE_BUDGETS, a_node_budget_manifest(name, **fields))


async def patch_node_budget(stage: Stage, name: str, spec: JsonObject) -> None:
    """A merge patch of another client."""
    await stage.call("PATCH", f"{NODE_BUDGETS}/{name}", {"spec": spec}, "application/merge-patch+json")


def status_of(stage: Stage, name: str = "pool-a") -> JsonObject:
    """What the server has as the budget's status; empty before it is counted."""
    table = stage.server.store.table("nodedisruptionbudgets.termination.karpenter.sh")
    return (table.get("", name) or {}).get("status") or {}


def figures(stage: Stage, name: str = "pool-a") -> tuple[int, int, int, int]:
    """Expected, available, desired, allowed."""
    status = status_of(stage, name)
    fields = ("expectedNodes", "currentAvailable", "desiredAvailable", "disruptionsAllowed")
    return tuple(status.get(field, -1) for field in fields)


def seen(stage: Stage, name: str) -> Node:
    """The node as the server has it now: what a webhook is shown."""
    node = stage.node(name)
    assert node is not None, name
    return decode_node(orjson.dumps(node))


@asynccontextmanager
async def replicas(stage: Stage, count: int = 1, *, counts: bool = True) -> AsyncIterator[list[Admitter]]:
    """So many gates with caches of their own; the first one's process leads, and `counts`."""
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        gates = []
        for number in range(count):
            rng = random.Random(f"replica/{number}")
            client = KubeClient(stage.transport, stage.clock, rng=rng)
            observed = empty_cluster_cache()
            gate = Admitter(client, observed.nodes, Cache("node-budgets"), stage.clock, rng=rng)
            reflectors = Reflectors(client, observed, stage.clock, rng=rng)
            group.start_soon(reflectors.nodes.run)
            group.start_soon(reflectors.of_node_budgets(gate.budgets).run)
            await gate.wait_live()
            gates.append(gate)
        if counts:
            counting = StatusController(gates[0], client, stage.clock, partial(Backoff, rng=rng))
            group.start_soon(counting.run)
        yield gates
