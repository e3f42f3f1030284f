"""Owners of fields from before ownership was tracked, and what stays cheap: beyond the stories."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.managedfields.fieldmanager import Owners
from kubesim.server.api import Json, Response
from kubesim_support.caller import BUDGETS, NODES, PODS, Caller

pytestmark = pytest.mark.anyio
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


async def apply(caller: Caller, path: str, body: Json, manager: str = "one", **query: str) -> Response:
    """Apply something, whatever comes of it."""
    headers = {"content-type": "application/apply-patch+yaml"}
    return await caller.call("PATCH", path, body, headers=headers, fieldManager=manager, **query)


async def write(caller: Caller, method: str, path: str, body: Json, agent: str) -> Any:
    """Write as this user agent."""
    headers = {"user-agent": f"{agent}/1.0", "content-type": "application/merge-patch+json"}
    if method != "PATCH":
        headers["content-type"] = "application/json"
    response = await caller.call(method, path, body, headers=headers)
    assert response.status < 300, response.body
    return response.body


def settings(name: str = "x", **data: str) -> dict[str, Any]:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def owners(body: Any) -> dict[str, Any]:
    """What each manager owns."""
    return {entry["manager"]: entry["fieldsV1"] for entry in body["metadata"]["managedFields"]}


async def test_an_object_that_was_never_applied_has_no_managed_fields(caller: Caller) -> None:
    await write(caller, "POST", MAPS, settings(a="1"), "creator")
    assert "managedFields" not in (await write(caller, "PATCH", f"{MAPS}/x", {"data": {"a": "2"}}, "ed"))["metadata"]


async def test_the_log_names_the_managers_of_earlier_writes(caller: Caller) -> None:
    await write(caller, "POST", MAPS, settings(a="1", b="1"), "creator")
    await write(caller, "PATCH", f"{MAPS}/x", {"data": {"a": "2"}}, "ed")
    await write(caller, "PATCH", f"{MAPS}/x", {"data": {"a": "2"}}, "idler")
    response = await apply(caller, f"{MAPS}/x", settings(c="1"))
    assert owners(response.body) == {
        "creator": {"f:data": {".": {}, "f:b": {}}},
        "ed": {"f:data": {"f:a": {}}},
        "one": {"f:data": {"f:c": {}}},
    }


async def test_what_the_log_has_forgotten_is_before_first_apply(caller: Caller) -> None:
    await write(caller, "POST", MAPS, settings(a="1", b="1"), "creator")
    table = caller.server.store.table("configmaps")
    table.forget(caller.server.store.revision)
    await write(caller, "PATCH", f"{MAPS}/x", {"data": {"a": "2"}}, "ed")
    response = await apply(caller, f"{MAPS}/x", settings(c="1"))
    assert owners(response.body) == {
        "before-first-apply": {"f:data": {".": {}, "f:b": {}}},
        "ed": {"f:data": {"f:a": {}}},
        "one": {"f:data": {"f:c": {}}},
    }


async def test_an_object_of_the_same_name_before_is_another(caller: Caller) -> None:
    await write(caller, "POST", MAPS, settings(a="1"), "first")
    await caller.ok("DELETE", f"{MAPS}/x")
    await write(caller, "POST", MAPS, settings(a="1"), "second")
    assert owners((await apply(caller, f"{MAPS}/x", settings(c="1"))).body).keys() == {"second", "one"}


async def test_what_the_server_itself_writes_has_no_owner(caller: Caller) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await write(caller, "POST", PODS, pod, "creator")
    await caller.ok("POST", f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n1"}})
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "1"}}}
    spec = owners((await apply(caller, f"{PODS}/p", body)).body)["creator"]["f:spec"]
    assert "f:containers" in spec
    assert spec.keys().isdisjoint({"f:nodeName", "f:tolerations", "f:priority"})


async def test_a_status_is_owned_through_its_subresource(caller: Caller) -> None:
    await write(caller, "POST", NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1"}}}, "creator")
    await write(caller, "PATCH", f"{NODES}/n/status", {"status": {"capacity": {"cpu": "2"}}}, "kubelet")
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"unschedulable": True}}
    entries = (await apply(caller, f"{NODES}/n", body)).body["metadata"]["managedFields"]
    assert [(entry["manager"], entry.get("subresource")) for entry in entries] == [("one", None), ("kubelet", "status")]


async def test_versions_of_one_kind_share_their_objects(caller: Caller) -> None:
    old = BUDGETS.replace("/v1/", "/v1beta1/")
    body = {"kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {"minAvailable": 1}}
    created = await apply(caller, f"{old}/b", {**body, "apiVersion": "policy/v1beta1"})
    assert (created.status, created.body["apiVersion"]) == (201, "policy/v1beta1")
    applied = await apply(caller, f"{BUDGETS}/b", {**body, "apiVersion": "policy/v1"})
    entries = applied.body["metadata"]["managedFields"]
    # An applier stays itself when it moves to another version.
    assert [(entry["manager"], entry["apiVersion"]) for entry in entries] == [("one", "policy/v1")]


async def test_an_eviction_leaves_managed_fields_alone(caller: Caller) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}
    created = await apply(caller, f"{PODS}/p", {"apiVersion": "v1", "kind": "Pod", **pod})
    assert (await caller.evict("p")).status == 201
    found = await caller.get(f"{PODS}/p")
    assert "deletionTimestamp" in found["metadata"]
    assert owners(found) == owners(created.body)


async def test_a_watch_sees_one_change_for_one_apply(caller: Caller) -> None:
    stream = await caller.watch(MAPS)
    for _ in range(2):
        await apply(caller, f"{MAPS}/x", settings(a="1"))
    await apply(caller, f"{MAPS}/x", settings(a="2"))
    events = [await stream.__anext__() for _ in range(2)]
    await stream.aclose()
    assert [(event.type, event.object["data"]) for event in events] == [("ADDED", {"a": "1"}), ("MODIFIED", {"a": "2"})]
    assert owners(events[1].object) == {"one": {"f:data": {"f:a": {}}}}


async def test_finalizers_under_deletion_follow_their_appliers(caller: Caller) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "finalizers": ["example.com/a"]}}
    await apply(caller, f"{NODES}/n", body)
    await caller.ok("DELETE", f"{NODES}/n")
    gone = await apply(caller, f"{NODES}/n", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    assert gone.status == 200
    assert (await caller.call("GET", f"{NODES}/n")).status == 404


async def test_writes_that_concern_no_managed_fields_are_passed_through(caller: Caller) -> None:
    """What the hot path costs: nothing is read but one key of the metadata."""
    owners_of = Owners(caller.server.store, caller.server.stamps)
    old = await caller.create(MAPS, settings(a="1"))
    call: Any = None
    assert owners_of.created(call, old) is old
    assert owners_of.updated(call, old, {**old}) is old
