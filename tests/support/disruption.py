"""What stories of voluntary terminations ask for: lost nodes, deletions, node disruption budgets."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import orjson
from kubesim.server import api
from kubesim.server.api import JsonObject

from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.controllers.cluster.informers import Reflectors
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.model import names
from gracectl.model.decode import decode_node
from gracectl.model.node import Node
from gracectl.model.times import parse_time
from gracectl.nodebudgets.admitter import Admitter
from gracectl.nodebudgets.status_controller import StatusController
from gracectl.runtime.backoff import Backoff
from support.stage import Stage

# Support of tests about voluntary terminations: losing a node, and what was deleted when.

TERMINABLE = {"metadata": {"labels": {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}}}
NOT_TERMINABLE: Any = {"metadata": {"labels": {names.LIFECYCLE_PHASE: None}}}
AT_ONCE: Any = {"voluntary": {"maximumAtOnce": "100%", "waitForReplacement": False}}
"""Settings that pace no termination, for what is about something else."""
ON_LOST_NODES = [{"key": names.UNREACHABLE_TAINT_KEY, "operator": "Exists", "effect": "NoExecute"}]
"""Tolerations of a pod that stays where it is however long its node is not heard of."""


def deletions(stage: Stage, resource: str = "nodes") -> list[tuple[float, str]]:
    """DELETEs that the server has accepted: instant and name."""
    done = stage.transport.of("delete", resource)
    return [(round(each.instant, 3), each.operation.name) for each in done if each.status == 200]


async def lost_at(stage: Stage, node: str) -> float:
    """Cut the node's kubelet off; returns the (monotonic) instant from which on Kubernetes calls it Unknown."""
    stage.cluster.kubelet.partition(node)
    await stage.until(lambda: (stage.condition(node, "Ready") or {}).get("status") == "Unknown")
    condition = stage.condition(node, "Ready")
    assert condition is not None
    return instant_of(stage, condition["lastTransitionTime"])


def instant_of(stage: Stage, written: str) -> float:
    """What the clock of the test shows at an instant that is written in an object."""
    return parse_time(written) - stage.clock.now() + stage.clock.monotonic()


def created_at(stage: Stage, thing: Any) -> float:
    return instant_of(stage, thing["metadata"]["creationTimestamp"])


@asynccontextmanager
async def refusing(stage: Stage, path: str, *, retry_after: int | None = None) -> AsyncIterator[list[float]]:
    """A webhook that refuses to let this go; yields when it was asked."""
    handle = stage.server.handle
    asked: list[float] = []

    async def refuse(request: Any) -> Any:
        if (request.method, request.path) != ("DELETE", path):
            return await handle(request)
        asked.append(stage.clock.monotonic())
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": 'admission webhook "ndb.karpenter.sh" denied the request: budget "all" would be broken',
            "reason": "TooManyRequests",
            "code": 429,
            "details": {"retryAfterSeconds": retry_after} if retry_after else {},
        }
        return api.Response(status=429, body=status)

    stage.server.handle = refuse  # type: ignore[method-assign]  # between the controller and the server, as it would be
    yield asked
    stage.server.handle = handle  # type: ignore[method-assign]  # as before


# Node disruption budgets on a stage: made, seen, and asked by several replicas at once.

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
