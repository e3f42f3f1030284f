"""Deletions and updates while webhooks think: how often they are asked, and who has lost when it is written."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kubesim.admission.caller import Reply
from kubesim.server.api import JsonObject
from kubesim.server.store import at_version
from kubesim_support.caller import NODES, PODS
from kubesim_support.webhooks import (
    CONFIGMAPS,
    Hook,
    Stage,
    attempt,
    rule,
)

pytestmark = pytest.mark.anyio


async def node(stage: Stage, name: str = "n1", **metadata: Any) -> Any:
    """Create a node."""
    return await stage.create(NODES, {"metadata": {"name": name, **metadata}})


async def deleting(stage: Stage, kind: str = "validating", resource: str = "nodes") -> Hook:
    """A webhook that hears of deletions."""
    return await stage.hook(kind, rules=[rule(resource, operations=("DELETE",))])


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


async def test_a_put_with_a_version_has_lost() -> None:
    stage = Stage()
    created = (await attempt(stage)).body
    hook = await stage.hook("validating")
    meddler(stage, hook, 1)
    assert (await stage.call("PUT", f"{CONFIGMAPS}/one", created)).status == 409
    assert len(hook.requests) == 1
