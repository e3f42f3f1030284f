"""Pods that are replaced before their eviction: released, replaced elsewhere and evicted, or returned."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from kubesim.faults import Refuse, Rule
from kubesim.server.api import JsonObject
from support.clients import Laptop, a_client, mortal, named
from support.collector import figures
from support.replacing import (
    ASKS,
    annotate_pod,
    edit_deployment,
    endpoints,
    generation,
    is_released,
    owner_of,
    pods_of,
    the_pod,
    web,
)
from support.stage import SILENT, Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings
from support.stories import START, WAYS_BACK, deletions, draining, evictions, keep, told, until, with_grace_period

from gracectl.controllers.cluster import workloads
from gracectl.controllers.cluster.workloads import read_workloads
from gracectl.inspect.forecast import forecast_drains
from gracectl.inspect.watcher import snapshot
from gracectl.kube.transport import Request, Response
from gracectl.model import names
from gracectl.model.bounds import Limits
from gracectl.model.times import format_time
from gracectl.model.untrusted import Decoder
from gracectl.policy.answers import Unknown

BUDGETS = [{"minAvailable": 1}, {"maxUnavailable": 0}, {"minAvailable": "100%"}, None]
FOR_30_MINUTES = {"replaceFirst": {"patience": "30s"}}


def node_of(pod: JsonObject) -> str:
    return str(pod["spec"]["nodeName"])


def name_of(pod: JsonObject) -> str:
    return str(pod["metadata"]["name"])


def others(node: str) -> str:
    return {"n1": "n2", "n2": "n1"}[node]


def with_budget(bound: dict[str, Any] | None = None, **more: Any) -> list[JsonObject]:
    return [web(**more), *([a_budget_manifest("web", **bound)] if bound else [])]


def reason_on(stage: Stage, node: str) -> str:
    condition = stage.condition(node, names.DRAINED)
    return "" if condition is None else str(condition["message"])


@pytest.mark.parametrize("bound", BUDGETS, ids=str)
async def test_a_single_replica_is_replaced_without_a_moment_of_downtime(bound: dict[str, Any] | None) -> None:
    async with staged("n1", "n2", objects=with_budget(bound)) as stage:
        pod, before = await the_pod(stage), generation(stage)
        node = node_of(pod)
        async with endpoints(stage) as seen, draining(stage, node) as controller:
            assert await stage.until_gone(node) == pytest.approx(104.0, abs=0.1)
            assert evictions(stage) == [(name_of(pod), 3.0)]
            assert figures(controller, "pods_replaced_first_total")["pods_replaced_first_total", "released"] == 1
        assert seen.fewest == 1
        assert generation(stage) == before
        (replacement,) = pods_of(stage)
        assert (node_of(replacement), is_released(replacement)) == (others(node), False)
        (message,) = await told(stage, name_of(pod), "PodReleased")
        assert message == (
            f"shop/{name_of(pod)} released from ReplicaSet {owner_of(pod)}, which replaces it; evicted from node "
            f"{node} when its replacement is Ready"
        )
        assert await told(stage, "web", "PodReleased") == [message]


async def test_without_the_annotation_nothing_is_read_and_nothing_released() -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1}, pod={"annotations": {}})) as stage:
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 60.0)
            assert evictions(stage) == []
            assert not is_released(await the_pod(stage))
            assert stage.transport.of("get", "replicasets") == stage.transport.of("patch", "pods") == []


async def test_a_workload_that_takes_too_much_memory_is_not_replaced_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "LARGEST_FACTS", 100)
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1})) as stage:
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 60.0)
            assert not is_released(await the_pod(stage))
            assert "not replaced first: its workload's objects and pods have more than 100 bytes" in reason_on(
                stage, node_of(pod)
            )


async def test_workloads_of_a_namespace_with_too_much_in_memory_are_not_replaced_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not read again and again either."""
    monkeypatch.setattr(workloads, "LIMITS", Limits(free=0, per_namespace=6_000, in_all=60_000))
    others = [a_workload("Deployment", f"web-{number}", 1, pod={"annotations": ASKS}) for number in range(6)]
    budgets = [a_budget_manifest(f"web-{number}", minAvailable=1) for number in range(6)]
    async with staged("n1", "n2", "n3", objects=[*others, *budgets]) as stage, draining(stage, "n1", "n2", "n3"):
        await until(stage, 30.0)
        assert "already have most of their 0.0 MiB" in " ".join(map(partial(reason_on, stage), ("n1", "n2", "n3")))
        assert len(stage.transport.of("get", "replicasets")) < 60


