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


async def test_containers_merge_by_name_and_stand_in_the_order_asked_for(caller: Caller) -> None:
    change = {"name": "x", "env": [{"name": "C", "value": "3"}, {"name": "A", "$patch": "delete"}]}
    patch = {"$setElementOrder/containers": [{"name": "z"}, {"name": "x"}]}
    pod = await patched_pod(caller, {**patch, "containers": [{"name": "z", "image": "z"}, change]})
    assert [each["name"] for each in pod["containers"]] == ["z", "x"]
    assert pod["containers"][1]["env"] == [{"name": "C", "value": "3"}, {"name": "B", "value": "2"}]
    assert pod["containers"][1]["image"] == "y"


async def test_of_two_ports_of_one_number_the_first_is_meant(caller: Caller) -> None:
    pod = await patched_pod(caller, {"containers": [{"name": "x", "ports": [{"containerPort": 53, "name": "q"}]}]})
    assert pod["containers"][0]["ports"] == [{**PORTS[0], "name": "q"}, PORTS[1]]


async def test_a_container_may_go_and_all_may_be_replaced(caller: Caller) -> None:
    pod = await patched_pod(caller, {"containers": [{"name": "x", "$patch": "delete"}, {"name": "z", "image": "z"}]})
    assert [each["name"] for each in pod["containers"]] == ["z"]
    pod = await patched_pod(caller, {"containers": [{"$patch": "replace"}, {"name": "only", "image": "o"}]})
    assert [each["name"] for each in pod["containers"]] == ["only"]


async def test_a_volume_keeps_only_what_it_is_told_to_keep(caller: Caller) -> None:
    volume = {"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "cm"}}
    pod = await patched_pod(caller, {"volumes": [volume]})
    assert pod["volumes"][0].keys() == {"name", "configMap"}


async def test_a_strategy_that_recreates_forgets_how_to_roll(caller: Caller) -> None:
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert (await caller.patch(DEPLOYMENT, patch, STRATEGIC))["spec"]["strategy"] == {"type": "Recreate"}


async def test_tolerations_are_replaced_as_a_whole(caller: Caller) -> None:
    await patched_pod(caller, {"tolerations": [{"key": "a", "operator": "Exists"}]})
    pod = await patched_pod(caller, {"tolerations": [{"key": "b", "operator": "Exists"}]})
    assert [each["key"] for each in pod["tolerations"]] == ["b"]


async def test_a_set_is_ordered_by_the_patch_and_then_as_it_was(caller: Caller) -> None:
    async def after(metadata: dict[str, list[str]]) -> Any:
        patched = await caller.patch(f"{NODES}/n", {"metadata": metadata}, STRATEGIC)
        return patched["metadata"].get("finalizers")

    assert await after({"finalizers": ["a/b", "a/c"]}) == ["a/b", "a/c"]
    assert await after({"finalizers": ["a/d", "a/b"]}) == ["a/d", "a/b", "a/c"]
    order = ["a/c", "a/d", "a/b"]
    assert await after({"$setElementOrder/finalizers": order, "finalizers": ["a/d"]}) == order
    assert await after({"finalizers": ["a/z", "a/c"]}) == ["a/z", "a/c", "a/d", "a/b"]
    assert await after({"$deleteFromPrimitiveList/finalizers": ["a/d", "a/b", "a/z", "a/c"]}) is None


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


async def test_custom_resources_know_no_strategic_merge(caller: Caller) -> None:
    definition = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    await caller.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    await caller.server.clock.sleep(1)
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    await caller.create("/apis/example.com/v1/things", thing)
    refused = await caller.call("PATCH", "/apis/example.com/v1/things/t", {}, headers={"content-type": STRATEGIC})
    assert refused.status == 415
    assert refused.body["message"] == (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )
