"""The subresource scale, the expiry of events, and what budgets may say: what the server does for its controllers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import Caller, next_events

pytestmark = pytest.mark.anyio

RECORDING = Path(__file__).parents[1] / "conformance" / "recordings" / "pdb-status.json"
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


async def test_a_scale_is_read_changed_and_patched(caller: Caller) -> None:
    await a_deployment(caller)
    scale = await caller.get(f"{DEPLOYMENTS}/web/scale")
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 3})
    assert scale["status"] == {"replicas": 0, "selector": "a=1,b=2,c"}
    changed = await caller.ok("PUT", f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": 5}})
    assert changed["spec"] == {"replicas": 5}
    patched = await caller.patch(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 0}})
    assert patched["spec"] == {}
    deployment = await caller.get(f"{DEPLOYMENTS}/web")
    assert (deployment["spec"]["replicas"], deployment["metadata"]["generation"]) == (0, 3)


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


async def test_scales_are_told_of_where_there_are_some(caller: Caller) -> None:
    listed = await caller.get("/apis/apps/v1")
    scales = {each["name"]: each for each in listed["resources"] if each["name"].endswith("/scale")}
    assert sorted(scales) == ["deployments/scale", "replicasets/scale", "statefulsets/scale"]
    assert scales["deployments/scale"] == {
        "name": "deployments/scale",
        "singularName": "",
        "namespaced": True,
        "group": "autoscaling",
        "version": "v1",
        "kind": "Scale",
        "verbs": ["get", "patch", "update"],
    }


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


@pytest.mark.parametrize("index", range(88, 93))
async def test_an_impossible_budget_is_refused_as_recorded(caller: Caller, index: int) -> None:
    step = json.loads(RECORDING.read_text())["steps"][index]
    response = await caller.call("POST", POLICY.format("v1"), step["request"]["body"])
    assert response.status == step["response"]["status"]
    assert json.loads(re.sub("0x[0-9a-f]+", "<pointer>", json.dumps(response.body))) == step["response"]["body"]


async def test_an_empty_selector_takes_nothing_in_the_old_version(caller: Caller) -> None:
    old, new = POLICY.format("v1beta1"), POLICY.format("v1")
    await caller.create(old, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {}}})
    assert (await caller.get(f"{old}/b"))["spec"]["selector"] == {}
    assert (await caller.get(f"{new}/b"))["spec"]["selector"] == {
        "matchExpressions": [{"key": "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", "operator": "Exists"}]
    }


async def test_a_policy_for_unhealthy_pods_must_be_one_that_exists(caller: Caller) -> None:
    spec = {"minAvailable": 1, "unhealthyPodEvictionPolicy": "Sometimes"}
    body = {"metadata": {"name": "b"}, "spec": spec}
    assert (await caller.call("POST", POLICY.format("v1"), body)).status == 422
    spec["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    created = await caller.create(POLICY.format("v1"), body)
    assert created["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
