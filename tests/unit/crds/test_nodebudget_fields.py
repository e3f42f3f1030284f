"""The definition of NodeDisruptionBudgets that ships: what a server says to a budget that cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Request
from support.disruption import NODE_BUDGETS, POOL

from gracectl.cli.crds import shipped_definitions

GOOD = {"selector": {"matchLabels": POOL}}


async def answer(spec: dict[str, Any]) -> tuple[int, str]:
    server = ApiServer(LoopClock())
    server.predefine(*shipped_definitions())
    body = {
        "apiVersion": "termination.karpenter.sh/v1alpha2", "kind": "NodeDisruptionBudget", "metadata": {"name": "b"},
        "spec": spec,
    }  # fmt: skip
    response = await server.handle(Request(method="POST", path=NODE_BUDGETS, body=body))
    assert isinstance(response.body, dict)
    return response.status, response.body.get("message", "")


@pytest.mark.parametrize("bound", [
    {"minAvailable": 0}, {"minAvailable": "80%"}, {"maxUnavailable": "0%"}, {"maxUnavailable": "100%"},
    {"maxUnavailable": 7},
])  # fmt: skip
@pytest.mark.parametrize("selector", [GOOD, {}, {"selector": None}, {"selector": {}}])
async def test_budgets_that_can_be_meant(bound: dict[str, Any], selector: dict[str, Any]) -> None:
    assert await answer({**bound, **selector}) == (201, "")


@pytest.mark.parametrize(("spec", "words"), [
    (GOOD, "spec: Required value: give minAvailable (how many nodes must be available after a deletion) or max"),
    (
            {**GOOD, "minAvailable": "80%", "maxUnavailable": "5%"},  # as in the example of the specification
            "minAvailable and maxUnavailable exclude each other; remove one of them",
        ),
    ({**GOOD, "minAvailable": -1}, "spec.minAvailable: Invalid value: -1: spec.minAvailable in body should be great"),
    ({**GOOD, "minAvailable": "101%"}, 'spec.minAvailable: Invalid value: "101%"'),
    ({**GOOD, "maxUnavailable": "3"}, 'spec.maxUnavailable: Invalid value: "3"'),
    ({**GOOD, "maxUnavailable": 1.5}, "spec.maxUnavailable"),
    ({"maxUnavailable": 1, "selector": []}, "spec.selector"),
])  # fmt: skip
async def test_what_cannot_be_meant_is_refused_with_the_field(spec: dict[str, Any], words: str) -> None:
    status, message = await answer(spec)
    assert status == 422
    assert words in message