async def test_a_pod_that_changes_all_the_time_does_not_make_us_read_its_workload_all_the_time() -> None:
    """Its replacement never becomes Ready; another client writes to it 20 times a second."""
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1}, ready=60.0)) as stage:
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 5.0)
            before = len(stage.transport.of("get", "replicasets"))
            for number in range(600):
                await annotate_pod(stage, pod, {names.REPLACE_FIRST: "true", "owner": f"n{number}"})
                await stage.clock.sleep(0.05)
            assert 20 <= len(stage.transport.of("get", "replicasets")) - before <= 45


async def test_a_pod_that_changes_while_its_workload_is_read_is_seen_a_second_later() -> None:
    """The list of pods is older than the replacement's readiness; the requests after it are slow."""
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1}, ready=3.0)) as stage:
        pod = await the_pod(stage)
        send, is_slow = stage.transport.send, False

        async def slowly(request: Request) -> Response:
            response = await send(request)
            if is_slow and request.path.endswith("/shop/pods"):
                await stage.clock.sleep(1.5)
            return response

        stage.transport.send = slowly  # type: ignore[method-assign]
        async with draining(stage, node_of(pod)):
            await until(stage, 2.0)
            is_slow = True
            await annotate_pod(stage, pod, {"owner": "someone"})
            await stage.until(lambda: bool(stage.evictions))
            assert stage.clock.monotonic() - START < 10.0


async def test_a_workload_with_many_volumes_costs_no_requests_for_each() -> None:
    claims = [a_claim(f"data-{number}", "ReadWriteMany") for number in range(21)]
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"data-{n}"}} for n in range(21)]
    objects = [*claims, *with_budget({"minAvailable": 1}, pod={"volumes": volumes})]
    async with staged("n1", "n2", objects=objects) as stage:
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 30.0)
            assert "its workload has more than 20 volume claims" in reason_on(stage, node_of(pod))
            assert stage.transport.of("get", "persistentvolumeclaims") == []


async def test_an_object_that_cannot_be_decoded_ends_the_replacement_and_not_the_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workloads, "NETWORK_POLICIES", workloads.NETWORK_POLICIES.read_by(Decoder(int).decode))
    objects = [*with_budget({"minAvailable": 1}), a_pod_manifest("other", "n1"), a_pod_manifest("more", "n2")]
    async with staged("n1", "n2", objects=objects) as stage:
        await stage.call("POST", POLICIES, POLICY)
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 15.0)
            assert "not replaced first: a NetworkPolicy of its namespace cannot be decoded" in reason_on(
                stage, node_of(pod)
            )
            assert [name for name, _ in evictions(stage)] in (["other"], ["more"])


async def test_an_administrator_asks_for_pods_of_a_namespace() -> None:
    labels = {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}
    settings = the_settings(replaceFirst={"namespaceSelector": labels})
    objects = with_budget({"minAvailable": 1}, pod={"annotations": {}})
    async with staged("n1", "n2", objects=objects, settings=settings) as stage:
        pod = await the_pod(stage)
        async with endpoints(stage) as seen, draining(stage, node_of(pod)):
            await stage.until_gone(node_of(pod))
        assert (seen.fewest, evictions(stage)) == (1, [(name_of(pod), 3.0)])


async def test_workloads_with_several_replicas_keep_all_of_them() -> None:
    settings = the_settings(replaceFirst={"always": True})
    objects = with_budget({"maxUnavailable": 1}, replicas=4)
    async with staged("n1", "n2", "n3", objects=objects, settings=settings) as stage:
        count = len(stage.pods_on("n1"))
        assert count > 0
        async with endpoints(stage) as seen, draining(stage, "n1"):
            await stage.until_gone("n1")
            assert [at for _, at in evictions(stage)] == [3.0 * number for number in range(1, count + 1)]
        assert seen.fewest == 4


