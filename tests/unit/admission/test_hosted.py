"""Whole controllers over HTTPS: an API server that calls them when nodes come and go, and when none answers."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import anyio
import pytest
from kubesim.cluster import NodeSpec
from kubesim.controllers.karpenter import karpenters
from kubesim.controllers.nodeclaims import NODE_CLAIMS
from support.admission import CONFIGURATION, NODES, SECRET, Hosted, _is_ready, a_review, hosted, is_late, post
from support.disruption import NODE_BUDGETS, a_node_budget_manifest
from support.karpenter import DEFINITIONS, NODE_POOLS
from support.servers import free_port

from gracectl.admission import admission
from gracectl.app.controller import Controller
from gracectl.controllers import karpenter
from gracectl.kube.resources import NODE_DRAINS
from gracectl.model import names
from gracectl.telemetry.metrics import ADMISSION_REGISTERED

pytestmark = pytest.mark.real_time

DENIED = (
    'admission webhook "delete.nodes.gracectl.io" denied the request: node n1: deletion denied: node disruption '
    "budget pool-a allows no termination now (2 of 2 available, 2 required by minAvailable 100%); change or delete the "
    "budget, which never allows a termination"
)


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints without delay: a replica that goes is removed at once."""
    monkeypatch.setattr(admission, "LINGER_SECONDS", 0.0)


def a_node(name: str, **metadata: Any) -> dict[str, Any]:
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, **metadata}}


async def registered(place: Hosted, port: int) -> None:
    await place.routed(port)
    await place.register()


async def test_a_node_has_the_finalizer_from_birth() -> None:
    async with hosted() as place:
        port = free_port()
        async with place.controller(port=port):
            await registered(place, port)
            made = await place.call("POST", NODES, a_node("n1"))
            assert made["metadata"]["finalizers"] == [names.FINALIZER]
            labels = {names.CONTROL_PLANE_ROLE: ""}
            assert "finalizers" not in (await place.call("POST", NODES, a_node("cp", labels=labels)))["metadata"]


async def test_a_deletion_that_breaks_a_budget_is_denied_and_a_dry_run_counts_nothing() -> None:
    async with hosted() as place:
        port = free_port()
        await place.add_nodes("n1", "n2", pool="a")
        async with place.controller(port=port):
            await registered(place, port)
            await place.create_budget(minAvailable="100%")
            for query in ({}, {"dryRun": "All"}):
                response = await place.ask("DELETE", f"{NODES}/n1", **query)
                assert (response.status, response.body["reason"]) == (429, "TooManyRequests")
                assert response.body["message"] == DENIED
                [cause] = response.body["details"]["causes"]
                assert (cause["reason"], cause["field"]) == ("NodeDisruptionBudget", "pool-a")
                assert "retry-after" not in {name.lower() for name in response.headers}
            await place.call("PATCH", f"{NODE_BUDGETS}/pool-a", {"spec": {"minAvailable": 1}})
            table = place.server.store.table("nodedisruptionbudgets.termination.karpenter.sh")

            def status() -> Any:
                budget: Any = table.get("", "pool-a")
                return budget["status"]

            await place.until(lambda: status()["disruptionsAllowed"] == 1)
            assert (await place.ask("DELETE", f"{NODES}/n1", **{"dryRun": "All"})).status == 200
            assert not status().get("disruptedNodes")
            assert (await place.ask("DELETE", f"{NODES}/n1")).status == 200
            assert (
                await place.ask("DELETE", f"{NODES}/n1")
            ).status == 200  # no webhook is called for a node that is being deleted
            assert (await place.ask("DELETE", f"{NODES}/n2")).status == 429


async def test_a_claim_of_karpenter_is_denied_before_its_clock_runs_and_its_node_is_not_denied_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(karpenter, "POLL_SECONDS", 0.05)
    async with hosted() as place:
        port = free_port()
        await place.call("POST", DEFINITIONS, NODE_POOLS)
        for name in ("k1", "k2"):
            await place.cluster.add_node(NodeSpec(name=name, labels={"pool": "a"}, claim=karpenters()))
        await place.until(lambda: all(_is_ready(place.node(name)) for name in ("k1", "k2")))
        async with place.controller(port=port) as (controller, *_):
            await registered(place, port)
            await place.until(lambda: "karpenter" in [check.name for check in controller.process.readiness()])
            await place.create_budget(minAvailable="100%")
            response = await place.ask("DELETE", f"{NODE_CLAIMS}/k1-claim")
            assert response.status == 429
            assert response.body["message"] == DENIED.replace("delete.nodes", "delete.nodeclaims").replace(
                "node n1: deletion denied: ", "node claim k1-claim: deletion denied: node k1: "
            )
            await place.call("PATCH", f"{NODE_BUDGETS}/pool-a", {"spec": {"minAvailable": 1}})
            table = place.server.store.table("nodedisruptionbudgets.termination.karpenter.sh")

            def status() -> Any:
                budget: Any = table.get("", "pool-a")
                return budget["status"]

            await place.until(lambda: status()["disruptionsAllowed"] == 1)
            hold = {"metadata": {"finalizers": [names.FINALIZER]}}
            await place.call("PATCH", f"{NODE_CLAIMS}/k1-claim", hold)
            assert (await place.ask("DELETE", f"{NODE_CLAIMS}/k1-claim")).status == 200
            assert "k1" in status()["disruptedNodes"]
            assert (await place.ask("DELETE", f"{NODE_CLAIMS}/k2-claim")).status == 429
            await place.call("POST", NODE_BUDGETS, a_node_budget_manifest("later", minAvailable="100%"))
            await place.until(lambda: "observedGeneration" in ((table.get("", "later") or {}).get("status") or {}))
            assert (await place.ask("DELETE", f"{NODES}/k1")).status == 200
            assert (await place.ask("DELETE", f"{NODES}/k2")).status == 429


