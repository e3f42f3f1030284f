"""Evictions that cannot succeed: what the node, its condition and its Events say about them."""

from __future__ import annotations

import pytest
from kubesim.faults import Fault, Latency, Refuse, Rule
from support.collector import figures
from support.stage import a_budget_manifest, a_pod_manifest, staged
from support.stories import delete_at_start, evictions, told, until

from gracectl.model import names

FLOCK = {"apiVersion": "bug.example.com/v1", "kind": "Flock", "name": "f", "uid": "f-1", "controller": True}


async def test_a_budget_that_was_never_counted_is_a_misconfiguration() -> None:
    async with staged("n1", "n2") as stage:
        birds = [a_pod_manifest(f"bird-{n}", "n1", labels={"app": "bird"}, owners=[FLOCK]) for n in range(2)]
        await stage.create(a_budget_manifest("bird", maxUnavailable=1), *birds)
        async with stage.settled() as controller:
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


DENIED = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": 'admission webhook "guard.example.com" denied the request: vm-0 is moved by its operator first',
    "code": 400,
}
BROKEN = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": 'Internal error occurred: failed calling webhook "guard.example.com": connection refused',
    "reason": "InternalError",
    "code": 500,
}


async def test_an_eviction_that_a_webhook_refuses_is_seen_at_the_node() -> None:
    objects = [a_pod_manifest("vm-0", "n1"), a_pod_manifest("free", "n1", behaviour={"stop-seconds": 1})]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled() as controller:
        rule = Rule(fault=Refuse(400, body=DENIED), path="pods/vm-0/eviction")
        stage.transport.before.add(rule)
        await delete_at_start(stage, "n1")
        await until(stage, 15.0)
        drained = stage.condition("n1", names.DRAINED)
        assert drained is not None
        assert drained["reason"] == "EvictionRefused"
        assert "denied by an admission webhook or policy" in drained["message"]
        assert "vm-0 is moved by its operator first" in drained["message"]
        assert figures(controller, "blocked_pods") == {("blocked_pods", "refused"): 1}
        assert evictions(stage) == [("free", 0.0)]
        await until(stage, 55.0)
        assert await told(stage, "n1", "DrainBlocked") == []
        await until(stage, 75.0)
        (message,) = await told(stage, "n1", "DrainBlocked")
        assert message.startswith("no pod has left for 60 s; 1 pod left: shop/vm-0 (eviction refused: ")
        stage.transport.before.remove(rule)
        await stage.until_gone("n1")


@pytest.mark.parametrize("fault", [Refuse(500, body=BROKEN), Latency(1e6, 1e6)], ids=["refuses", "hangs"])
async def test_evictions_that_fail_or_hang_are_no_movement(fault: Fault) -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("vm-0", "n1")]) as stage, stage.settled() as controller:
        stage.transport.before.add(Rule(fault=fault, path="/eviction"))
        await delete_at_start(stage, "n1")
        await until(stage, 59.0)
        assert await told(stage, "n1", "DrainBlocked") == []
        await until(stage, 62.0)
        (message,) = await told(stage, "n1", "DrainBlocked")
        assert message.startswith("no pod has left for 60 s; 1 pod left: shop/vm-0 (")
        assert figures(controller, "drains_stalled") == {("drains_stalled", "node"): 1}


async def test_pods_that_leave_one_after_another_are_movement() -> None:
    async with staged("n1", "n2") as stage:
        pods = [a_pod_manifest(f"web-{n}", "n1", behaviour={"stop-seconds": 20}, labels={"app": "w"}) for n in range(5)]
        await stage.create(*pods, a_budget_manifest("w", minAvailable=0))
        async with stage.settled():
            rule = Rule(fault=Refuse(400, body=DENIED), path="pods/web-0/eviction")
            stage.transport.before.add(rule)
            await delete_at_start(stage, "n1")
            await until(stage, 75.0)
            assert await told(stage, "n1", "DrainBlocked") == []
            await until(stage, 82.0)
            assert len(await told(stage, "n1", "DrainBlocked")) == 1
