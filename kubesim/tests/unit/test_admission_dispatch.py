"""Which webhooks are called: in which order, how often, how long, and what happens without an answer."""

from __future__ import annotations

from typing import Any

import anyio
import orjson
import pytest
from kubesim.faults.rules import Rule, SlowWebhook
from kubesim.server.api import JsonObject
from kubesim_support.caller import NODES
from kubesim_support.webhooks import (
    CONFIGMAPS,
    FAILED,
    NAME,
    Hook,
    Stage,
    attempt,
    config_map,
    internal,
    patching,
    rule,
    webhook,
)

pytestmark = pytest.mark.anyio

ADD_A = {"op": "add", "path": "/metadata/labels/a", "value": "1"}


# -- order -------------------------------------------------------------------------------------------------------------


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


async def test_a_change_in_the_second_round_asks_those_behind_it_again() -> None:
    stage = Stage()
    first = await stage.hook("mutating", configuration="1", reinvocationPolicy="IfNeeded")
    second = await stage.hook("mutating", configuration="2", name="b.rec.example", reinvocationPolicy="IfNeeded")
    second.patches(ADD_A)

    def answer(request: JsonObject) -> JsonObject:
        if "a" not in request["object"]["metadata"]["labels"]:
            return {"allowed": True}
        return patching(b'[{"op": "add", "path": "/metadata/labels/b", "value": "2"}]')

    first.answer = answer
    assert set((await attempt(stage)).body["metadata"]["labels"]) == {"x", "a", "b"}
    assert [len(hook.requests) for hook in (first, second)] == [2, 2]


async def test_no_webhook_is_reinvoked_when_nothing_changed() -> None:
    stage = Stage()
    first = await stage.hook("mutating", configuration="1", reinvocationPolicy="IfNeeded")
    second = await stage.hook("mutating", configuration="2", name="b.rec.example")
    second.patches({"op": "add", "path": "/metadata/labels/x", "value": "y"}, {"op": "add", "path": "/odd", "value": 1})
    await attempt(stage)
    assert len(first.requests) == 1


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


async def test_validating_webhooks_come_after_mutating_ones_and_after_the_kinds_own_validation() -> None:
    stage = Stage()
    mutating, validating = await stage.hook("mutating"), await stage.hook("validating")
    mutating.patches({"op": "add", "path": "/metadata/labels/a", "value": "_bad_"})
    assert (await attempt(stage)).status == 422
    assert validating.requests == []
    mutating.patches(ADD_A)
    await attempt(stage)
    assert validating.last["object"]["metadata"]["labels"] == {"x": "y", "a": "1"}


# -- no answer --------------------------------------------------------------------------------------------------------


async def test_no_server_at_the_address() -> None:
    stage = Stage()
    client = {"url": "https://absent.example:8443/a/b/"}
    await stage.configure("validating", webhook(clientConfig=client, timeoutSeconds=3))
    fault = (
        'failed to call webhook: Post "https://absent.example:8443/a/b?timeout=3s": dial tcp absent.example:8443: '
        "connect: connection refused"
    )
    assert internal(await attempt(stage)) == f"{FAILED}{fault}"


@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 201)])
@pytest.mark.parametrize("kind", ["mutating", "validating"])
async def test_a_slow_webhook_is_given_its_timeout_and_no_more(kind: str, policy: str, status: int) -> None:
    stage = Stage()
    hook = await stage.hook(kind, timeoutSeconds=2, failurePolicy=policy)
    hook.delay = 2.5
    before = stage.clock.monotonic()
    response = await attempt(stage)
    assert stage.clock.monotonic() - before == 2
    assert (response.status, len(hook.requests)) == (status, 1)
    if status == 500:
        fault = f'failed to call webhook: Post "https://{NAME}/{kind}?timeout=2s": context deadline exceeded'
        assert internal(response) == f"{FAILED}{fault}"


async def test_a_fault_makes_a_webhook_slow() -> None:
    stage = Stage()
    await stage.hook("validating", timeoutSeconds=2)
    stage.server.faults.add(Rule(fault=SlowWebhook(seconds=1.5)))
    before = stage.clock.monotonic()
    assert (await attempt(stage)).status == 201
    assert stage.clock.monotonic() - before == 1.5


async def test_other_requests_go_on_meanwhile() -> None:
    stage = Stage()
    hook = await stage.hook("validating", rules=[rule("configmaps")])
    hook.delay = 5
    async with anyio.create_task_group() as group:
        group.start_soon(attempt, stage)
        await anyio.wait_all_tasks_blocked()
        before = stage.clock.monotonic()
        await stage.create(NODES, {"metadata": {"name": "n1"}})
        assert stage.clock.monotonic() == before


# -- the whole request -------------------------------------------------------------------------------------------------


async def test_a_request_waits_no_longer_than_its_client_wants() -> None:
    stage = Stage()
    hook = await stage.hook("mutating", timeoutSeconds=10, failurePolicy="Ignore")
    hook.delay = 9
    before = stage.clock.monotonic()
    response = await stage.call("POST", CONFIGMAPS, config_map("one"), timeout="1500ms")
    assert stage.clock.monotonic() - before == 1.5
    assert (response.status, response.body["reason"], response.body["message"]) == (
        504,
        "Timeout",
        "Timeout: request did not complete within requested timeout - context deadline exceeded",
    )


async def test_and_never_longer_than_the_server_does() -> None:
    stage = Stage()
    for name in ("a", "b"):
        hook = await stage.hook("mutating", configuration=name, name=f"{name}.rec.example", timeoutSeconds=30)
        hook.delay = 29
    before = stage.clock.monotonic()
    assert (await attempt(stage)).status == 504
    assert stage.clock.monotonic() - before == 34
