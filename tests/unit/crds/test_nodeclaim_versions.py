"""NodeClaims of two versions in one storage: whichever wrote an object, it stays readable and writable through both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubesim.apiextensions.values import SchemaValidator
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.types.schema import Schema
from kubesim_support.caller import MERGE, Caller
from support.schemas import (
    ANY_VERSION,
    FULL_V1,
    FULL_V1BETA1,
    OLD_ONLY,
    REFERENCE,
    V1,
    V1BETA1,
    VERSIONS,
    claim,
)

from gracectl.cli.crds import shipped_definitions

APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
RULES = "x-kubernetes-validations"
SINCE = "2026-11-21T08:00:00Z"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": SINCE}
DRAINED = {
    "type": "Drained", "status": "False", "reason": "Draining", "message": "1 pod: shop/web-1 (budget shop/web)",
    "lastTransitionTime": SINCE, "observedGeneration": 1,
}  # fmt: skip

OLD_CLAIMS = {
    **{f"{name} (v1beta1)": claim(V1BETA1, **spec) for name, spec in {**ANY_VERSION, **OLD_ONLY}.items()},
    "everything (v1beta1)": FULL_V1BETA1,
}


@pytest.fixture
def api() -> Caller:
    """A client of a server that has what ships."""
    server = ApiServer(LoopClock())
    server.predefine(*shipped_definitions())
    return Caller(server)


def path(version: str) -> str:
    return f"/apis/{version}/nodeclaims"


def schema(version: str) -> dict[str, Any]:
    """The schema of a version of the shipped definition."""
    (definition,) = (each for each in shipped_definitions() if each["metadata"]["name"] == "nodeclaims.karpenter.sh")
    versions = {f"karpenter.sh/{each['name']}": each for each in definition["spec"]["versions"]}
    whole: dict[str, Any] = versions[version]["schema"]["openAPIV3Schema"]
    return whole


@pytest.mark.parametrize("name", OLD_CLAIMS)
async def test_what_v1beta1_wrote_is_written_on_through_v1(api: Caller, name: str) -> None:
    manifest = OLD_CLAIMS[name]
    await api.create(path(V1BETA1), manifest)
    place = f"{path(V1)}/{manifest['metadata']['name']}"
    await api.patch(f"{place}/status", {"status": {"nodeName": "n", "conditions": [READY]}})
    metadata = {"finalizers": ["karpenter.sh/termination"], "annotations": {"example.com/a": "b"}}
    await api.patch(place, {"metadata": metadata})
    operation = {"op": "add", "path": "/status/conditions/-", "value": DRAINED}
    await api.patch(f"{place}/status", [operation], JSON_PATCH)
    seen = await api.get(place)
    await api.ok("PUT", f"{place}/status", {**seen, "status": {**seen["status"], "providerID": "sim:///a/i-1"}})
    seen = await api.get(place)
    await api.ok("PUT", place, {**seen, "metadata": {**seen["metadata"], "labels": {"touched": "yes"}}})
    applied = {"apiVersion": V1, "kind": "NodeClaim", "metadata": {"name": seen["metadata"]["name"]}}
    options = {"fieldManager": "gracectl", "force": "true"}
    response = await api.call(
        "PATCH", f"{place}/status", {**applied, "status": {"conditions": [{**DRAINED, "status": "True"}]}},
        headers={"content-type": APPLY}, **options,
    )  # fmt: skip
    assert response.status == 200, response.body
    older = await api.get(f"{path(V1BETA1)}/{manifest['metadata']['name']}")
    assert older["spec"] == manifest["spec"]
    assert [(each["type"], each["status"]) for each in older["status"]["conditions"]] == [
        ("Ready", "True"),
        ("Drained", "True"),
    ]
    assert older["status"]["providerID"] == "sim:///a/i-1"
    assert older["metadata"]["labels"]["touched"] == "yes"
    assert older["metadata"]["generation"] == 1
    await api.ok("DELETE", place)
    await api.patch(place, {"metadata": {"finalizers": None}})
    assert (await api.call("GET", place)).status == 404


async def test_what_v1_wrote_is_written_on_through_v1beta1(api: Caller) -> None:
    await api.create(path(V1), FULL_V1)
    place = f"{path(V1BETA1)}/{FULL_V1['metadata']['name']}"
    await api.patch(f"{place}/status", {"status": {"nodeName": "n"}})
    await api.patch(place, {"metadata": {"finalizers": None}})
    assert (await api.get(f"{path(V1)}/{FULL_V1['metadata']['name']}"))["spec"] == FULL_V1["spec"]


@pytest.mark.parametrize("name", OLD_CLAIMS)
def test_that_does_not_rest_on_ratcheting(name: str) -> None:
    """Nothing in the schema of v1 but its rules for new objects speaks against what v1beta1 took."""
    assert SchemaValidator(Schema(schema(V1))).faults(OLD_CLAIMS[name]) == []


def nodes(raw: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all that is in it, by its place."""
    yield place, raw
    for name, field in raw.get("properties", {}).items():
        yield from nodes(field, f"{place}.{name}")
    for key in ("items", "additionalProperties"):
        if key in raw:
            yield from nodes(raw[key], f"{place}[]")


