"""Strategic merge with the types' own keys, as a real server merges (its answers of 1.33 stand behind the stories)."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import NODES, STRATEGIC, Caller

pytestmark = pytest.mark.anyio

DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/d"
PORTS = [
    {"name": "t", "containerPort": 53, "protocol": "TCP"},
    {"name": "u", "containerPort": 53, "protocol": "UDP"},
]


@pytest.fixture
async def caller() -> Caller:
    caller = Caller(ApiServer(LoopClock()))
    container = {
        "name": "x",
        "image": "y",
        "ports": PORTS,
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    }
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await caller.create(DEPLOYMENT.removesuffix("/d"), {"metadata": {"name": "d"}, "spec": spec})
    await caller.create(NODES, {"metadata": {"name": "n"}})
    return caller


async def patched_pod(caller: Caller, patch: Any) -> Any:
    patched = await caller.patch(DEPLOYMENT, {"spec": {"template": {"spec": patch}}}, STRATEGIC)
    return patched["spec"]["template"]["spec"]


async def test_a_container_may_go_and_all_may_be_replaced(caller: Caller) -> None:
    pod = await patched_pod(caller, {"containers": [{"name": "x", "$patch": "delete"}, {"name": "z", "image": "z"}]})
    assert [each["name"] for each in pod["containers"]] == ["z"]
    pod = await patched_pod(caller, {"containers": [{"$patch": "replace"}, {"name": "only", "image": "o"}]})
    assert [each["name"] for each in pod["containers"]] == ["only"]


async def test_a_volume_keeps_only_what_it_is_told_to_keep(caller: Caller) -> None:
    volume = {"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "cm"}}
    pod = await patched_pod(caller, {"volumes": [volume]})
    assert pod["volumes"][0].keys() == {"name", "configMap"}


async def test_an_unknown_directive_is_an_error(caller: Caller) -> None:
    headers = {"content-type": STRATEGIC}
    refused = await caller.call("PATCH", f"{NODES}/n", {"metadata": {"$patch": "foo"}}, headers=headers)
    assert (refused.status, refused.body["message"]) == (500, "unknown patch type: foo in map: map[$patch:foo]")


async def test_an_item_without_its_key_fits_only_where_there_is_nothing_yet(caller: Caller) -> None:
    headers, patch = {"content-type": STRATEGIC}, {"status": {"conditions": [{"status": "True"}]}}
    first = await caller.call("PATCH", f"{NODES}/n/status", patch, headers=headers)
    assert first.status == 200
    again = await caller.call("PATCH", f"{NODES}/n/status", patch, headers=headers)
    assert again.body["message"] == "map: map[status:True] does not contain declared merge key: type"
