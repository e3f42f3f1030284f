"""The life of definitions: when they are served, what a change of theirs does, and how they go."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import EventStream
from kubesim_support.caller import MERGE, Caller
from kubesim_support.definitions import DEFINITIONS, NUMBER, RULES, TEXT, definition, rule, serving, version, whole

pytestmark = pytest.mark.anyio

THINGS = definition("things", [version("v1", whole({"size": NUMBER}))])
PATH = "/apis/c.example/v1/things"


def thing(name: str = "a", api_version: str = "c.example/v1", **spec: Any) -> dict[str, Any]:
    """An object."""
    return {"apiVersion": api_version, "kind": "Thing", "metadata": {"name": name}, "spec": spec}


def conditions(raw: dict[str, Any]) -> dict[str, str]:
    """The conditions of a definition: type to status."""
    return {each["type"]: each["status"] for each in raw["status"]["conditions"] or ()}


async def seen(stream: EventStream) -> tuple[float, str, dict[str, str]]:
    """The next event of a watch of definitions: when, what, with which conditions."""
    event = await stream.__anext__()
    return round(anyio.current_time(), 6), event.type, conditions(event.object)


async def test_a_watch_sees_a_definition_become_served_step_by_step() -> None:
    api = Caller(ApiServer(LoopClock()))
    stream = await api.watch(DEFINITIONS)
    await api.create(DEFINITIONS, THINGS)
    assert (await api.call("GET", PATH)).status == 404
    assert await seen(stream) == (0.0, "ADDED", {})
    assert await seen(stream) == (0.02, "MODIFIED", {"NamesAccepted": "True", "Established": "False"})
    assert (await api.call("GET", PATH)).status == 404
    assert await seen(stream) == (0.1, "MODIFIED", {"NamesAccepted": "True", "Established": "True"})
    assert (await api.get(PATH))["kind"] == "ThingList"


async def test_it_is_served_in_time_without_a_request() -> None:
    api = Caller(ApiServer(LoopClock()))
    await api.create(DEFINITIONS, THINGS)
    await anyio.sleep(0.1)
    assert (await api.get(PATH))["items"] == []


async def test_defaults_of_a_definition() -> None:
    api = Caller(ApiServer(LoopClock()))
    created = await api.create(DEFINITIONS, THINGS)
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    assert created["spec"]["names"] == names
    assert created["spec"]["conversion"] == {"strategy": "None"}
    assert created["status"]["storedVersions"] == ["v1"]
    assert created["metadata"]["generation"] == 1


async def test_names_become_free_with_the_definition_that_had_them() -> None:
    other = definition("others", [version("v1", whole({}))], names={"plural": "others", "kind": "Thing"})
    api = await serving(THINGS, other)
    waiting = await api.get(f"{DEFINITIONS}/others.c.example")
    assert conditions(waiting) == {"NamesAccepted": "False", "Established": "False"}
    assert waiting["status"]["conditions"][0]["message"] == '"ThingList" is already in use'
    assert (await api.call("GET", "/apis/c.example/v1/others")).status == 404
    await api.ok("DELETE", f"{DEFINITIONS}/things.c.example")
    await anyio.sleep(1)
    assert conditions(await api.get(f"{DEFINITIONS}/others.c.example"))["Established"] == "True"
    assert (await api.get("/apis/c.example/v1/others"))["kind"] == "ThingList"


async def test_a_definition_waits_for_the_finalizers_of_its_objects() -> None:
    api = await serving(THINGS)
    held = thing("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(PATH, held)
    await api.create(PATH, thing("free"))
    stream = await api.watch(PATH, resourceVersion=(await api.get(PATH))["metadata"]["resourceVersion"])

    deleted = await api.ok("DELETE", f"{DEFINITIONS}/things.c.example")
    assert deleted["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert conditions(deleted)["Terminating"] == "True"
    late = await api.call("POST", PATH, thing("late"))
    assert (late.status, late.body["reason"]) == (405, "MethodNotAllowed")
    gone = [await stream.__anext__() for _ in range(2)]
    assert {(event.type, event.object["metadata"]["name"]) for event in gone} == {
        ("MODIFIED", "held"),
        ("DELETED", "free"),
    }

    await anyio.sleep(7)
    assert (await api.get(f"{PATH}/held"))["metadata"]["deletionTimestamp"]
    await api.patch(f"{PATH}/held", {"metadata": {"finalizers": None}})
    await anyio.sleep(5)
    assert (await api.call("GET", f"{DEFINITIONS}/things.c.example")).status == 404
    endpoint = await api.call("GET", PATH)
    assert (endpoint.status, endpoint.body) == (404, "404 page not found\n")
    assert "c.example" not in json.dumps(await api.get("/apis"))


async def test_a_definition_may_come_again() -> None:
    api = await serving(THINGS)
    await api.create(PATH, thing(size=1))
    await api.ok("DELETE", f"{DEFINITIONS}/things.c.example")
    await anyio.sleep(1)
    await api.create(DEFINITIONS, definition("things", [version("v1", whole({"size": TEXT}))]))
    await anyio.sleep(1)
    assert (await api.get(PATH))["items"] == []
    assert (await api.create(PATH, thing(size="big")))["spec"] == {"size": "big"}


async def test_a_dry_run_defines_nothing() -> None:
    api = Caller(ApiServer(LoopClock()))
    assert (await api.call("POST", DEFINITIONS, THINGS, dryRun="All")).status == 201
    await anyio.sleep(1)
    assert (await api.call("GET", PATH)).status == 404


async def test_a_change_of_the_schema_takes_effect_at_once() -> None:
    api = await serving(THINGS)
    await api.create(PATH, thing(size=3))
    small = {**NUMBER, "maximum": 2, RULES: [rule("self != 1", message="not one")]}
    new = version("v1", whole({"size": small, "mode": {**TEXT, "default": "Soft"}}))
    new["additionalPrinterColumns"] = [{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}]
    await api.patch(f"{DEFINITIONS}/things.c.example", {"spec": {"versions": [new]}})

    old = await api.get(f"{PATH}/a")
    assert old["spec"] == {"size": 3, "mode": "Soft"}  # filled in as it is read
    labelled = await api.patch(f"{PATH}/a", {"metadata": {"labels": {"x": "y"}}})
    assert labelled["metadata"]["generation"] == 1  # what was too large before is not held against who did not do it
    for size in (4, 1):
        refused = await api.call("PATCH", f"{PATH}/a", {"spec": {"size": size}}, headers={"content-type": MERGE})
        assert refused.status == 422
    table = await api.call("GET", PATH, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert table.body["rows"][0]["cells"] == ["a", "Soft"]


async def test_versions_are_views_of_one_object() -> None:
    old = version("v1beta1", whole({"size": NUMBER, "old": {**TEXT, "default": "x"}}), storage=False)
    api = await serving(definition("things", [old, version("v1", whole({"size": NUMBER}))]))
    beta = "/apis/c.example/v1beta1/things"
    group = await api.get("/apis/c.example")
    assert [each["version"] for each in group["versions"]] == ["v1", "v1beta1"]
    stream = await api.watch(beta)
    created = await api.create(beta, thing(api_version="c.example/v1beta1", size=1, old="y"))
    assert created["spec"] == {"size": 1, "old": "x"}  # what the stored version does not know does not last
    stored = await api.get(f"{PATH}/a")
    assert (stored["apiVersion"], stored["spec"]) == ("c.example/v1", {"size": 1})
    for key in ("uid", "resourceVersion"):
        assert stored["metadata"][key] == created["metadata"][key]
    await api.patch(f"{PATH}/a", {"spec": {"size": 2}})
    events = [await stream.__anext__() for _ in range(2)]
    assert [(event.type, event.object["apiVersion"], event.object["spec"]) for event in events] == [
        ("ADDED", "c.example/v1beta1", {"size": 1, "old": "x"}),
        ("MODIFIED", "c.example/v1beta1", {"size": 2, "old": "x"}),
    ]


async def test_a_version_may_be_withdrawn_and_the_storage_changed() -> None:
    both = [version("v1", whole({"size": NUMBER})), version("v2", whole({"size": NUMBER}), storage=False)]
    api = await serving(definition("things", both))
    await api.create(PATH, thing(size=1))
    one, two = ({**each, "storage": not each["storage"]} for each in both)
    changed = await api.patch(
        f"{DEFINITIONS}/things.c.example", {"spec": {"versions": [{**one, "served": False}, two]}}
    )
    assert changed["status"]["storedVersions"] == ["v1", "v2"]
    assert (await api.call("GET", PATH)).status == 404
    found = await api.get("/apis/c.example/v2/things/a")
    assert (found["apiVersion"], found["spec"]) == ("c.example/v2", {"size": 1})
    written = await api.patch("/apis/c.example/v2/things/a", {"spec": {"size": 2}})
    assert (written["apiVersion"], written["metadata"]["generation"]) == ("c.example/v2", 2)


async def test_conversion_webhooks_are_refused_with_the_reason() -> None:
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {"url": "https://example.com/"}, "conversionReviewVersions": ["v1"]},
    }
    api = Caller(ApiServer(LoopClock()))
    body = definition("things", [version("v1", whole({}))], conversion=conversion)
    response = await api.call("POST", DEFINITIONS, body)
    assert response.status == 422
    assert response.body["details"]["causes"][0]["message"] == (
        "Forbidden: this server runs no conversion webhooks; None is supported"
    )


async def test_the_status_of_a_definition_has_its_own_path() -> None:
    api = await serving(THINGS)
    path = f"{DEFINITIONS}/things.c.example"
    kept = await api.patch(path, {"status": {"storedVersions": ["v9"]}})
    assert kept["status"]["storedVersions"] == ["v1"]
    written = await api.patch(f"{path}/status", {"status": {"storedVersions": ["v1"]}, "spec": {"scope": "Namespaced"}})
    assert written["spec"]["scope"] == "Cluster"


async def test_namespaced_objects_go_with_finalizers_of_their_own_in_every_namespace() -> None:
    namespaced = definition("things", [version("v1", whole({"size": NUMBER}))], scope="Namespaced")
    api = await serving(namespaced)
    for namespace in ("default", "kube-system"):
        await api.create(f"/apis/c.example/v1/namespaces/{namespace}/things", thing(size=1))
    assert len((await api.get(PATH))["items"]) == 2
    assert (await api.call("POST", "/apis/c.example/v1/namespaces/nowhere/things", thing(size=1))).status == 404
    await api.ok("DELETE", f"{DEFINITIONS}/things.c.example")
    await anyio.sleep(0.1)
    assert (await api.call("GET", f"{DEFINITIONS}/things.c.example")).status == 404
