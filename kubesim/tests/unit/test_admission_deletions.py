"""Deletions and updates while webhooks think: how often they are asked, and who has lost when it is written."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kubesim.admission.caller import Reply
from kubesim.server.api import JsonObject
from kubesim.server.store import at_version
from kubesim_support.caller import MERGE, NODES, PODS, next_events
from kubesim_support.webhooks import (
    CONFIGMAPS,
    NAME,
    Hook,
    Stage,
    attempt,
    internal,
    rule,
)

pytestmark = pytest.mark.anyio

HELD = ["rec.example/hold"]


# -- deletions ---------------------------------------------------------------------------------------------------------


async def node(stage: Stage, name: str = "n1", **metadata: Any) -> Any:
    """Create a node."""
    return await stage.create(NODES, {"metadata": {"name": name, **metadata}})


async def deleting(stage: Stage, kind: str = "validating", resource: str = "nodes") -> Hook:
    """A webhook that hears of deletions."""
    return await stage.hook(kind, rules=[rule(resource, operations=("DELETE",))])


async def test_a_deletion_shows_the_old_object_and_its_options() -> None:
    stage = Stage()
    created = await node(stage)
    hook = await deleting(stage)
    body = {"preconditions": {"uid": created["metadata"]["uid"]}, "propagationPolicy": "Background"}
    await stage.ok("DELETE", f"{NODES}/n1", body)
    [request] = hook.requests
    assert (request["object"], request["oldObject"]) == (None, created)
    assert request["options"] == {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", **body}


async def test_an_object_with_a_finalizer_is_reviewed_at_each_deletion_but_not_at_its_removal() -> None:
    stage = Stage()
    await node(stage, finalizers=HELD)
    hook = await deleting(stage)
    await stage.ok("DELETE", f"{NODES}/n1")
    await stage.ok("DELETE", f"{NODES}/n1")
    await stage.patch(f"{NODES}/n1", {"metadata": {"finalizers": None}})
    assert (await stage.call("GET", f"{NODES}/n1")).status == 404
    assert len(hook.requests) == 2


async def test_a_pods_deletion_is_told_its_grace_and_the_kubelets_is_asked_twice() -> None:
    stage = Stage()
    await stage.pod("one")
    hook = await deleting(stage, resource="pods")
    await stage.ok("DELETE", f"{PODS}/one")
    [request] = hook.requests
    assert request["options"]["gracePeriodSeconds"] == 30
    await stage.ok("DELETE", f"{PODS}/one")  # under way: nothing to ask about
    assert len(hook.requests) == 1
    await stage.ok("DELETE", f"{PODS}/one", {"gracePeriodSeconds": 0})
    seen = [request["oldObject"]["metadata"]["deletionGracePeriodSeconds"] for request in hook.requests[1:]]
    assert seen == [30, 0]
    assert (await stage.call("GET", f"{PODS}/one")).status == 404


async def test_a_pod_denied_at_its_end_stays_with_no_grace() -> None:
    stage = Stage()
    await stage.pod("one")
    hook = await deleting(stage, resource="pods")
    hook.answer = lambda request: {"allowed": "deletionTimestamp" not in request["oldObject"]["metadata"]}
    assert (await stage.call("DELETE", f"{PODS}/one", {"gracePeriodSeconds": 0})).status == 400
    assert (await stage.get(f"{PODS}/one"))["metadata"]["deletionGracePeriodSeconds"] == 0


async def test_a_collection_asks_for_each_without_a_name() -> None:
    stage = Stage()
    for name in ("n1", "n2"):
        await node(stage, name)
    hook = await deleting(stage)
    await stage.ok("DELETE", NODES)
    assert ["name" in request for request in hook.requests] == [False, False]
    assert [request["oldObject"]["metadata"]["name"] for request in hook.requests] == ["n1", "n2"]


async def test_a_patch_of_a_deletion_fails_it() -> None:
    stage = Stage()
    await node(stage)
    hook = await deleting(stage, "mutating")
    hook.patches({"op": "add", "path": "/metadata/finalizers", "value": HELD})
    fault = f'admission webhook "{NAME}" attempted to modify the object, which is not supported for this operation'
    assert internal(await stage.call("DELETE", f"{NODES}/n1")) == f"Internal error occurred: {fault}"
    assert (await stage.call("GET", f"{NODES}/n1")).status == 200


def finalizer_adder(stage: Stage, hook: Hook) -> None:
    """From now on the webhook holds the node before it answers."""

    async def holds(review: JsonObject) -> JsonObject | Reply:
        await stage.patch(f"{NODES}/n1", {"metadata": {"finalizers": HELD}})
        return await hook(review)

    stage.webhooks.register(hook.url, holds)


@pytest.mark.parametrize("kind", ["mutating", "validating"])
async def test_a_finalizer_that_comes_during_the_deletion_does_not_hold(kind: str) -> None:
    """Kubernetes issue 77988: the server sees the change, asks again, and deletes."""
    stage = Stage()
    await node(stage)
    hook = await deleting(stage, kind)
    finalizer_adder(stage, hook)
    stream = await stage.watch(NODES)
    await stage.ok("DELETE", f"{NODES}/n1")
    assert await next_events(stream, 3) == [("ADDED", "n1"), ("MODIFIED", "n1"), ("DELETED", "n1")]
    seen = [request["oldObject"]["metadata"].get("finalizers") for request in hook.requests]
    assert seen == [None, HELD]


async def test_a_precondition_notices_it() -> None:
    stage = Stage()
    created = await node(stage)
    hook = await deleting(stage)
    finalizer_adder(stage, hook)
    version = created["metadata"]["resourceVersion"]
    response = await stage.call("DELETE", f"{NODES}/n1", {"preconditions": {"resourceVersion": version}})
    now = (await stage.get(f"{NODES}/n1"))["metadata"]["resourceVersion"]
    assert (response.status, response.body["message"]) == (
        409,
        'Operation cannot be fulfilled on nodes "n1": StorageError: invalid object, Code: 4, Key: '
        "/registry/minions/n1, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in "
        f"precondition: {version}, ResourceVersion in object meta: {now}",
    )


async def test_a_held_object_keeps_what_came_during_its_deletion() -> None:
    stage = Stage()
    await node(stage, finalizers=["rec.example/other"])
    hook = await deleting(stage)
    finalizer_adder(stage, hook)
    deleted = await stage.ok("DELETE", f"{NODES}/n1")
    assert deleted["metadata"]["finalizers"] == HELD
    assert len(hook.requests) == 2


async def test_an_object_that_goes_meanwhile_is_not_found() -> None:
    stage = Stage()
    await node(stage)
    hook = await deleting(stage)
    hook.delay = 1
    answers: list[int] = []

    async def delete() -> None:
        answers.append((await stage.call("DELETE", f"{NODES}/n1")).status)

    async with anyio.create_task_group() as group:
        group.start_soon(delete)
        group.start_soon(delete)
    assert sorted(answers) == [200, 404]


async def test_a_dry_run_of_a_deletion_asks_once() -> None:
    stage = Stage()
    await stage.pod("one")
    hook = await deleting(stage, resource="pods")
    await stage.ok("DELETE", f"{PODS}/one", gracePeriodSeconds="0", dryRun="All")
    assert [request["dryRun"] for request in hook.requests] == [True]
    assert "deletionTimestamp" not in (await stage.get(f"{PODS}/one"))["metadata"]


# -- updates that are overtaken ----------------------------------------------------------------------------------------


def meddler(stage: Stage, hook: Hook, times: int) -> None:
    """The webhook writes the config map itself before it answers, so many times."""
    table = stage.server.store.table("configmaps")

    async def meddles(review: JsonObject) -> JsonObject | Reply:
        if len(hook.requests) < times:
            old = table.get("default", "one")
            assert old is not None
            data = {**old.get("data", {}), f"by-webhook-{len(hook.requests)}": ""}
            stage.server.store.put(table, at_version({**old, "data": data}, 0), old)
        return await hook(review)

    stage.webhooks.register(hook.url, meddles)


async def test_a_patch_is_applied_anew_to_what_came_meanwhile() -> None:
    stage = Stage()
    await attempt(stage)
    hook = await stage.hook("validating")
    meddler(stage, hook, 2)
    patched = await stage.patch(f"{CONFIGMAPS}/one", {"data": {"mine": ""}}, MERGE)
    assert set(patched["data"]) == {"mine", "by-webhook-0", "by-webhook-1"}
    assert len(hook.requests) == 3


async def test_a_put_with_a_version_has_lost() -> None:
    stage = Stage()
    created = (await attempt(stage)).body
    hook = await stage.hook("validating")
    meddler(stage, hook, 1)
    assert (await stage.call("PUT", f"{CONFIGMAPS}/one", created)).status == 409
    assert len(hook.requests) == 1


async def test_of_two_that_create_one_name_one_is_too_late() -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    hook.delay = 1
    answers: list[int] = []

    async def create() -> None:
        answers.append((await attempt(stage)).status)

    async with anyio.create_task_group() as group:
        group.start_soon(create)
        group.start_soon(create)
    assert sorted(answers) == [201, 409]
