"""Match conditions: which writes a webhook is spared."""

from __future__ import annotations

import pytest
from kubesim_support.webhooks import CONFIGMAPS, CONFIGURATIONS, Hook, Stage, config_map, configuration, webhook

pytestmark = pytest.mark.anyio

IS_ONE, IS_TWO = "object.metadata.name == 'one'", "object.metadata.name == 'two'"
CANNOT_BE_KNOWN = "object.data.nope == 'x'"


async def conditional(stage: Stage, *expressions: str, policy: str = "Fail") -> Hook:
    """A webhook under these conditions."""
    conditions = [{"name": f"c{index}", "expression": each} for index, each in enumerate(expressions)]
    return await stage.hook("validating", matchConditions=conditions, failurePolicy=policy)


async def asked(*expressions: str, policy: str = "Fail") -> int:
    """How often a webhook under these conditions is asked about the creation of a config map `one`."""
    stage = Stage()
    hook = await conditional(stage, *expressions, policy=policy)
    await stage.create(CONFIGMAPS, config_map("one"))
    return len(hook.requests)


async def test_all_conditions_must_hold() -> None:
    assert await asked(IS_ONE) == 1
    assert await asked(IS_ONE, IS_TWO) == 0


async def test_one_that_is_false_outweighs_one_that_cannot_be_evaluated() -> None:
    assert await asked(CANNOT_BE_KNOWN, IS_TWO) == 0


async def test_one_that_cannot_be_evaluated_refuses_or_spares_as_the_policy_says() -> None:
    """Wording: a real server, 1.33."""
    assert await asked(CANNOT_BE_KNOWN, policy="Ignore") == 0
    stage = Stage()
    hook = await conditional(stage, CANNOT_BE_KNOWN, IS_ONE)
    response = await stage.call("POST", CONFIGMAPS, config_map("one"))
    assert (response.status, response.body["message"]) == (
        403,
        "configmaps \"one\" is forbidden: expression 'object.data.nope == 'x'' resulted in error: no such key: data",
    )
    assert hook.requests == []


async def test_what_is_none_is_refused() -> None:
    """Wording: a real server, 1.33."""
    conditions = [
        {"name": "", "expression": " "},
        {"name": "a b", "expression": "1 +"},
        {"name": "x", "expression": "object.x"},
        {"name": "x", "expression": "true"},
    ]
    raw = configuration("mutating", webhook(matchConditions=conditions))
    response = await Stage().call("POST", CONFIGURATIONS.format("mutating"), raw)
    causes = {cause["field"]: cause["message"] for cause in response.body["details"]["causes"]}
    field = "webhooks[0].matchConditions"
    assert [each.removeprefix(field) for each in causes] == [
        "[0].expression",
        "[0].name",
        "[1].expression",
        "[1].name",
        "[2].expression",
        "[3].name",
    ]
    assert causes.pop(f"{field}[1].name").startswith('Invalid value: "a b": name part must consist of')
    assert causes == {
        f"{field}[0].expression": "Required value",
        f"{field}[0].name": "Required value",
        f"{field}[1].expression": (
            "Invalid value: \"1 +\": compilation failed: ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' "
            "expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, "
            "BYTES, IDENTIFIER}\n | 1 +\n | ...^"
        ),
        f"{field}[2].expression": 'Invalid value: "object.x": must evaluate to bool but got dyn',
        f"{field}[3].name": 'Duplicate value: "x"',
    }
