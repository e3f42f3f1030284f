"""Support of tests about voluntary terminations: losing a node, and what was deleted when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kubesim.server import api

from gracectl.model import names
from gracectl.model.times import parse_time
from support.stage import Stage

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