async def test_one_pod_of_a_workload_is_released_over_all_nodes() -> None:
    settings = the_settings(replaceFirst={"always": True})
    async with staged("n1", "n2", "n3", "n4", objects=with_budget(replicas=4), settings=settings) as stage:
        most = 0
        count = len(stage.pods_on("n1")) + len(stage.pods_on("n2"))
        async with endpoints(stage) as seen, draining(stage, "n1", "n2"):
            while stage.node("n1") is not None or stage.node("n2") is not None:
                most = max(
                    most, sum(is_released(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods_of(stage))
                )
                await stage.clock.sleep(0.05)
            assert len(evictions(stage)) == count
        assert (most, seen.fewest) == (1, 4)


# -- undone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("give_back", WAYS_BACK)
@pytest.mark.parametrize("after", [0.01, 1.0, 2.95])
async def test_an_uncordon_returns_the_pod_and_removes_its_replacement(give_back: Any, after: float) -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1})) as stage:
        pod = await the_pod(stage)
        async with endpoints(stage) as seen, stage.settled():
            await keep(stage, node_of(pod))
            await stage.until(lambda: any(map(is_released, pods_of(stage))))
            await stage.clock.sleep(after)
            await give_back(stage, node_of(pod))
            await stage.clock.sleep(10)
            (left,) = pods_of(stage)
        assert (name_of(left), owner_of(left), is_released(left)) == (name_of(pod), owner_of(pod), False)
        assert left["metadata"]["labels"] == pod["metadata"]["labels"]
        assert left["metadata"]["annotations"] == pod["metadata"]["annotations"]
        assert seen.fewest == 1
        assert await told(stage, name_of(pod), "PodReturned") == [
            f"returned to its ReplicaSet: node {node_of(pod)} is not drained"
        ]


async def test_a_replacement_that_is_ready_is_removed_and_not_the_old_pod() -> None:
    """A budget that the eviction waits for: the replacement has been Ready for a while."""
    objects = [web(), a_budget_manifest("web", minAvailable=2)]
    async with staged("n1", "n2", objects=objects) as stage:
        pod = await the_pod(stage)
        async with endpoints(stage) as seen, stage.settled():
            await keep(stage, node_of(pod))
            await stage.clock.sleep(20)
            assert [name_of(each) for each in pods_of(stage) if is_released(each)] == [name_of(pod)]
            await WAYS_BACK[0](stage, node_of(pod))
            await stage.clock.sleep(5)
            assert [name_of(each) for each in pods_of(stage)] == [name_of(pod)]
        assert seen.fewest == 1


async def test_of_two_pods_on_the_node_neither_is_removed_on_return() -> None:
    """A ReplicaSet removes pods of crowded nodes first, unless another one costs less."""
    objects = [web(2), a_budget_manifest("web", minAvailable=3)]
    async with staged("n1", objects=objects, settings=the_settings(replaceFirst={"always": True})) as stage:
        before = [name_of(each) for each in pods_of(stage)]
        await stage.add_nodes("n2")
        async with endpoints(stage) as seen, stage.settled():
            await keep(stage, "n1")
            await stage.clock.sleep(20)
            assert len(pods_of(stage)) == 3
            await WAYS_BACK[0](stage, "n1")
            await stage.clock.sleep(5)
        assert [name_of(each) for each in pods_of(stage)] == before
        assert seen.fewest == 2


async def test_a_replacement_that_is_not_ready_in_time_is_given_up_and_tried_again_later() -> None:
    objects = with_budget({"minAvailable": 1})
    async with staged("n1", "n2", objects=objects, settings=the_settings(**FOR_30_MINUTES)) as stage:
        pod = await the_pod(stage)
        await stage.patch_node(others(node_of(pod)), {"spec": {"unschedulable": True}})
        node = node_of(pod)
        async with endpoints(stage) as seen, draining(stage, node) as controller:
            await until(stage, 15.0)
            assert "replace first: its replacement shop/web-" in reason_on(stage, node)
            assert "is Pending: 0/2 nodes are available" in reason_on(stage, node)
            await until(stage, 31.0)
            assert [name_of(each) for each in pods_of(stage)] == [name_of(pod)]
            assert await told(stage, name_of(pod), "PodReturned") == [
                "returned to its ReplicaSet: replace first: its replacement was not Ready within 30s"
            ]
            await until(stage, 45.0)
            assert "its replacement was not Ready within 30s; trying again until" in reason_on(stage, node)
            assert figures(controller, "pods_replaced_first_total")["pods_replaced_first_total", "failed"] == 1
            await until(stage, 119.0)
            assert not is_released(await the_pod(stage))
            await stage.patch_node(others(node), {"spec": {"unschedulable": None}})
            assert await stage.until_gone(node) == pytest.approx(224.0, abs=1.5)
        assert seen.fewest == 1


