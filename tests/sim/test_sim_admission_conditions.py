"""Match conditions: which writes a webhook is spared, by an engine that is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from sim.admission_stage import (
    CONFIGMAPS,
    CONFIGURATIONS,
    NAME,
    Hook,
    Stage,
    config_map,
    configuration,
    rule,
    webhook,
)

from gracectl.runtime.clock import LoopClock
from gracectl.sim.admission.calling import InProcessWebhooks
from gracectl.sim.admission.conditions import CelConditions
from gracectl.sim.admission.configurations import webhook_configurations
from gracectl.sim.admission.dispatch import WebhookAdmission
from gracectl.sim.admission.index import Index
from gracectl.sim.admission.matching import Matcher
from gracectl.sim.core import ApiServer
from gracectl.sim.server.api import Request
from gracectl.sim.server.calls import Call, Write
from gracectl.sim.server.routing import find_route
from gracectl.sim.server.status import Refusal

pytestmark = pytest.mark.anyio

CONFIG_MAP = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "one"}}


class Fault(Exception):
    """What the engine of these tests raises."""


class Program(NamedTuple):
    """A program of the engine of these tests."""

    type: str
    run: Callable[[Mapping[str, Any]], Any]


def compiled(source: str) -> Program:
    """An engine that knows a few sentences."""
    if source == "1 +":
        raise Fault("no end")
    if source == "object":
        return Program("dyn", lambda variables: variables["object"])
    if source == "missing":

        def fail(variables: Mapping[str, Any]) -> Any:
            raise Fault("no such key: data")

        return Program("bool", fail)
    return Program("bool", lambda variables: variables["object"]["metadata"]["name"] == source)


CONDITIONS = CelConditions(compiled, unreadable=lambda source, error: f"{source}: {error}", faults=(Fault,))


async def asked(*expressions: str, policy: str = "Fail") -> int:
    """How often a webhook under these conditions is asked about the creation of a config map `one`."""
    stage = Stage()
    callers, hook = InProcessWebhooks(), Hook("https://hook.example/")
    callers.register(hook.url, hook)
    server: ApiServer = ApiServer(LoopClock())
    matcher = Matcher(server.store, server.registry, CONDITIONS)
    admission = WebhookAdmission(Index(server.store), matcher, server.stamps, callers)
    # Put in as it would be stored by a server that knows conditions.
    conditions = [{"name": f"c{index}", "expression": each} for index, each in enumerate(expressions)]
    [filled] = (await stage.configure("validating", webhook(clientConfig={"url": hook.url}, failurePolicy=policy)))[
        "webhooks"
    ]
    stored = configuration("validating", {**filled, "matchConditions": conditions})
    table = server.store.table("validatingwebhookconfigurations.admissionregistration.k8s.io")
    server.store.put(table, stored, None)
    request = Request(method="POST", path="/api/v1/namespaces/default/configmaps")
    route = find_route(server.registry, request.path)
    assert route is not None
    await admission.validate(Write(Call(request, route), "CREATE", False, {}), CONFIG_MAP, None)
    return len(hook.requests)


async def test_all_conditions_must_hold() -> None:
    assert await asked("one") == 1
    assert await asked("one", "two") == 0


async def test_one_that_is_false_outweighs_one_that_cannot_be_evaluated() -> None:
    assert await asked("missing", "two") == 0


async def test_one_that_cannot_be_evaluated_refuses_or_spares_as_the_policy_says() -> None:
    assert await asked("missing", policy="Ignore") == 0
    with pytest.raises(Refusal) as caught:
        await asked("missing", "one")
    assert (caught.value.code, caught.value.message) == (
        403,
        "configmaps \"one\" is forbidden: expression 'missing' resulted in error: no such key: data",
    )


def test_expressions_are_checked_when_they_are_configured() -> None:
    assert CONDITIONS.fault("one") == ""
    assert CONDITIONS.fault("1 +") == "compilation failed: 1 +: no end"
    assert CONDITIONS.fault("object") == "must evaluate to bool but got dyn"
    [resource, _] = webhook_configurations(CONDITIONS.fault)
    raw = webhook(rules=[rule()], matchConditions=[{"name": "x", "expression": "1 +"}])
    new = resource.strategy.normalise(configuration("mutating", raw))
    assert [fault.field for fault in resource.strategy.validate(new)] == ["webhooks[0].matchConditions[0].expression"]
    assert NAME in str(new)


# -- in CEL ------------------------------------------------------------------------------------------------------------


async def test_a_server_evaluates_cel() -> None:
    stage = Stage()
    expressions = ["request.operation == 'UPDATE'", "!has(object.data) || oldObject.metadata.labels.a == 'b'"]
    conditions = [{"name": f"c{index}", "expression": each} for index, each in enumerate(expressions)]
    hook = await stage.hook("validating", matchConditions=conditions)
    await stage.create(CONFIGMAPS, config_map("one", a="c"))
    await stage.patch(f"{CONFIGMAPS}/one", {"metadata": {"labels": {"a": "b"}}})
    assert len(hook.requests) == 1
    await stage.patch(f"{CONFIGMAPS}/one", {"data": {"x": "y"}})
    assert len(hook.requests) == 2


async def test_and_refuses_what_is_none() -> None:
    """Wording: a real server, 1.33."""
    conditions = [
        {"name": "", "expression": ""},
        {"name": "a b", "expression": "1 +"},
        {"name": "x", "expression": "object.x"},
        {"name": "x", "expression": "true"},
    ]
    raw = configuration("mutating", webhook(matchConditions=conditions))
    response = await Stage().call("POST", CONFIGURATIONS.format("mutating"), raw)
    causes = {cause["field"]: cause["message"] for cause in response.body["details"]["causes"]}
    field = "webhooks[0].matchConditions"
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


async def test_and_says_what_it_could_not_evaluate() -> None:
    """Wording: a real server, 1.33."""
    stage = Stage()
    conditions = [{"name": "x", "expression": "object.data.nope == 'x'"}]
    await stage.hook("validating", matchConditions=conditions)
    response = await stage.call("POST", CONFIGMAPS, config_map("c1"))
    assert (response.status, response.body["message"]) == (
        403,
        "configmaps \"c1\" is forbidden: expression 'object.data.nope == 'x'' resulted in error: no such key: data",
    )