def test_the_versions_differ_in_what_is_asked_of_new_objects_and_in_nothing_else() -> None:
    newer, older = dict(nodes(schema(V1))), dict(nodes(schema(V1BETA1)))
    assert newer.keys() == older.keys()
    stricter = set()
    for place, node in newer.items():
        rules, other_rules = node.get(RULES, []), older[place].get(RULES, [])
        for rule in rules:
            if rule not in other_rules:
                assert rule["optionalOldSelf"]
                assert rule["rule"].startswith("oldSelf.hasValue() || ")
                stricter.add(place)
        assert all(rule in rules for rule in other_rules)
        own = ("properties", "items", "additionalProperties", RULES)
        assert {key: node[key] for key in node if key not in own} == {
            key: value for key, value in older[place].items() if key not in own
        }
    reference = ".spec.nodeClassRef"
    assert stricter == {reference, f"{reference}.group", f"{reference}.kind", f"{reference}.name"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("had", "gets"), [("15m", "10m"), ("15m", "900s"), ("15m", None), (None, "15m")])
async def test_the_grace_of_a_claim_is_immutable(api: Caller, version: str, had: str | None, gets: str | None) -> None:
    await api.create(path(V1), claim(**({"terminationGracePeriod": had} if had else {})))
    change = {"spec": {"terminationGracePeriod": gets}}
    refused = await api.call("PATCH", f"{path(version)}/c", change, headers={"content-type": MERGE})
    assert refused.status == 422
    said = {cause["field"]: cause["message"] for cause in refused.body["details"]["causes"]}
    assert list(said) == ["spec.terminationGracePeriod", "spec"]
    assert said["spec.terminationGracePeriod"] == (
        "Forbidden: cannot be changed, added or taken away once the NodeClaim exists: running pods rely on it; delete "
        "the NodeClaim and let a new one with the new value take its place. To end this one sooner, annotate it with "
        "karpenter.sh/nodeclaim-termination-timestamp and an earlier instant"
    )
    assert said["spec"].endswith("the spec cannot be changed; delete the NodeClaim and let a new one take its place")


@pytest.mark.parametrize("change", [
    {"expireAfter": "1h"},
    {"requirements": [{"key": "a", "operator": "Exists"}]},
    {"nodeClassRef": {**REFERENCE, "name": "other"}},
    {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    {"resources": {"requests": {"cpu": "1"}}}, {"kubelet": {"maxPods": 1}},
], ids=lambda change: str(next(iter(change))))  # fmt: skip
async def test_nothing_else_of_the_spec_changes_either(api: Caller, change: dict[str, Any]) -> None:
    await api.create(path(V1), claim(terminationGracePeriod="15m"))
    refused = await api.call("PATCH", f"{path(V1)}/c", {"spec": change}, headers={"content-type": MERGE})
    assert [cause["field"] for cause in refused.body["details"]["causes"]] == ["spec"]
    assert "the spec cannot be changed" in refused.body["message"]


async def test_the_spec_of_an_older_claim_does_not_change_through_the_newer_version(api: Caller) -> None:
    await api.create(path(V1BETA1), FULL_V1BETA1)
    place = f"{path(V1)}/{FULL_V1BETA1['metadata']['name']}"
    for change in ({"kubelet": {"maxPods": 59}}, {"nodeClassRef": {"group": "karpenter.k8s.aws"}}):
        refused = await api.call("PATCH", place, {"spec": change}, headers={"content-type": MERGE})
        assert [cause["field"] for cause in refused.body["details"]["causes"]] == ["spec"]


async def test_the_annotation_that_ends_it_sooner_can_be_written(api: Caller) -> None:
    await api.create(path(V1), claim(terminationGracePeriod="15m"))
    deadline = {"karpenter.sh/nodeclaim-termination-timestamp": SINCE}
    patched = await api.patch(f"{path(V1)}/c", {"metadata": {"annotations": deadline}})
    assert patched["metadata"]["annotations"] == deadline


@pytest.mark.parametrize(("status", "field"), [
    ({"conditions": [{"type": "Ready", "status": "True"}]}, "status.conditions[0].lastTransitionTime"),
    ({"conditions": [{**READY, "status": "Yes"}]}, "status.conditions[0].status"),
    ({"conditions": [{**READY, "type": "not ready"}]}, "status.conditions[0].type"),
    ({"conditions": [{**READY, "reason": "so what"}]}, "status.conditions[0].reason"),
    ({"conditions": [{**READY, "message": "x" * 32769}]}, "status.conditions[0].message"),
    ({"conditions": [{**READY, "lastTransitionTime": "now"}]}, "status.conditions[0].lastTransitionTime"),
    ({"conditions": [{**READY, "observedGeneration": -1}]}, "status.conditions[0].observedGeneration"),
    ({"conditions": [READY, READY]}, "status.conditions[1]"),
    ({"capacity": {"cpu": "much"}}, "status.capacity.cpu"),
    ({"nodeName": 1}, "status.nodeName"),
    ({"lastPodEventTime": "now"}, "status.lastPodEventTime"),
])  # fmt: skip
async def test_a_status_that_cannot_be(api: Caller, status: dict[str, Any], field: str) -> None:
    await api.create(path(V1), claim())
    place = f"{path(V1)}/c/status"
    refused = await api.call("PATCH", place, {"status": status}, headers={"content-type": MERGE})
    assert field in [cause["field"] for cause in refused.body["details"]["causes"]]


async def test_a_status_is_written_as_a_status_only(api: Caller) -> None:
    created = await api.create(path(V1), {**claim(), "status": {"nodeName": "n"}})
    assert "status" not in created
    patched = await api.patch(f"{path(V1)}/c", {"status": {"nodeName": "n"}})
    assert "status" not in patched
