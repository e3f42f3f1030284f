"""Owners of fields from before ownership was tracked, and what stays cheap: beyond the stories."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Json, Response
from kubesim_support.caller import PODS, Caller

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


async def test_what_the_server_itself_writes_has_no_owner(caller: Caller) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await write(caller, "POST", PODS, pod, "creator")
    await caller.ok("POST", f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n1"}})
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "1"}}}
    spec = owners((await apply(caller, f"{PODS}/p", body)).body)["creator"]["f:spec"]
    assert "f:containers" in spec
    assert spec.keys().isdisjoint({"f:nodeName", "f:tolerations", "f:priority"})