async def test_false_on_the_pod_ends_it() -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1}, ready=60.0)) as stage:
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 5.0)
            await annotate_pod(stage, pod, {names.REPLACE_FIRST: "false"})
            await until(stage, 10.0)
            (left,) = pods_of(stage)
            assert (name_of(left), owner_of(left), is_released(left)) == (name_of(pod), owner_of(pod), False)
            assert evictions(stage) == []


# -- what happens meanwhile --------------------------------------------------------------------------------------------


async def test_a_rollout_that_begins_meanwhile_replaces_it_too() -> None:
    async with staged("n1", "n2", "n3", objects=with_budget({"minAvailable": 1}, ready=5.0)) as stage:
        pod = await the_pod(stage)
        async with endpoints(stage) as seen, draining(stage, node_of(pod)):
            await until(stage, 2.0)
            await edit_deployment(stage, {"template": {"metadata": {"labels": {"revision": "2"}}}})
            await stage.until_gone(node_of(pod))
            await stage.clock.sleep(20)
        (left,) = pods_of(stage)
        assert (left["metadata"]["labels"]["revision"], is_released(left)) == ("2", False)
        assert seen.fewest == 1


@pytest.mark.parametrize("replicas", [3, 0])
async def test_an_autoscaler_may_scale_the_workload_meanwhile(replicas: int) -> None:
    async with staged("n1", "n2", "n3", objects=with_budget({"maxUnavailable": 0}, ready=5.0)) as stage:
        pod = await the_pod(stage)
        async with endpoints(stage) as seen, draining(stage, node_of(pod)):
            await until(stage, 2.0)
            await edit_deployment(stage, {"replicas": replicas})
            assert await stage.until_gone(node_of(pod)) < 115.0
            await stage.clock.sleep(20)
        assert [is_released(each) for each in pods_of(stage)] == [False] * replicas
        assert seen.fewest == min(replicas, 1)


async def test_a_rollout_in_progress_is_no_time_for_it() -> None:
    async with staged("n1", "n2", "n3", objects=with_budget({"minAvailable": 1}, ready=30.0)) as stage:
        pod = await the_pod(stage)
        await edit_deployment(stage, {"template": {"metadata": {"labels": {"revision": "2"}}}})
        await stage.clock.sleep(1)
        async with stage.settled():
            await stage.delete_node(node_of(pod))
            await stage.clock.sleep(5)
            assert "not replaced first: a rollout of Deployment shop/web is in progress" in reason_on(
                stage, node_of(pod)
            )
            assert not any(map(is_released, pods_of(stage)))


async def test_a_quota_without_room_is_said_and_nothing_is_released() -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": "shop"},
        "spec": {"hard": {"pods": "1"}},
        "status": {"hard": {"pods": "1"}, "used": {"pods": "1"}},
    }
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1})) as stage:
        pod = await the_pod(stage)
        await stage.call("POST", "/api/v1/namespaces/shop/resourcequotas", quota)
        await stage.call(
            "PATCH",
            "/api/v1/namespaces/shop/resourcequotas/few/status",
            {"status": quota["status"]},
            "application/merge-patch+json",
        )
        async with draining(stage, node_of(pod)):
            await until(stage, 30.0)
            assert "not replaced first: quota shop/few has no room for its pods" in reason_on(stage, node_of(pod))
            assert [name_of(each) for each in pods_of(stage)] == [name_of(pod)]


async def test_the_deadline_waits_for_no_replacement() -> None:
    objects, settings = with_budget({"minAvailable": 1}, ready=100.0), with_grace_period("60s")
    async with staged("n1", "n2", objects=objects, settings=settings) as stage:
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 1.0)
            assert is_released(next(each for each in pods_of(stage) if name_of(each) == name_of(pod)))
            await stage.until_gone(node_of(pod))
            assert [(at, grace) for _, at, grace in deletions(stage)] == [(55.0, 5)]
            await stage.clock.sleep(60)
        assert len(pods_of(stage)) == 1


