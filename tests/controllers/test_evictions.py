"""Evictions that cannot succeed: what the node, its condition and its Events say about them."""

from __future__ import annotations

import pytest
from support.deadlines import delete_at_start, evictions, until
from support.metrics import figures
from support.stage import a_budget_manifest, a_pod_manifest, staged

from gracectl.model import names

pytestmark = pytest.mark.anyio

FLOCK = {"apiVersion": "bug.example.com/v1", "kind": "Flock", "name": "f", "uid": "f-1", "controller": True}


async def test_a_budget_that_was_never_counted_is_a_misconfiguration() -> None:
    async with staged("n1", "n2") as stage:
        birds = [a_pod_manifest(f"bird-{n}", "n1", labels={"app": "bird"}, owners=[FLOCK]) for n in range(2)]
        await stage.create(a_budget_manifest("bird", maxUnavailable=1), *birds)
        async with stage.controller() as controller:
            await stage.settle(controller)
            budget = await stage.call("GET", "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/bird")
            assert "observedGeneration" not in budget["status"]
            await delete_at_start(stage, "n1")
            await until(stage, 15.0)
            drained = stage.condition("n1", names.DRAINED)
            assert drained is not None
            assert (
                "cannot be counted: flocks.bug.example.com does not implement the scale subresource"
                in drained["message"]
            )
            assert figures(controller, "blocked_pods") == {("blocked_pods", "misconfiguration"): 2}
            assert evictions(stage) == []
