"""Which webhooks are called: in which order, how often, how long, and what happens without an answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from kubesim.faults.rules import Rule, SlowWebhook
from kubesim.server.api import JsonObject
from kubesim_support.webhooks import (
    Hook,
    Stage,
    attempt,
    patching,
)

pytestmark = pytest.mark.anyio

ADD_A = {"op": "add", "path": "/metadata/labels/a", "value": "1"}


async def test_mutating_webhooks_are_asked_one_after_another_by_the_names_of_their_configurations() -> None:
    stage = Stage()
    asked: list[str] = []

    def adds(name: str) -> Any:
        def answer(request: JsonObject) -> JsonObject:
            asked.append(f"{name} sees {sorted(request['object']['metadata']['labels'])}")
            return patching(orjson.dumps([{"op": "add", "path": f"/metadata/labels/{name}", "value": ""}]))

        return answer

    for name in ("c", "a", "b"):
        hook = await stage.hook("mutating", configuration=name, name=f"{name}.rec.example")
        hook.answer = adds(name)
    created = (await attempt(stage)).body
    assert asked == ["a sees ['x']", "b sees ['a', 'x']", "c sees ['a', 'b', 'x']"]
    assert set(created["metadata"]["labels"]) == {"x", "a", "b", "c"}


async def test_who_asked_for_it_is_asked_again_after_a_later_change_and_once_only() -> None:
    stage = Stage()
    first = await stage.hook("mutating", configuration="1", reinvocationPolicy="IfNeeded")
    never = await stage.hook("mutating", configuration="2", name="b.rec.example")
    last = await stage.hook("mutating", configuration="3", name="c.rec.example", reinvocationPolicy="IfNeeded")
    last.patches(ADD_A)
    await attempt(stage)
    assert [len(hook.requests) for hook in (first, never, last)] == [2, 1, 1]
    assert first.last["object"]["metadata"]["labels"] == {"x": "y", "a": "1"}


async def test_validating_webhooks_are_all_asked_at_once_and_the_first_refusal_counts() -> None:
    stage = Stage()
    hooks: list[Hook] = []
    for name, delay in (("a", 3), ("b", 1), ("c", 2)):
        hook = await stage.hook("validating", configuration=name, name=f"{name}.rec.example")
        hook.delay = delay
        hook.denies(message=name)
        hooks.append(hook)
    before = stage.clock.monotonic()
    response = await attempt(stage)
    assert response.body["message"] == 'admission webhook "b.rec.example" denied the request: b'
    assert stage.clock.monotonic() - before == 3  # all answers are waited for
    assert [len(hook.requests) for hook in hooks] == [1, 1, 1]


async def test_a_fault_makes_a_webhook_slow() -> None:
    stage = Stage()
    await stage.hook("validating", timeoutSeconds=2)
    stage.server.faults.add(Rule(fault=SlowWebhook(seconds=1.5)))
    before = stage.clock.monotonic()
    assert (await attempt(stage)).status == 201
    assert stage.clock.monotonic() - before == 1.5


async def test_and_never_longer_than_the_server_does() -> None:
    stage = Stage()
    for name in ("a", "b"):
        hook = await stage.hook("mutating", configuration=name, name=f"{name}.rec.example", timeoutSeconds=30)
        hook.delay = 29
    before = stage.clock.monotonic()
    assert (await attempt(stage)).status == 504
    assert stage.clock.monotonic() - before == 34
