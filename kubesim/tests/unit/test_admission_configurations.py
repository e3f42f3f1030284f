"""Webhook configurations: what may be said in them, and what is filled in. Wording: a real server, 1.33."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubesim_support.caller import STRATEGIC
from kubesim_support.webhooks import CONFIGURATIONS, NAME, Stage, configuration, rule, webhook

pytestmark = pytest.mark.anyio

MUTATING = CONFIGURATIONS.format("mutating")
REFUSED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "answers" / "webhooks.json").read_text())
"""What a webhook says (null: nothing), and what a real server, 1.33, answers."""


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["about"])
async def test_what_must_not_be_said_is_refused(case: dict[str, Any]) -> None:
    raw = {key: value for key, value in {**webhook(), **case["webhook"]}.items() if value is not None}
    response = await Stage().call("POST", MUTATING, configuration("mutating", raw))
    assert response.status == 422, response.body
    causes = response.body["details"]["causes"]
    assert [f"{cause['field']}: {cause['message']}" for cause in causes] == [
        f"webhooks[0].{fault}" for fault in case["faults"]
    ]


async def test_two_webhooks_of_one_name_are_refused() -> None:
    response = await Stage().call("POST", MUTATING, configuration("mutating", webhook(), webhook()))
    assert response.body["message"] == (
        'MutatingWebhookConfiguration.admissionregistration.k8s.io "rec" is invalid: webhooks[1].name: Duplicate value:'
        f' "{NAME}"'
    )


async def test_defaults_are_filled_in() -> None:
    stage = Stage()
    raw = webhook(clientConfig={"service": {"name": "s", "namespace": "n"}})
    [filled] = (await stage.configure("mutating", raw))["webhooks"]
    assert filled == {
        **raw,
        "clientConfig": {"service": {"name": "s", "namespace": "n", "port": 443}},
        "rules": [{**rule(), "scope": "*"}],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "timeoutSeconds": 10,
        "reinvocationPolicy": "Never",
    }
    [filled] = (await stage.configure("validating", raw))["webhooks"]
    assert "reinvocationPolicy" not in filled


async def test_a_generation_counts_changes_of_the_webhooks_which_merge_by_name() -> None:
    stage = Stage()
    await stage.configure("mutating", webhook(), webhook(name="b.rec.example"))
    change = {"webhooks": [{"name": "b.rec.example", "timeoutSeconds": 5}]}
    changed = await stage.patch(f"{MUTATING}/rec", change, STRATEGIC)
    assert changed["metadata"]["generation"] == 2
    assert {each["name"]: each["timeoutSeconds"] for each in changed["webhooks"]} == {NAME: 10, "b.rec.example": 5}
    labeled = await stage.patch(f"{MUTATING}/rec", {"metadata": {"labels": {"a": "b"}}})
    assert labeled["metadata"]["generation"] == 2