async def test_a_drain_names_its_user_and_is_refused_with_a_window_that_cannot_be_read() -> None:
    async with hosted() as place:
        port = free_port()
        async with place.controller(port=port):
            await registered(place, port)
            drain = {
                "apiVersion": NODE_DRAINS.api_version,
                "kind": NODE_DRAINS.kind,
                "spec": {"action": "Drain", "nodeName": "n1"},
            }
            metadata = {"generateName": "nightly-", "annotations": {names.REQUESTED_BY: "another"}}
            made = await place.call("POST", NODE_DRAINS.path(), {**drain, "metadata": metadata})
            user = made["metadata"]["annotations"][names.REQUESTED_BY]
            assert user not in ("", "another")
            path = NODE_DRAINS.path("", made["metadata"]["name"])
            change = {"metadata": {"annotations": {names.REQUESTED_BY: None}}}
            assert (await place.call("PATCH", path, change))["metadata"]["annotations"][names.REQUESTED_BY] == user
            windows = [{"schedule": "0 25 * * *", "duration": "1h"}]
            response = await place.ask("PATCH", path, {"spec": {"windows": windows}})
            assert response.status == 422
            assert (
                "spec.windows[0].schedule: '0 25 * * *' is no cron schedule: bad hour; give" in response.body["message"]
            )


async def test_what_is_written_into_budgets_and_claims_is_judged() -> None:
    async with hosted() as place:
        port = free_port()
        async with place.controller(port=port):
            await registered(place, port)
            odd = a_node_budget_manifest(minAvailable=1) | {"spec": {"minAvailable": 1}}
            response = await place.ask("POST", NODE_BUDGETS, odd)
            assert response.status == 201
            assert "selects no node" in response.headers["warning"]
            wrong = a_node_budget_manifest("b", minAvailable=1)
            wrong["spec"]["selector"] = {"matchExpressions": [{"key": "a", "operator": "Like"}]}
            response = await place.ask("POST", NODE_BUDGETS, wrong)
            assert response.status == 422
            assert "spec.selector: 'Like' is no selector operator" in response.body["message"]
            claim = {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodeClaim",
                "metadata": {"name": "c1", "annotations": {names.TERMINATION_TIMESTAMP: "noon"}},
                "spec": {"nodeClassRef": {"group": "g", "kind": "K", "name": "n"}, "requirements": []},
            }
            response = await place.ask("POST", "/apis/karpenter.sh/v1/nodeclaims", claim)
            assert response.status == 422
            assert "'noon' is not an RFC 3339 time" in response.body["message"]


@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 200)])
async def test_without_a_replica_the_failure_policy_decides_about_ready_nodes(policy: str, status: int) -> None:
    async with hosted() as place:
        port = free_port()
        await place.add_nodes("n1", "n2", "n3", pool="a")
        async with place.controller(port=port, admission={"failurePolicy": policy}):
            await registered(place, port)
            await place.until(lambda: all(_finalizers(place, name) for name in ("n1", "n2", "n3")))
        ready = await place.ask("DELETE", f"{NODES}/n1")
        assert ready.status == status
        if status == 500:
            assert 'failed calling webhook "delete.nodes.gracectl.io"' in ready.body["message"]
        place.cluster.kubelet.kill("n2")
        gone = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        await place.call("PATCH", f"{NODES}/n2/status", gone)
        assert (await place.ask("DELETE", f"{NODES}/n2")).status == 200
        assert (await place.ask("POST", NODES, a_node("n4"))).status == 201
        assert (await place.ask("DELETE", f"{NODES}/n4")).status == 200  # it has no status at all
        assert (await place.ask("POST", NODE_BUDGETS, a_node_budget_manifest(minAvailable=1))).status == 201


def _finalizers(place: Hosted, name: str) -> list[str]:
    node = place.node(name)
    assert node is not None
    finalizers: list[str] = node["metadata"].get("finalizers") or []
    return finalizers


@asynccontextmanager
async def three_replicas(place: Hosted) -> AsyncIterator[dict[int, tuple[Controller, anyio.Event]]]:
    """Three that contend for a Lease, by the ports at which they answer."""
    async with AsyncExitStack() as stack:
        replicas = {}
        for port in (free_port() for _ in range(3)):
            running = place.controller(port=port, leaderElection={"enabled": True, "namespace": "infra"})
            replicas[port] = await stack.enter_async_context(running)
        await registered(place, next(iter(replicas)))
        await place.until(
            lambda: all(check.is_ok for each, _ in replicas.values() for check in each.process.readiness())
        )
        yield replicas


