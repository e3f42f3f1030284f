"""Slow objects delay no other namespace: a webhook takes 25 s for each eviction in one, and pods of another leave."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.server import api
from kubesim.server.api import JsonObject
from support.stage import Stage, a_pod_manifest, staged

from simulation.invariants import Invariants
from simulation.terms import Terms

SLOW = 25.0
BOUND = 2.0
"""Seconds in which a pod leaves that nothing holds."""


def pods(namespace: str, node: str, number: int) -> list[JsonObject]:
    """So many pods without a budget."""
    manifests = [a_pod_manifest(f"{namespace}-{node}-{n}", node, behaviour={"stop-seconds": 1}) for n in range(number)]
    for pod in manifests:
        pod["metadata"]["namespace"] = namespace
    return manifests


def slow_down(stage: Stage, path: str) -> None:
    """Let the server take its time for each write to these."""
    handle = stage.server.handle

    async def slowly(request: api.Request) -> Any:
        if path in request.path and request.method != "GET":
            await stage.clock.sleep(SLOW)
        return await handle(request)

    stage.server.handle = slowly  # type: ignore[method-assign]  # between the controller and the server, as it would be


@pytest.mark.parametrize("path", ["/namespaces/slow/pods/", "/api/v1/nodes/n1"])
async def test_what_is_slow_holds_itself_only(path: str) -> None:
    async with staged("n1", "n2", "n3") as stage:
        await stage.create(*pods("slow", "n1", 90), *pods("quick", "n1", 10), *pods("quick", "n2", 10))
        invariants = Invariants(stage, Terms(faults_end=0.0, stall_seconds=BOUND))
        async with invariants.watching(), stage.settled():
            slow_down(stage, path)
            for node in ("n1", "n2"):
                await stage.delete_node(node)
            deleted = stage.clock.monotonic()
            assert await stage.until_gone("n2") - deleted < 15.0
            await stage.until_gone("n1")
            await stage.clock.sleep(1)
            violations = invariants.check_end(calm=True)
        assert not violations, "\n".join(violations)
