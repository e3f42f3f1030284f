"""ClusterRoles that gather the rules of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.controllers.client import InProcess
from kubesim.controllers.clusterroleaggregation import RoleAggregation
from kubesim.controllers.informers import Informers
from kubesim.controllers.pace import Pace
from kubesim_support.accounts import RBAC, rule
from kubesim_support.caller import Caller
from kubesim_support.clusters import quiet

pytestmark = pytest.mark.anyio

ROLES = f"{RBAC}/clusterroles"
PODS, NODES = rule("get", "pods"), rule("get", "nodes")


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    """A server beside which only the aggregation runs."""
    clock = LoopClock()
    server = ApiServer(clock)
    informers = Informers(InProcess(server.handle), clock)
    controller = RoleAggregation(informers, Pace(clock))
    async with anyio.create_task_group() as group:
        group.start_soon(informers.run)
        group.start_soon(controller.run)
        yield Caller(server)
        group.cancel_scope.cancel()


async def make(caller: Caller, name: str, *rules: dict[str, Any], **more: Any) -> None:
    await caller.create(ROLES, {"metadata": {"name": name, **more.pop("metadata", {})}, "rules": list(rules), **more})
    await quiet()


def gathering(**labels: str) -> dict[str, Any]:
    return {"clusterRoleSelectors": [{"matchLabels": labels}]}


async def rules_of(caller: Caller, name: str) -> Any:
    await quiet()
    return (await caller.get(f"{ROLES}/{name}"))["rules"]


async def test_rules_are_gathered_by_name_of_their_role_and_once_each(caller: Caller) -> None:
    await make(caller, "all", PODS, aggregationRule=gathering(x="y"))
    assert await rules_of(caller, "all") is None
    await make(caller, "part1", PODS, metadata={"labels": {"x": "y"}})
    await make(caller, "part0", NODES, PODS, metadata={"labels": {"x": "y"}})
    await make(caller, "other", rule("get", "secrets"))
    assert await rules_of(caller, "all") == [NODES, PODS]
    await caller.ok("DELETE", f"{ROLES}/part0")
    assert await rules_of(caller, "all") == [PODS]
    await caller.patch(f"{ROLES}/part1", {"metadata": {"labels": None}})
    assert await rules_of(caller, "all") is None


async def test_what_is_gathered_is_gathered_again(caller: Caller) -> None:
    custom = {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}
    widgets = rule("get list watch", "widgets", "example.com")
    await make(caller, "widgets", widgets, metadata=custom)
    for name in ("view", "edit", "admin"):
        assert widgets in await rules_of(caller, name)


async def test_the_first_roles_are_gathered_already(caller: Caller) -> None:
    before = (await caller.get(ROLES))["metadata"]["resourceVersion"]
    await quiet()
    assert (await caller.get(ROLES))["metadata"]["resourceVersion"] == before
