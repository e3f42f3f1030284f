"""Whole controllers over HTTPS: an API server that asks them when nodes come and go, and when nobody answers."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from support.hosted import CONFIGURATION, NODES, Hosted, free_port, hosted
from support.nodebudgets import NODE_BUDGETS, a_node_budget_manifest

from gracectl.admission import admission
from gracectl.model import names

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

DENIED = (
    'admission webhook "delete.nodes.gracectl.io" denied the request: node n1 may not end now: node disruption budget '
    "pool-a allows no node to end now (2 of 2 available, 2 required by minAvailable 100%); change or delete the "
    "budget, which lets no Ready node end"
)


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here is told late of a replica that goes."""
    monkeypatch.setattr(admission, "LINGER_SECONDS", 0.0)


async def registered(place: Hosted, port: int) -> None:
    await place.routed(port)
    await place.until(place.is_registered)


async def test_a_node_has_the_finalizer_from_birth() -> None:
    async with hosted() as place:
        port = free_port()
        async with place.controller(port=port):
            await registered(place, port)
            made = await place.call("POST", NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}})
            assert made["metadata"]["finalizers"] == [names.FINALIZER]
            labels = {names.CONTROL_PLANE_ROLE: ""}
            other = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "cp", "labels": labels}}
            assert "finalizers" not in (await place.call("POST", NODES, other))["metadata"]


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
            ).status == 200  # a node that is going is asked for by nobody
            assert (await place.ask("DELETE", f"{NODES}/n2")).status == 429


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
            assert "'noon' is no RFC 3339 time" in response.body["message"]


@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 200)])
async def test_with_nobody_to_ask_the_failure_policy_decides_and_only_about_ready_nodes(
    policy: str, status: int
) -> None:
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
        new = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n4"}}
        assert (await place.ask("POST", NODES, new)).status == 201
        assert (await place.ask("DELETE", f"{NODES}/n4")).status == 200  # it has no status at all
        assert (await place.ask("POST", NODE_BUDGETS, a_node_budget_manifest(minAvailable=1))).status == 201


def _finalizers(place: Hosted, name: str) -> list[str]:
    node = place.node(name)
    assert node is not None
    found: list[str] = node["metadata"].get("finalizers") or []
    return found


async def test_every_replica_answers_with_one_certificate_and_a_leader_that_goes_is_not_missed() -> None:
    async with hosted() as place, anyio.create_task_group() as group:
        ports = [free_port() for _ in range(3)]
        lease = {"enabled": True, "namespace": "infra"}
        stops = []
        for port in ports:
            running = place.controller(port=port, leaderElection=lease)
            controller, stop = await running.__aenter__()
            stops.append((running, controller, stop))
        try:
            await registered(place, ports[0])
            for port, (_, controller, _) in zip(ports, stops, strict=True):
                await place.until(lambda c=controller: all(check.is_ok for check in c.readiness()))  # type: ignore[misc]
                await place.routed(port)
                made = await place.call(
                    "POST", NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": f"n{port}"}}
                )
                assert made["metadata"]["finalizers"] == [names.FINALIZER]
            assert len({text for _, c, _ in stops for text in _certificates(c)}) == 1
        finally:
            for running, _, _ in reversed(stops):
                await running.__aexit__(None, None, None)
        group.cancel_scope.cancel()


def _certificates(controller: Any) -> set[str]:
    return {check.seen for check in controller.readiness() if check.name == "admission"}


async def test_readiness_waits_for_a_certificate() -> None:
    async with hosted() as place:
        await place.call("DELETE", "/api/v1/namespaces/infra")
        async with place.controller(port=free_port()) as (controller, _):
            await controller.wait_live()
            [check] = [each for each in controller.readiness() if each.name == "admission"]
            assert (check.is_ok, check.seen) == (False, "there is no certificate yet")
            assert not place.is_registered()


async def test_a_configuration_that_somebody_spoils_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    from gracectl.admission import office

    monkeypatch.setattr(office, "LOOK_SECONDS", 0.05)
    async with hosted() as place:
        port = free_port()
        await place.add_nodes("n1", "n2", pool="a")
        async with place.controller(port=port):
            await registered(place, port)
            await place.create_budget(minAvailable="100%")
            await place.call("PATCH", CONFIGURATION.format("validating"), {"webhooks": []})
            table = place.server.store.table("validatingwebhookconfigurations.admissionregistration.k8s.io")
            await place.until(lambda: bool((table.get("", "gracectl") or {}).get("webhooks")))
            assert (await place.ask("DELETE", f"{NODES}/n1")).status == 429