async def test_pods_that_claim_to_be_released_cost_few_requests() -> None:
    """200 of one namespace, on a node that is not drained; our account may not read ReplicaSets."""
    forged = {names.RELEASED_FROM: "2026-01-01T00:00:00Z ReplicaSet/none pod-template-hash x"}
    labels = {names.POD_TEMPLATE_HASH: names.RELEASED}
    pods = [a_pod_manifest(f"p{number}", "n1", labels=labels, annotations=forged) for number in range(200)]
    async with staged("n1", objects=pods) as stage:
        stage.transport.before.add(Rule(fault=Refuse(403), method="GET", path="/replicasets/"))
        async with stage.settled():
            began = len(stage.transport.of("get", "pods"))
            await stage.clock.sleep(5)
            assert len(stage.transport.of("get", "pods")) - began <= 105
            await stage.clock.sleep(300)
            assert len(stage.transport.of("get", "pods")) <= 400  # two for each: a pod changes once


async def test_a_deployment_that_is_deleted_meanwhile_takes_its_pod_along() -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1}, ready=50.0)) as stage:
        pod = await the_pod(stage)
        async with stage.settled():
            await keep(stage, node_of(pod))
            await stage.clock.sleep(5)
            await stage.call("DELETE", "/apis/apps/v1/namespaces/shop/deployments/web")
            await stage.clock.sleep(30)
            assert pods_of(stage) == []
        assert await told(stage, name_of(pod), "PodReturned") == [
            "deleted, as its ReplicaSet is gone: replace first: its ReplicaSet is gone"
        ]


# -- what is read ------------------------------------------------------------------------------------------------------

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"selector": {"app": "web", "pod-template-hash": "x"}, "ports": [{"port": 80}]},
}
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod-template-hash": "x"}}}]}]},
}
POLICIES = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"
SERVICES = "/api/v1/namespaces/shop/services"


@pytest.mark.parametrize(
    ("path", "thing", "reason"),
    [
        (SERVICES, SERVICE, "service shop/web selects pods by label pod-template-hash"),
        (POLICIES, POLICY, "network policy shop/web selects pods by label pod-template-hash"),
    ],
)
async def test_a_label_that_others_select_by_is_not_changed(path: str, thing: JsonObject, reason: str) -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1})) as stage:
        await stage.call("POST", path, thing)
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 15.0)
            assert f"not replaced first: {reason}" in reason_on(stage, node_of(pod))
            assert not is_released(await the_pod(stage))


def a_claim(name: str, *modes: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}},
    }


@pytest.mark.parametrize("modes", [["ReadWriteOnce"], ["ReadWriteMany"]])
async def test_a_volume_of_one_node_is_not_shared(modes: list[str]) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with staged(
        "n1", "n2", objects=[a_claim("data", *modes), *with_budget({"minAvailable": 1}, pod={"volumes": volumes})]
    ) as stage:
        pod = await the_pod(stage)
        async with draining(stage, node_of(pod)):
            await until(stage, 1.0)
            assert any(map(is_released, pods_of(stage))) is (modes == ["ReadWriteMany"])
            await until(stage, 15.0)
            if modes == ["ReadWriteOnce"]:
                assert "not replaced first: volume claim data is ReadWriteOnce" in reason_on(stage, node_of(pod))


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("GET", "/replicasets/", "missing permission: get replicasets.apps"),
        ("GET", "/services$", "missing permission: list services"),
        ("PATCH", "/pods/[^/]+$", "its release was refused: patch pods"),
    ],
)
async def test_a_missing_right_costs_the_replacement_and_nothing_else(method: str, path: str, reason: str) -> None:
    objects = [*with_budget({"minAvailable": 1}), a_pod_manifest("other", "n1"), a_pod_manifest("more", "n2")]
    async with staged("n1", "n2", objects=objects) as stage:
        pod = await the_pod(stage)
        stage.transport.before.add(Rule(fault=Refuse(403), method=method, path=path))
        async with draining(stage, node_of(pod)):
            await until(stage, 15.0)
            assert f"not replaced first: {reason}" in reason_on(stage, node_of(pod))
            assert [name for name, _ in evictions(stage)] in (["other"], ["more"])


