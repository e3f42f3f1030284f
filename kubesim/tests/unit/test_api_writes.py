"""Writes and deletions beyond the recordings: exact instants, generations, namespaces, and what may not leak."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.kinds.workloads import Plain
from kubesim.server.resource import Resource
from kubesim_support.caller import NODES, PODS, STRATEGIC, Caller

pytestmark = pytest.mark.anyio


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


async def test_a_caller_cannot_change_what_it_has_stored(caller: Caller) -> None:
    body: dict[str, Any] = {"metadata": {"name": "n1", "labels": {"a": "1"}}, "spec": {"taints": []}}
    await caller.create(NODES, body)
    body["metadata"]["labels"]["a"] = "2"
    patch: dict[str, Any] = {"metadata": {"annotations": {"b": "1"}}}
    await caller.patch(f"{NODES}/n1", patch)
    patch["metadata"]["annotations"]["b"] = "2"
    metadata = (await caller.get(f"{NODES}/n1"))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"a": "1"}, {"b": "1"})


async def test_an_answer_once_given_does_not_change(caller: Caller) -> None:
    first = await caller.create(NODES, {"metadata": {"name": "n1"}})
    await caller.patch(f"{NODES}/n1", {"spec": {"unschedulable": True}})
    await caller.patch(
        f"{NODES}/n1/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC
    )
    assert "unschedulable" not in first["spec"]
    assert "conditions" not in first["status"]


async def test_a_priority_class_gives_a_pod_its_priority(caller: Caller) -> None:
    await caller.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    pod = await caller.pod("a", priorityClassName="high")
    assert pod["spec"]["priority"] == 1000
    assert (await caller.pod("b", priorityClassName="system-node-critical"))["spec"]["priority"] == 2_000_001_000
    spec = {"containers": [{"name": "c", "image": "i"}], "priorityClassName": "none"}
    assert (await caller.call("POST", PODS, {"metadata": {"name": "c"}, "spec": spec})).status == 403


async def test_kinds_may_be_added_while_the_server_runs(caller: Caller) -> None:
    path = "/apis/example.org/v1/things"
    assert (await caller.call("GET", path)).body == "404 page not found\n"
    caller.server.registry.add(
        Resource(group="example.org", version="v1", plural="things", kind="Thing", namespaced=False, strategy=Plain())
    )
    await caller.create(path, {"metadata": {"name": "t"}, "spec": {"size": 1}})
    assert [item["metadata"]["name"] for item in (await caller.get(path))["items"]] == ["t"]
    assert "example.org" in [group["name"] for group in (await caller.get("/apis"))["groups"]]
    caller.server.registry.remove("example.org", "v1", "things")
    assert (await caller.call("GET", path)).status == 404
