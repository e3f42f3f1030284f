"""A node's termination from its DELETE to its end, with the whole controller, to the instant."""

from __future__ import annotations

import pytest
from kubesim.controllers.cloud import CloudSettings
from support.stage import (
    STOPS_AFTER_5,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    instants,
    reasons,
    staged,
    the_settings,
)

from gracectl.model import names

BUDGET_A = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/a"


async def test_the_steps_follow_each_other_without_a_pause() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=3.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.settled() as controller:
            await stage.clock.sleep(1)
            start = await stage.delete_node("n1")
            end = await stage.until_gone("n1")
            assert 8.0 <= end - start <= 12.5
            assert stage.provider.instants_of("state")[-1] == pytest.approx(end, abs=0.001)
            assert instants(stage, "create", "pods/eviction", start) == [0.0]
            assert instants(stage, "patch", "nodes", start)[0] == 0.0  # the cordon
            assert stage.provider.instants_of("terminate") == [pytest.approx(start + 5.0, abs=0.001)]
            assert stage.instance_state("n1") == "terminated"
            await stage.clock.sleep(0.001)
            (done,) = controller.finished()
            assert {step: round(spent, 2) for step, spent in done.seconds.items() if spent > 0.01} == {
                "drain": 5.0,
                "instance": pytest.approx(end - start - 5.0, abs=0.01),
            }
        *steps, last = await reasons(stage, "n1")
        assert steps == ["Cordoned", "Draining", "InstanceTerminating", "InstanceTerminated"]
        assert last == "NodeTerminated"
        assert await reasons(stage, "a") == ["Evicted"]
        assert stage.provider.is_closed


async def test_an_empty_node_goes_after_the_minimum_drain_time() -> None:
    async with staged("n1", "n2", settings=the_settings(drain={"minimumSeconds": 7})) as stage:
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        async with stage.settled():
            start = await stage.delete_node("n1")
            await stage.clock.sleep(6.9)
            assert stage.condition("n1", names.DRAINED) is None  # there is nothing to wait for
            assert await stage.until_gone("n1") - start == pytest.approx(7.0, abs=0.001)
            assert instants(stage, "create", "pods/eviction", start) == []


async def test_a_pod_bound_while_the_instance_is_waited_for_is_drained_too() -> None:
    objects = [a_pod_manifest("elsewhere", "n2")]
    async with staged("n1", "n2", objects=objects, cloud=CloudSettings(terminate_delay=30.0)) as stage, stage.settled():
        start = await stage.delete_node("n1")
        await stage.clock.sleep(10)
        await stage.call("POST", "/api/v1/namespaces/shop/pods", a_pod_manifest("late", "n1", **STOPS_AFTER_5))
        await stage.until_gone("n1")
        assert instants(stage, "create", "pods/eviction", start) == [10.0]


async def test_what_stays_and_what_is_waited_for() -> None:
    """Static pods, finished ones and those that tolerate the taint stay; one that ends already is not asked for."""
    tolerant = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]
    async with staged("n1") as stage:
        stage.cluster.add_static_pod("n1", a_pod_manifest("static"))
        await stage.create(
            a_pod_manifest("tolerant", "n1", tolerations=tolerant),
            a_pod_manifest("going", "n1", behaviour={"stop-seconds": 9}),
            a_pod_manifest("plain", "n1"),
        )
        async with stage.settled():
            await stage.call("DELETE", "/api/v1/namespaces/shop/pods/going")
            start = await stage.delete_node("n1")
            await stage.clock.sleep(8.9)
            assert {pod["metadata"]["name"] for pod in stage.pods_on("n1")} == {"static-n1", "tolerant", "going"}
            assert await stage.until_gone("n1") - start == pytest.approx(9.0, abs=0.001)
            assert [each.operation.name for each in stage.evictions] == ["plain"]


async def test_a_pod_stuck_in_terminating_is_given_up_after_exactly_a_minute() -> None:
    objects = [a_pod_manifest("stuck", "n1", terminationGracePeriodSeconds=20)]
    async with staged("n1", objects=objects) as stage, stage.settled():
        stage.cluster.kubelet.partition("n1")
        start = await stage.delete_node("n1")
        assert await stage.until_gone("n1") - start == pytest.approx(20.0 + 60.0, abs=0.001)


