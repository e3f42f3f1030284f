"""Kinds on which nothing acts: charts that bring them can be applied, listed and taken off again."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.kinds.inert import KINDS, Inert
from kubesim_support.caller import Caller

pytestmark = pytest.mark.anyio
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "pause"}], "restartPolicy": "Never"}}
SPECS: dict[str, Any] = {
    "CronJob": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": TEMPLATE}}},
    "NetworkPolicy": {"podSelector": {}, "policyTypes": ["Ingress"]},
    "ResourceQuota": {"hard": {"pods": "10"}},
    "ValidatingAdmissionPolicy": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
        "validations": [{"expression": "false"}],
    },
    "ValidatingAdmissionPolicyBinding": {"policyName": "one", "validationActions": ["Deny"]},
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
async def test_it_is_kept_shown_and_deleted(kind: Inert) -> None:
    caller = Caller(ApiServer(LoopClock()))
    prefix = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    path = f"{prefix}/namespaces/default/{kind.plural}" if kind.namespaced else f"{prefix}/{kind.plural}"
    body: dict[str, Any] = {"metadata": {"name": "one"}}
    if kind.kind not in ("PodTemplate", "RuntimeClass"):
        body["spec"] = SPECS.get(kind.kind, {})
    made = await caller.create(path, body)
    assert (made["kind"], made["metadata"]["name"]) == (kind.kind, "one")
    for field, value in SPECS.get(kind.kind, {}).items():
        assert field in made["spec"]
        assert isinstance(made["spec"][field], type(value))
    unknown = await caller.call("POST", path, {**body, "nonsense": 1}, fieldValidation="Strict")
    assert (unknown.status, 'unknown field "nonsense"' in unknown.body["message"]) == (400, True)
    assert [item["metadata"]["name"] for item in (await caller.get(path))["items"]] == ["one"]
    await caller.ok("DELETE", f"{path}/one")
    assert (await caller.call("GET", f"{path}/one")).status == 404