def leads(controller: Controller) -> bool:
    election = controller.statistics().election
    return election is not None and election.is_leading


async def test_every_replica_answers_leader_or_not() -> None:
    async with hosted() as place, three_replicas(place) as replicas:
        for port in replicas:
            await place.routed(port)
            made = await place.call("POST", NODES, a_node(f"n{port}"))
            assert made["metadata"]["finalizers"] == [names.FINALIZER]
        [leader] = [port for port, (controller, _) in replicas.items() if leads(controller)]
        replicas.pop(leader)[1].set()
        await place.routed(*replicas)
        await place.until(lambda: any(leads(controller) for controller, _ in replicas.values()))
        made = await place.call("POST", NODES, a_node("later"))
        assert made["metadata"]["finalizers"] == [names.FINALIZER]


async def test_deletions_at_once_through_three_replicas_never_break_a_budget() -> None:
    async with hosted() as place, three_replicas(place) as replicas:
        pool = [f"n{number}" for number in range(20)]
        await place.add_nodes(*pool, pool="a")
        await place.create_budget(minAvailable="80%")
        statuses: Counter[int | str] = Counter()
        turns = cycle(replicas)

        async def delete(name: str) -> None:
            await place.routed(next(turns))
            response = await place.ask("DELETE", f"{NODES}/{name}")
            statuses["late" if is_late(response.status, response.body) else response.status] += 1

        async with anyio.create_task_group() as group:
            for name in (*pool, *pool, *pool[:10]):
                group.start_soon(delete, name)
        going = [name for name in pool if (node := place.node(name)) is None or "deletionTimestamp" in node["metadata"]]
        assert len(going) == 4 or (len(going) < 4 and statuses["late"])
        assert {200, 429} <= {each for each in statuses if statuses[each]} <= {200, 429, "late"}


async def test_readiness_waits_for_a_certificate() -> None:
    async with hosted() as place:
        await place.call("DELETE", "/api/v1/namespaces/infra")
        async with place.controller(port=free_port()) as (controller, _):
            await controller.wait_live()
            [check] = [each for each in controller.process.readiness() if each.name == "admission"]
            assert not check.is_ok
            assert check.reason.startswith("no certificate yet")
            assert not place.is_registered()


async def test_readiness_names_faults_of_configurations_and_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.05)
    async with hosted() as place:
        port = free_port()
        async with place.controller(port=port) as (controller, _):
            await controller.wait_live()

            def said() -> str:
                [check] = [each for each in controller.process.readiness() if each.name == "admission"]
                return check.reason if check.is_ok else ""

            await place.until(lambda: said().endswith("; run gracectl webhooks --apply"))
            await registered(place, port)
            await place.until(lambda: said() != "" and "; " not in said())
            samples = filter(None, controller.process.samples())
            [gauge] = [each.value for each in samples if each.metric is ADMISSION_REGISTERED]
            assert gauge == 1


async def test_a_forged_review_of_a_ready_node_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the name and the UID, which every pod of the cluster may learn, but not the path."""
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.05)
    async with hosted() as place:
        port = free_port()
        await place.add_nodes("n1", "n2", pool="a")
        async with place.controller(port=port):
            await registered(place, port)
            await place.create_budget(maxUnavailable=1)
            table = place.server.store.table("nodedisruptionbudgets.termination.karpenter.sh")

            def status() -> Any:
                budget: Any = table.get("", "pool-a")
                return budget["status"]

            await place.until(lambda: status()["disruptionsAllowed"] == 1)
            authority = b64decode((await place.call("GET", SECRET))["data"]["ca.crt"])
            review = a_review("DELETE", "nodes", None, place.node("n1"))
            for path in ("/validate/nodes", f"/{'0' * 32}/validate/nodes"):
                assert (await post(port, path, review, authority))[0] == 404
            assert not status().get("disruptedNodes")
            assert (await place.ask("DELETE", f"{NODES}/n2")).status == 200  # which the forged one would have blocked


async def test_an_older_configuration_is_served_until_it_is_registered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.05)
    async with hosted() as place:
        port = free_port()
        async with place.controller(port=port) as (controller, _):
            await registered(place, port)
            mutating = CONFIGURATION.format("mutating")
            [webhook, _] = (await place.call("GET", mutating))["webhooks"]
            webhook["clientConfig"]["service"]["path"] = "/mutate/nodes"
            await place.call("PATCH", mutating, {"webhooks": [webhook]})
            watch = controller._admission
            assert watch is not None
            await place.until(lambda: watch._registration.names_plain_paths)
            assert (await place.call("POST", NODES, a_node("n1")))["metadata"]["finalizers"] == [names.FINALIZER]
            await place.register()
            await place.until(lambda: not watch._registration.names_plain_paths)
            assert (await place.call("POST", NODES, a_node("n2")))["metadata"]["finalizers"] == [names.FINALIZER]