async def test_volumes_of_drained_pods_are_waited_for() -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    templates = [{"metadata": {"name": "data"}, "spec": claim}]
    async with staged("n1", detach_seconds=6.0) as stage:
        await stage.create(a_workload("StatefulSet", "db", 1, serviceName="db", volumeClaimTemplates=templates))
        await stage.add_nodes("n2")
        await stage.clock.sleep(30)
        attachments = stage.server.store.table("volumeattachments.storage.k8s.io")
        (attached,) = list(attachments)
        assert attached["spec"]["nodeName"] == "n1"
        async with stage.settled():
            start = await stage.delete_node("n1")
            await stage.clock.sleep(3)
            condition = stage.condition("n1", names.VOLUMES_DETACHED)
            assert condition is not None
            volume = attached["spec"]["source"]["persistentVolumeName"]
            attachment = f"{volume} (attachment {attached['metadata']['name']}, driver csi.kubesim)"
            message = f"waiting for volumes of drained pods to detach: {attachment}"
            assert (condition["status"], condition["message"]) == ("False", message)
            assert stage.provider.calls == []
            assert await stage.until_gone("n1") - start == pytest.approx(6.0, abs=0.01)
        assert "AwaitingVolumeDetachment" in await reasons(stage, "n1")


@pytest.mark.parametrize(("ends_in", "longest"), [(0.0, 2.1), (60.0, 80.0)])
async def test_volumes_of_pods_that_stay_are_not_waited_for_and_looked_up_once(ends_in: float, longest: float) -> None:
    tolerations = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "shop"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    async with staged("n1", cloud=CloudSettings(terminate_delay=ends_in)) as stage:
        await stage.cluster.create(claim)
        await stage.clock.sleep(1)
        await stage.create(a_pod_manifest("agent", "n1", tolerations=tolerations, volumes=volumes))
        await stage.clock.sleep(5)
        assert len(stage.server.store.table("volumeattachments.storage.k8s.io")) == 1
        async with stage.settled():
            start = await stage.delete_node("n1")
            assert ends_in < await stage.until_gone("n1") - start <= longest  # the instance is looked at with jitter
        assert len(stage.transport.of("get", "persistentvolumeclaims")) == 1


async def test_a_node_recreated_under_the_same_name_is_another_node() -> None:
    objects = [a_pod_manifest("a", "n1", behaviour={"stop-seconds": 50}, terminationGracePeriodSeconds=90)]
    async with staged("n1", objects=objects) as stage, stage.settled() as controller:
        await stage.delete_node("n1")
        await stage.clock.sleep(3)
        await stage.patch_node("n1", {"metadata": {"finalizers": []}})  # another client forces it
        await stage.until_gone("n1")
        first = stage.instances["n1"]
        await stage.add_nodes("n1")
        await stage.clock.sleep(200)
        node = stage.node("n1")
        assert node is not None
        assert "unschedulable" not in node["spec"]
        assert node["metadata"]["finalizers"] == [names.FINALIZER]
        assert stage.provider.calls == []
        states = {each.id: each.state for each in stage.cluster.cloud.instances}
        assert states == {first: "running", stage.instances["n1"]: "running"}
        assert controller.under_way() == ()


async def test_a_termination_that_another_client_has_ended_evicts_nothing_more() -> None:
    """Its node stays, held by another finalizer."""
    async with staged("n1", objects=[a_pod_manifest("a", "n1"), a_budget_manifest("a", minAvailable=1)]) as stage:
        await stage.patch_node("n1", {"metadata": {"finalizers": ["example.com/hold"]}})
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(3)
            await stage.patch_node("n1", {"metadata": {"finalizers": ["example.com/hold"]}})
            await stage.clock.sleep(1)
            await stage.call("PATCH", BUDGET_A, {"spec": {"minAvailable": 0}}, "application/merge-patch+json")
            await stage.clock.sleep(100)
            assert stage.agreed() == {}
            assert [pod["metadata"]["name"] for pod in stage.pods_on("n1")] == ["a"]


async def test_a_node_that_is_not_managed_any_more_is_drained_no_further() -> None:
    async with staged(settings=the_settings(nodeSelector={"matchLabels": {"pool": "a"}})) as stage:
        await stage.add_nodes("n1", labels={"pool": "a"})
        await stage.create(a_pod_manifest("a", "n1"), a_budget_manifest("a", minAvailable=1))
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(3)
            await stage.patch_node("n1", {"metadata": {"labels": {"pool": None}}})
            await stage.clock.sleep(1)
            await stage.call("PATCH", BUDGET_A, {"spec": {"minAvailable": 0}}, "application/merge-patch+json")
            await stage.clock.sleep(100)
            assert stage.agreed() == {}
