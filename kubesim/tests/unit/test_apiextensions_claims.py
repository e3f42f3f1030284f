"""NodeClaims: the rules that Karpenter's published definition has, all of them, compiled and obeyed."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim_support.definitions import CLAIM_DEFINITION, CLAIMS, claim, serving

pytestmark = pytest.mark.anyio


def need(key: str, operator: str, *values: str, **more: Any) -> dict[str, Any]:
    """A requirement."""
    return {"key": key, "operator": operator, "values": list(values), **more}


@pytest.mark.parametrize(
    "requirement",
    [
        need("topology.kubernetes.io/zone", "In", "a", "b"),
        need("karpenter.sh/capacity-type", "In", "spot"),
        need("karpenter.k8s.aws/instance-cpu", "Gt", "4"),
        need("node.kubernetes.io/instance-type", "In", "m5", "m6", minValues=2),
        {"key": "example.com/special", "operator": "Exists"},
    ],
)
async def test_what_karpenter_accepts_is_accepted(requirement: dict[str, Any]) -> None:
    api = await serving(CLAIM_DEFINITION)
    created = await api.create(CLAIMS, claim(requirement, resources={"requests": {"cpu": 1, "memory": "1.5Gi"}}))
    assert created["spec"]["expireAfter"] == "720h"


@pytest.mark.parametrize(
    ("requirement", "field", "words"),
    [
        (need("example.com/x", "In"), "spec.requirements", '"array": In needs values'),
        (need("example.com/x", "Gt", "1", "2"), "spec.requirements", '"array": a comparison needs one number'),
        (need("example.com/x", "Gt", "-1"), "spec.requirements", '"array": a comparison needs one number'),
        (
            need("example.com/x", "Lt", "many"),
            "spec.requirements",
            "\"array\": type conversion error from 'string' to 'int' evaluating rule: a comparison needs one number",
        ),
        (need("example.com/x", "In", "a", minValues=2), "spec.requirements", '"array": fewer values than minValues'),
        (
            need("karpenter.sh/other", "Exists"),
            "spec.requirements[0].key",
            '"string": label domain is restricted',
        ),
        (need("kubernetes.io/hostname", "Exists"), "spec.requirements[0].key", '"string": label is restricted'),
    ],
)
async def test_what_its_rules_refuse_is_refused(requirement: dict[str, Any], field: str, words: str) -> None:
    api = await serving(CLAIM_DEFINITION)
    response = await api.call("POST", CLAIMS, claim(requirement))
    assert response.status == 422
    assert response.body["details"]["causes"] == [
        {"reason": "FieldValueInvalid", "message": f"Invalid value: {words}", "field": field}
    ]


async def test_columns_show_labels_and_conditions() -> None:
    api = await serving(CLAIM_DEFINITION)
    created = claim()
    created["metadata"]["labels"] = {"node.kubernetes.io/instance-type": "m5.large"}
    await api.create(CLAIMS, created)
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await api.patch(f"{CLAIMS}/c/status", {"status": {"conditions": [condition]}})
    headers = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = (await api.call("GET", CLAIMS, headers=headers)).body
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Type", "Node", "Ready", "Age"]
    assert table["rows"][0]["cells"] == ["c", "m5.large", None, "False", "0s"]
