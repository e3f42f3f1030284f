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
    async def test_every_reference_leads_somewhere(self, caller: Caller) -> None:
        await serve_things(caller)
        for name in await index(caller):
            schema_document = await document(caller, f"v3/{name}")
            known = {f"#/components/schemas/{each}" for each in schema_document["components"]["schemas"]}
            assert set(references(schema_document)) <= known, name

    async def test_a_document_is_made_once(self, caller: Caller) -> None:
        first = await fetch(caller, "/openapi/v3/api/v1")
        assert (await fetch(caller, "/openapi/v3/api/v1")).body is first.body

    async def test_by_its_hash_it_may_be_kept_for_ever(self, caller: Caller) -> None:
        url = (await index(caller))["api/v1"]
        response = await fetch(caller, url)
        assert (response.status, response.headers["cache-control"]) == (200, "public, immutable")
        again = await fetch(caller, "/openapi/v3/api/v1", **{"if-none-match": response.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        other = await fetch(caller, "/openapi/v3/api/v1?hash=ABC")
        assert (other.status, other.headers["location"]) == (301, url)

    async def test_a_group_that_is_not_served_has_none(self, caller: Caller) -> None:
        assert (await fetch(caller, "/openapi/v3/apis/missing/v1")).status == 404


class TestVersion2:
    async def test_a_client_that_takes_only_protobuf_has_to_fall_back(self, caller: Caller) -> None:
        protobuf = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
        assert (await fetch(caller, "/openapi/v3/api/v1", protobuf)).status == 406
        assert (await fetch(caller, "/openapi/v3/api/v1", f"{protobuf}, application/json")).status == 200


class TestDiscovery:
    @staticmethod
    async def all_of(caller: Caller, path: str, accept: str = ALL_AT_ONCE) -> Any:
        return (await fetch(caller, path, accept)).body

    @pytest.mark.parametrize(
        "accept", ["application/json", "*/*", ALL_AT_ONCE.replace("v2", "v2beta1") + ",application/json"]
    )
    async def test_others_get_the_plain_list(self, caller: Caller, accept: str) -> None:
        assert (await self.all_of(caller, "/apis", accept))["kind"] == "APIGroupList"
