"""The documents of OpenAPI, and discovery of all groups at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Response
from kubesim_support.caller import Caller

pytestmark = pytest.mark.anyio

KIND = "x-kubernetes-group-version-kind"
ALL_AT_ONCE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
SCHEMA: dict[str, Any] = {
    "description": "A thing.",
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"size": {"type": "integer", "default": 1}, "bound": {"x-kubernetes-int-or-string": True}},
        }
    },
}
DEFINITION = {
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "singular": "thing", "shortNames": ["th"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": SCHEMA},
            }
        ],
    },
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


async def index(caller: Caller) -> dict[str, str]:
    """The URL of each document."""
    paths = orjson.loads((await caller.call("GET", "/openapi/v3")).body)["paths"]
    return {name: entry["serverRelativeURL"] for name, entry in paths.items()}


async def fetch(caller: Caller, url: str, accept: str = "application/json", **headers: str) -> Response:
    path, _, query = url.partition("?")
    parameters = dict([query.split("=")]) if query else {}
    return await caller.call("GET", path, headers={"accept": accept, **headers}, **parameters)


async def document(caller: Caller, name: str) -> Any:
    return orjson.loads((await fetch(caller, f"/openapi/{name}")).body)


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


async def serve_things(caller: Caller) -> None:
    await caller.create(DEFINITIONS, DEFINITION)
    await caller.server.clock.sleep(1)


class TestVersion3:
    async def test_the_index_names_a_document_for_each_group_and_version(self, caller: Caller) -> None:
        urls = await index(caller)
        assert {"api/v1", "apis/apps/v1", "apis/policy/v1", "apis/policy/v1beta1"} <= urls.keys()
        assert urls["apis/apps/v1"].startswith("/openapi/v3/apis/apps/v1?hash=")

    async def test_every_reference_leads_somewhere(self, caller: Caller) -> None:
        await serve_things(caller)
        for name in await index(caller):
            found = await document(caller, f"v3/{name}")
            known = {f"#/components/schemas/{each}" for each in found["components"]["schemas"]}
            assert set(references(found)) <= known, name

    async def test_a_path_says_its_kind_and_that_writes_may_be_strict(self, caller: Caller) -> None:
        paths = (await document(caller, "v3/apis/apps/v1"))["paths"]
        patch = paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
        assert patch[KIND] == {"group": "apps", "version": "v1", "kind": "Deployment"}
        assert patch["operationId"] == "patchAppsV1NamespacedDeployment"
        assert "fieldValidation" in [each["name"] for each in patch["parameters"]]
        scale = paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]
        assert scale["get"][KIND] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        assert paths["/apis/apps/v1/deployments"]["get"]["operationId"] == "listAppsV1DeploymentForAllNamespaces"

    async def test_a_kind_says_which_it_is(self, caller: Caller) -> None:
        schemas = (await document(caller, "v3/apis/policy/v1beta1"))["components"]["schemas"]
        budget = schemas["io.k8s.api.policy.v1beta1.PodDisruptionBudget"]
        assert budget[KIND] == [{"group": "policy", "version": "v1beta1", "kind": "PodDisruptionBudget"}]

    async def test_custom_resources_bring_their_own_schema(self, caller: Caller) -> None:
        await serve_things(caller)
        found = await document(caller, "v3/apis/example.com/v1")
        thing = found["components"]["schemas"]["com.example.v1.Thing"]
        assert thing["description"] == "A thing."
        assert thing["properties"].keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert thing["properties"]["spec"] == SCHEMA["properties"]["spec"]
        assert thing[KIND] == [{"group": "example.com", "version": "v1", "kind": "Thing"}]
        things = found["components"]["schemas"]["com.example.v1.ThingList"]
        assert things["properties"]["items"]["items"] == {"$ref": "#/components/schemas/com.example.v1.Thing"}
        assert "/apis/example.com/v1/namespaces/{namespace}/things/{name}/status" in found["paths"]

    async def test_a_document_changes_with_what_it_tells_of_and_no_other_does(self, caller: Caller) -> None:
        before = await index(caller)
        await serve_things(caller)
        served = await index(caller)
        assert {name: url for name, url in served.items() if before.get(name) != url}.keys() == {"apis/example.com/v1"}
        wider = {**SCHEMA["properties"], "more": {"type": "string"}}
        patch = [{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties", "value": wider}]
        await caller.patch(f"{DEFINITIONS}/things.example.com", patch, "application/json-patch+json")
        await caller.server.clock.sleep(1)
        assert (await index(caller))["apis/example.com/v1"] != served["apis/example.com/v1"]
        found = await document(caller, "v3/apis/example.com/v1")
        assert "more" in found["components"]["schemas"]["com.example.v1.Thing"]["properties"]

    async def test_a_document_is_made_once(self, caller: Caller) -> None:
        first = await fetch(caller, "/openapi/v3/api/v1")
        assert (await fetch(caller, "/openapi/v3/api/v1")).body is first.body

    async def test_by_its_hash_it_may_be_kept_for_ever(self, caller: Caller) -> None:
        url = (await index(caller))["api/v1"]
        found = await fetch(caller, url)
        assert (found.status, found.headers["cache-control"]) == (200, "public, immutable")
        again = await fetch(caller, "/openapi/v3/api/v1", **{"if-none-match": found.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        other = await fetch(caller, "/openapi/v3/api/v1?hash=ABC")
        assert (other.status, other.headers["location"]) == (301, url)

    async def test_a_group_that_is_not_served_has_none(self, caller: Caller) -> None:
        assert (await fetch(caller, "/openapi/v3/apis/missing/v1")).status == 404


class TestVersion2:
    async def test_it_is_not_served(self, caller: Caller) -> None:
        assert (await fetch(caller, "/openapi/v2")).status == 404

    async def test_a_client_that_takes_only_protobuf_has_to_fall_back(self, caller: Caller) -> None:
        protobuf = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
        assert (await fetch(caller, "/openapi/v3/api/v1", protobuf)).status == 406
        assert (await fetch(caller, "/openapi/v3/api/v1", f"{protobuf}, application/json")).status == 200


class TestDiscovery:
    @staticmethod
    async def all_of(caller: Caller, path: str, accept: str = ALL_AT_ONCE) -> Any:
        return (await fetch(caller, path, accept)).body

    async def test_all_groups_come_with_their_resources(self, caller: Caller) -> None:
        await serve_things(caller)
        found = await self.all_of(caller, "/apis", f"{ALL_AT_ONCE},application/json")
        assert (found["kind"], found["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
        groups = {item["metadata"]["name"]: item["versions"] for item in found["items"]}
        assert [each["version"] for each in groups["policy"]] == ["v1", "v1beta1"]
        assert groups["example.com"][0]["resources"] == [
            {
                "resource": "things",
                "responseKind": {"group": "", "version": "", "kind": "Thing"},
                "scope": "Namespaced",
                "singularResource": "thing",
                "verbs": ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
                "shortNames": ["th"],
                "subresources": [
                    {
                        "subresource": "status",
                        "responseKind": {"group": "", "version": "", "kind": "Thing"},
                        "verbs": ["get", "patch", "update"],
                    }
                ],
            }
        ]

    async def test_the_core_group_has_no_name(self, caller: Caller) -> None:
        (core,) = (await self.all_of(caller, "/api"))["items"]
        assert core["metadata"] == {"creationTimestamp": None}
        pods = next(each for each in core["versions"][0]["resources"] if each["resource"] == "pods")
        eviction = next(each for each in pods["subresources"] if each["subresource"] == "eviction")
        assert eviction["responseKind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}

    @pytest.mark.parametrize(
        "accept", ["application/json", "*/*", ALL_AT_ONCE.replace("v2", "v2beta1") + ",application/json"]
    )
    async def test_others_get_the_plain_list(self, caller: Caller, accept: str) -> None:
        assert (await self.all_of(caller, "/apis", accept))["kind"] == "APIGroupList"