async def test_a_replica_set_of_its_own_needs_a_label_in_its_selector() -> None:
    labels = {"app": "web", names.REPLACE_FIRST: "own"}
    whole = web(pod={"labels": labels})
    alone = {**whole, "kind": "ReplicaSet", "spec": {**whole["spec"], "selector": {"matchLabels": labels}}}
    async with staged("n1", "n2", objects=[alone, a_budget_manifest("web", minAvailable=1)]) as stage:
        pod = await the_pod(stage)
        async with endpoints(stage) as seen, draining(stage, node_of(pod)):
            await stage.until_gone(node_of(pod))
        (left,) = pods_of(stage)
        assert (left["metadata"]["labels"], seen.fewest) == (labels, 1)


async def test_commands_forecast_and_explain_it() -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1})) as stage:
        pod, client = await the_pod(stage), a_client(stage)
        node, settings = node_of(pod), stage.settings.termination
        answers = []
        for reason in ("waiting for its replacement", "Deployment shop/web has strategy Recreate"):
            cluster = await snapshot(client, named(node))
            await read_workloads(client, cluster, settings.policy.replace_first)
            found = forecast_drains(cluster, settings, [node], stage.clock.now(), stage.settings.assumptions)
            (forecast,) = found.whole.nodes
            (of_pod,) = forecast.pods
            assert reason in of_pod.entry.reason
            answers.append(forecast.drained)
            await edit_deployment(stage, {"strategy": {"type": "Recreate", "rollingUpdate": None}})
            await stage.clock.sleep(1)
        assert answers[0] == Unknown((f"when the replacement of shop/{name_of(pod)} is Ready",))


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0.0, 1.0, 3.0])
async def test_a_new_leader_continues(after: float) -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1})) as stage:
        pod = await the_pod(stage)
        async with endpoints(stage) as seen:
            async with draining(stage, node_of(pod), mortal=True):
                await until(stage, after)
            async with stage.controller():
                await stage.until_gone(node_of(pod))
                await stage.clock.sleep(10)
        (left,) = pods_of(stage)
        assert (is_released(left), seen.fewest) == (False, 1)


async def test_a_new_leader_returns_what_no_drain_needs() -> None:
    async with staged("n1", "n2", objects=with_budget({"minAvailable": 1})) as stage:
        pod = await the_pod(stage)
        async with stage.settled(mortal=True):
            await keep(stage, node_of(pod))
            await stage.clock.sleep(1)
        await WAYS_BACK[0](stage, node_of(pod))
        async with stage.controller():
            await stage.clock.sleep(5)
        assert [(name_of(each), is_released(each)) for each in pods_of(stage)] == [(name_of(pod), False)]


async def test_a_standby_returns_what_no_drain_needs_when_it_leads() -> None:
    """All that happens to the pod and its node happens before: no event tells the next leader."""
    objects, settings = with_budget({"minAvailable": 1}, ready=60.0), the_settings(leaderElection={"enabled": True})
    async with staged("n1", "n2", objects=objects, settings=settings, kubelet=SILENT) as stage:
        async with stage.settled():
            pod = await the_pod(stage)
        async with mortal(Laptop(stage, node_of(pod))):
            await stage.until(lambda: any(map(is_released, pods_of(stage))))
        withdrawn = {names.KEEP_DRAINED: None, names.CORDONED: None}
        await stage.patch_node(node_of(pod), {"metadata": {"annotations": withdrawn}, "spec": {"unschedulable": None}})
        renewed = format_time(stage.clock.now()).replace("Z", ".000000Z")
        held = {"holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": renewed, "acquireTime": renewed}
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gracectl"
        await stage.call("PATCH", path, {"spec": held}, "application/merge-patch+json")
        async with stage.controller() as standby:
            await standby.wait_live()
            await stage.clock.sleep(10)
            assert any(map(is_released, pods_of(stage)))
            await stage.clock.sleep(20)
        assert [(name_of(each), is_released(each)) for each in pods_of(stage)] == [(name_of(pod), False)]
