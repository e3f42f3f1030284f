"""The life of definitions: when they are served, what a change of theirs does, and how they go."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
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


async def test_a_change_of_the_schema_takes_effect_at_once() -> None:
    api = await serving(THINGS)
    await api.create(PATH, thing(size=3))
    small = {**NUMBER, "maximum": 2, RULES: [rule("self != 1", message="not one")]}
    new = version("v1", whole({"size": small, "mode": {**TEXT, "default": "Soft"}}))
    new["additionalPrinterColumns"] = [{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}]
    await api.patch(f"{DEFINITIONS}/things.c.example", {"spec": {"versions": [new]}})

    old = await api.get(f"{PATH}/a")
    assert old["spec"] == {"size": 3, "mode": "Soft"}  # filled in as it is read
    labeled = await api.patch(f"{PATH}/a", {"metadata": {"labels": {"x": "y"}}})
    assert labeled["metadata"]["generation"] == 1  # what was too large before is not held against who did not do it
    for size in (4, 1):
        refused = await api.call("PATCH", f"{PATH}/a", {"spec": {"size": size}}, headers={"content-type": MERGE})
        assert refused.status == 422
    table = await api.call("GET", PATH, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert table.body["rows"][0]["cells"] == ["a", "Soft"]


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
    stored = await api.get("/apis/c.example/v2/things/a")
    assert (stored["apiVersion"], stored["spec"]) == ("c.example/v2", {"size": 1})
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
