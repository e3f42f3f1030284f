"""Requests that make no sense are refused with a Status; nothing that a client sends makes the server stumble."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import MERGE, NODES, PODS, STRATEGIC, Caller

pytestmark = pytest.mark.anyio

APPLY = "application/apply-patch+yaml"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
DEPLOYMENT = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE}}


@pytest.fixture
async def api() -> Caller:
    api = Caller(ApiServer(LoopClock()))
    await api.pod("p1")
    await api.create(NODES, {"metadata": {"name": "n1"}})
    await api.create(DEPLOYMENTS, DEPLOYMENT)
    return api


@pytest.mark.parametrize(
    ("path", "media", "patch", "code"),
    [
        (f"{PODS}/p1", "application/json-patch+json", [{"op": "remove", "path": [1]}], 422),
        (f"{PODS}/p1", "application/json-patch+json", [{"op": "remove", "path": "/spec/nodeName/x"}], 422),
        (f"{PODS}/p1", STRATEGIC, {"spec": {"$setElementOrder/containers": 1, "containers": []}}, 400),
        (f"{NODES}/n1", STRATEGIC, {"spec": {"podCIDRs": [{"a": "b"}]}}, 400),
        (f"{DEPLOYMENTS}/web/scale", MERGE, {"spec": []}, 400),
        (f"{CONFIGMAPS}/cm", APPLY, b"[" * 5000, 400),
        (f"{CONFIGMAPS}/cm", APPLY, b"data: {a: .inf}", 400),
        (
            f"{CONFIGMAPS}/cm",
            APPLY,
            b"{apiVersion: v1, kind: ConfigMap, metadata: {name: cm}, data: {a: !!binary aGk=}}",
            400,
        ),
    ],
)
async def test_patches_that_make_no_sense_are_refused(
    api: Caller, path: str, media: str, patch: Any, code: int
) -> None:
    refused = await api.call("PATCH", path, patch, headers={"content-type": media}, fieldManager="m")
    assert (refused.status, refused.body["kind"]) == (code, "Status")


async def test_yaml_means_what_its_json_means(api: Caller) -> None:
    applied = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {day: 2026-11-21, 1: one, 2.5: two}\n"
    made = await api.call("PATCH", f"{CONFIGMAPS}/cm", applied, headers={"content-type": APPLY}, fieldManager="m")
    assert made.body["data"] == {"day": "2026-11-21", "1": "one", "2.5": "two"}


async def test_a_schema_that_is_no_schema_is_refused_in_words_of_go(api: Caller) -> None:
    schema = {"type": "object", "properties": {"a": {"additionalProperties": 1}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    refused = await api.call("POST", DEFINITIONS, {"metadata": {"name": "a.b"}, "spec": {"versions": [version]}})
    assert refused.status == 400
    assert refused.body["message"].endswith("boolean or JSON schema expected")


async def test_a_collection_as_it_was_is_deleted_as_far_as_it_is_still_there(api: Caller) -> None:
    await api.pod("p2")
    listed = await api.get(PODS)
    await api.call("DELETE", f"{PODS}/p1", {"gracePeriodSeconds": 0})
    version = listed["metadata"]["resourceVersion"]
    query = {"resourceVersion": version, "resourceVersionMatch": "Exact", "gracePeriodSeconds": "0"}
    deleted = await api.call("DELETE", PODS, headers={}, **query)
    assert deleted.status == 200
    assert (await api.get(PODS))["items"] == []


async def test_no_collection_is_deleted_in_all_namespaces(api: Caller) -> None:
    assert (await api.call("DELETE", "/api/v1/pods")).status == 405
    assert len((await api.get(PODS))["items"]) == 1


@pytest.mark.parametrize("items", [True, 0, "", 1.5])
async def test_items_that_are_neither_a_schema_nor_a_list_are_none(api: Caller, items: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": items}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "a", "kind": "A"}
    spec = {"group": "b.c", "scope": "Cluster", "names": names, "versions": [version]}
    refused = await api.call("POST", DEFINITIONS, {"metadata": {"name": "a.b.c"}, "spec": spec})
    assert refused.status == 422
    assert any(cause["field"].endswith("[a].items") for cause in refused.body["details"]["causes"])


async def test_half_a_character_is_no_text(api: Caller) -> None:
    applied = b'{apiVersion: v1, kind: ConfigMap, metadata: {name: cm}, data: {a: "\\ud800"}}'
    refused = await api.call("PATCH", f"{CONFIGMAPS}/cm", applied, headers={"content-type": APPLY}, fieldManager="m")
    assert refused.status == 400


@pytest.mark.parametrize("raw", [b"\x0a\x02\x08\x01", b"\x12\x06\x0a\x04\x4a\x02\x08\x01", b"\x08\x01\x12\x02\x08\x01"])
async def test_protobuf_with_fields_of_other_types_is_refused(api: Caller, raw: bytes) -> None:
    headers = {"content-type": "application/vnd.kubernetes.protobuf"}
    refused = await api.call("POST", PODS, b"k8s\x00" + raw, headers=headers)
    assert (refused.status, refused.body["kind"]) == (refused.body["code"], "Status")
