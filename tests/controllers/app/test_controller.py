"""The composed controller: what it checks before it begins, and how it ends when one of its parts does."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from kubesim.apiserver import ApiServer
from kubesim.faults import Refuse, Rule
from kubesim_support.accounts import RBAC, as_admin, grant, guarded, rule
from support.inprocess import InProcessTransport
from support.stage import CloudProvider, Stage, staged, the_settings

from gracectl.app.controller import Controller
from gracectl.cli.crds import shipped_definitions
from gracectl.cloud.none import NoneProvider
from gracectl.config import Settings
from gracectl.controllers.disruption import controller as voluntary
from gracectl.controllers.finalizer import controller as keeper
from gracectl.controllers.rbac import (
    CLAIM_RIGHTS,
    NODE_BUDGET_RIGHTS,
    NODE_DRAIN_RIGHTS,
    RIGHTS,
    MissingPermissions,
    freeze_rights,
    lease_rights,
)
from gracectl.eviction.deleter import PLACES_FACTOR
from gracectl.eviction.settings import PLACES_PER_NAMESPACE
from gracectl.kube.errors import ServerError, Unauthorized, Unreachable
from gracectl.kube.http import HttpSettings
from gracectl.kube.rbac import Permission
from gracectl.model.pod import Pod
from gracectl.nodebudgets import status_controller as counting
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.queue import URGENT_SLOTS
from gracectl.runtime.supervise import ComponentFailed

EVERYTHING = (
    rule("get list watch patch delete", "nodes"),
    rule("patch", "nodes/status"),
    rule("get list watch delete", "pods"),
    rule("patch", "pods/status"),
    rule("create", "pods/eviction"),
    rule("patch", "pods/status"),
    rule("list watch", "poddisruptionbudgets", "policy"),
    rule("list watch", "volumeattachments", "storage.k8s.io"),
    rule("get", "persistentvolumeclaims"),
    rule("create patch", "events"),
    rule("list watch", "configmaps"),
    rule("get list watch create update", "leases", "coordination.k8s.io"),
)
"""What docs/permissions.md lists, no more."""

OUR_LEASE = ("kube-system", "gracectl")
OURS = ("leases", "configmaps")


def a_controller(server: ApiServer, clock: LoopClock, token: str = "") -> tuple[Controller, InProcessTransport]:
    transport = InProcessTransport(server, clock, token=token)
    return Controller(Settings(), transport, clock, NoneProvider(NoneProvider.Options())), transport


async def test_check_returns_the_servers_version() -> None:
    clock = LoopClock()
    controller, transport = a_controller(ApiServer(clock), clock)
    assert (await controller.check()).startswith("v1.")
    reviews = [each for each in transport.executed if each.operation.resource == "selfsubjectaccessreviews"]
    assert len(reviews) == len(RIGHTS) + len(lease_rights(OUR_LEASE)) + len(freeze_rights(OUR_LEASE[0]))


async def test_the_documented_rights_are_enough() -> None:
    clock = LoopClock()
    controller, _ = a_controller(await guarded(clock, "gracectl", *EVERYTHING), clock, "t")
    await controller.check()


async def test_nothing_is_asked_that_is_not_among_the_rights() -> None:
    """A whole drain with no more rights than those that are checked."""
    async with staged("n1", settings=Settings()) as stage:
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.until_gone("n1")
        asked = {
            Permission(op.verb, op.plural, op.group, op.subresource, op.namespace if op.plural in OURS else "")
            for op in (each.operation for each in stage.transport.executed)
            if not op.plural.startswith("/apis")  # discovery needs no right
        }
        named = (*lease_rights(OUR_LEASE), *freeze_rights(OUR_LEASE[0]))
        ours = {msgspec.structs.replace(right, name="") for right in named}
        assert asked <= {*RIGHTS, *CLAIM_RIGHTS, *NODE_BUDGET_RIGHTS, *NODE_DRAIN_RIGHTS, *ours}
        assert asked >= ours


async def test_permissions_on_leases_are_checked_in_their_namespace_and_only_with_leader_election() -> None:
    clock = LoopClock()
    server = await guarded(clock, "gracectl", *(each for each in EVERYTHING if "leases" not in each["resources"]))
    settings = the_settings(leaderElection={"namespace": "shop"})
    provider = NoneProvider(NoneProvider.Options())
    transport = InProcessTransport(server, clock, token="t")
    with pytest.raises(MissingPermissions) as caught:
        await Controller(settings, transport, clock, provider).check()
    assert caught.value.rights == lease_rights(("shop", "gracectl"))
    assert "update leases gracectl in API group coordination.k8s.io in namespace shop" in str(caught.value)
    await Controller(the_settings(), transport, clock, provider).check()
    role = {"metadata": {"name": "gracectl"}, "rules": [EVERYTHING[-1]]}
    await as_admin(server, "POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    await as_admin(server, "POST", f"{RBAC}/namespaces/shop/roles", role)
    binding = {
        "metadata": {"name": "gracectl"},
        "roleRef": {"kind": "Role", "name": "gracectl"},
        "subjects": [{"kind": "User", "name": "gracectl"}],
    }
    await as_admin(server, "POST", f"{RBAC}/namespaces/shop/rolebindings", binding)
    await Controller(settings, transport, clock, provider).check()


async def test_check_lists_every_right_that_is_missing() -> None:
    clock = LoopClock()
    few = [each for each in EVERYTHING if not {"nodes", "pods/eviction"} & set(each["resources"])]
    controller, _ = a_controller(await guarded(clock, "gracectl", *few), clock, "t")
    with pytest.raises(MissingPermissions) as caught:
        await controller.check()
    missing = [str(right) for right in caught.value.rights]
    assert missing == [
        *(f"{verb} nodes" for verb in ("get", "list", "watch", "patch", "delete")),
        "create pods/eviction",
    ]
    assert "; ".join(missing) in str(caught.value)


async def test_check_asks_for_the_rights_to_node_claims_only_where_there_are_such() -> None:
    clock = LoopClock()
    server = await guarded(clock, "gracectl", *EVERYTHING)
    controller, _ = a_controller(server, clock, "t")
    await controller.check()
    (claims,) = (each for each in shipped_definitions() if each["metadata"]["name"] == "nodeclaims.karpenter.sh")
    await as_admin(server, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", claims)
    await clock.sleep(5)
    with pytest.raises(MissingPermissions) as caught:
        await controller.check()
    assert caught.value.rights == CLAIM_RIGHTS


async def test_check_tells_a_bad_token_from_missing_rights() -> None:
    clock = LoopClock()
    controller, _ = a_controller(await guarded(clock, "gracectl"), clock, "unknown")
    with pytest.raises(Unauthorized):
        await controller.check()


@pytest.mark.parametrize("kind", ["down", "failing"])
async def test_a_server_that_does_not_answer_is_told_soon(kind: str) -> None:
    clock = LoopClock()
    controller, transport = a_controller(ApiServer(clock), clock)
    if kind == "down":
        transport.is_listening = False
    else:
        transport.before.add(Rule(fault=Refuse(500)))
    with pytest.raises((Unreachable, ServerError)):
        await controller.check()
    assert clock.monotonic() < 1.0


async def test_a_part_that_dies_takes_the_process_down_with_its_name() -> None:
    async with staged("n1") as stage:
        controller = a_fresh(stage)
        controller._cluster.pods.subscribe(fail)
        await stage.create({**POD})
        with pytest.raises(ComponentFailed) as caught:
            await controller.run(anyio.Event())
        assert caught.value.component == "watch of pods"
        assert str(caught.value) == "watch of pods failed: ZeroDivisionError: division by zero"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert stage.provider.is_closed


async def test_a_server_that_refuses_after_the_check_is_waited_for() -> None:
    """An API server that starts answers 403 until it has read its roles (seen on Kubernetes 1.37)."""
    clock, stop = LoopClock(), anyio.Event()
    server = await guarded(clock, "gracectl", *EVERYTHING[1:])
    controller, _ = a_controller(server, clock, "t")
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run, stop)
        await anyio.sleep(60)
        (nodes,) = (each for each in controller.statistics().caches if each.name == "nodes")
        assert not nodes.live
        await grant(server, {"kind": "User", "name": "gracectl"}, EVERYTHING[0], name="late")
        await controller.wait_live()
        stop.set()


async def test_told_to_stop_it_returns_and_gives_back_the_provider() -> None:
    async with staged("n1") as stage:
        controller, stop = a_fresh(stage), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run, stop)
            await controller.wait_live()
            stop.set()
        assert stage.provider.is_closed


async def test_the_statistics_are_of_every_part() -> None:
    async with staged("n1", "n2") as stage, stage.settled() as controller:
        await stage.clock.sleep(1)
        numbers = controller.statistics()
        assert {cache.name: (cache.live, cache.objects) for cache in numbers.caches} == {
            "nodes": (True, 2),
            "pods": (True, 0),
            "budgets": (True, 0),
            "attachments": (True, 0),
            "claims": (True, 0),
            "node-budgets": (True, 0),
            "node-drains": (True, 0),
        }
        assert numbers.client.count("patch", "nodes") == 2
        assert numbers.evictor.requests == 0
        assert controller.under_way() == controller.finished() == ()


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "namespace": "shop"},
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
}


def fail(old: Pod | None, new: Pod | None) -> None:
    raise ZeroDivisionError("division by zero")


def a_fresh(stage: Stage) -> Controller:
    assert isinstance(stage.provider, CloudProvider)
    return Controller(stage.settings, stage.transport, stage.clock, stage.provider)


def test_the_transport_has_a_connection_for_every_worker_there_can_be_and_watches_and_reviews_besides() -> None:
    eviction, termination = Settings().eviction, Settings().termination
    of_namespaces = (2 + PLACES_FACTOR) * PLACES_PER_NAMESPACE * eviction.max_in_flight
    walks = 2 * (2 * termination.workers) + URGENT_SLOTS + 1
    evictions, others = 2 * of_namespaces, 2 * (2 * keeper.CONCURRENCY) + voluntary.WORKERS + counting.WORKERS
    assert evictions + walks + others + 100 <= HttpSettings().connections
