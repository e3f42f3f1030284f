"""The subresource scale, the expiry of events, and what budgets may say: what the server does for its controllers."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import Caller, next_events

pytestmark = pytest.mark.anyio
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
EVENTS = "/api/v1/namespaces/default/events"
POLICY = "/apis/policy/{}/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


async def a_deployment(caller: Caller, replicas: int = 3) -> None:
    selector = {"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}
    template = {
        "metadata": {"labels": {"a": "1", "b": "2", "c": "3"}},
        "spec": {"containers": [{"name": "c", "image": "pause"}]},
    }
    spec = {"replicas": replicas, "selector": selector, "template": template}
    await caller.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})


async def test_a_scale_that_is_stale_impossible_or_of_nothing(caller: Caller) -> None:
    await a_deployment(caller)
    scale = await caller.get(f"{DEPLOYMENTS}/web/scale")
    await caller.patch(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 4}})
    for body, status in (
        ({**scale, "spec": {"replicas": 5}}, 409),
        ({**scale, "metadata": {"name": "web"}, "spec": {"replicas": -1}}, 422),
        ({**scale, "metadata": {"name": "web"}, "spec": {"replicas": "5"}}, 400),
        ({**scale, "metadata": {"name": "other"}}, 400),
        ({"kind": "Deployment"}, 400),
    ):
        assert (await caller.call("PUT", f"{DEPLOYMENTS}/web/scale", body)).status == status
    assert (await caller.call("GET", f"{DEPLOYMENTS}/missing/scale")).status == 404
    assert (await caller.call("DELETE", f"{DEPLOYMENTS}/web/scale")).status == 405
    assert (await caller.get(f"{DEPLOYMENTS}/web"))["spec"]["replicas"] == 4


def an_event(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}


async def test_an_event_expires_an_hour_after_its_last_write(caller: Caller) -> None:
    clock = caller.server.clock
    await caller.create(EVENTS, an_event("kept"))
    await caller.create(EVENTS, an_event("left"))
    stream = await caller.watch(EVENTS, timeoutSeconds="7200")
    assert await next_events(stream, 2) == [("ADDED", "kept"), ("ADDED", "left")]
    begun = clock.monotonic()
    await clock.sleep(1800)
    await caller.patch(f"{EVENTS}/kept", {"count": 2})
    assert await next_events(stream, 2) == [("MODIFIED", "kept"), ("DELETED", "left")]
    assert clock.monotonic() - begun == 3600
    await clock.sleep(1799.9)
    assert [event["metadata"]["name"] for event in (await caller.get(EVENTS))["items"]] == ["kept"]
    await clock.sleep(0.1)
    assert (await caller.get(EVENTS))["items"] == []


async def test_a_policy_for_unhealthy_pods_must_be_one_that_exists(caller: Caller) -> None:
    spec = {"minAvailable": 1, "unhealthyPodEvictionPolicy": "Sometimes"}
    body = {"metadata": {"name": "b"}, "spec": spec}
    assert (await caller.call("POST", POLICY.format("v1"), body)).status == 422
    spec["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    created = await caller.create(POLICY.format("v1"), body)
    assert created["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
