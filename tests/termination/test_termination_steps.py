"""A node's termination from its DELETE to its end, with the whole controller, to the instant."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.stage import (
    Stage,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    staged,
    the_settings,
)

from gracectl.cloud.none import NoneProvider
from gracectl.cloud.provider import ProviderRefused, ProviderUnavailable
from gracectl.model import names
from gracectl.sim.faults import Fault, Latency, Refuse, Rule
from gracectl.sim.world.cloud import CloudSettings
from gracectl.sim.world.kubelet import KubeletSettings

pytestmark = pytest.mark.anyio

SILENT = KubeletSettings(heartbeat_seconds=100_000.0)
NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
STOPS_AFTER_5 = {"behaviour": {"stop-seconds": 5}}


def instants(stage: Stage, verb: str, resource: str, start: float) -> list[float]:
    """When the server carried these out, counted from `start`."""
    return [round(each.instant - start, 3) for each in stage.transport.of(verb, resource) if each.instant >= start]


async def reasons(stage: Stage, name: str) -> list[str]:
    return [reason for object_, reason, _ in await stage.events() if object_ == name]


async def test_the_steps_follow_each_other_without_a_pause() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=3.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
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
        assert await reasons(stage, "n1") == ["Cordoned", "Draining", "InstanceTerminating", "InstanceTerminated"]
        assert await reasons(stage, "a") == ["Evicted"]
        assert stage.provider.is_closed


async def test_the_cordon_is_one_write_before_the_first_eviction() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        taint = {"key": "dedicated", "value": "x", "effect": "NoExecute"}
        await stage.patch_node("n1", {"spec": {"taints": [taint]}})
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = len(stage.transport.of("patch", "nodes"))
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
            node = stage.node("n1")
            assert node is not None
            assert node["spec"]["unschedulable"] is True
            assert node["spec"]["taints"] == [taint, {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"}]
            assert node["metadata"]["labels"][names.EXCLUDE_FROM_LOAD_BALANCERS] == ""
            writes = stage.transport.of("patch", "nodes")[before:]
            assert [round(each.instant - start, 3) for each in writes] == [0.0]
            order = [each.operation.resource for each in stage.transport.executed]
            assert order.index("pods/eviction") > before


@pytest.mark.parametrize("value", ["", "by-somebody-else"])
async def test_a_disrupted_taint_of_somebody_else_is_taken_as_it_is(value: str) -> None:
    """The API server takes no two taints of one key and effect, so a second one would stop the termination."""
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        taint = {"key": names.DISRUPTED_TAINT_KEY, "value": value, "effect": "NoSchedule"}
        await stage.patch_node("n1", {"spec": {"taints": [taint]}})
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.001)


async def test_an_empty_node_goes_after_the_minimum_drain_time() -> None:
    async with staged("n1", "n2", settings=the_settings(drain={"minimumSeconds": 7})) as stage:
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(6.9)
            assert stage.condition("n1", names.DRAINED) is None  # nobody needs to be told to wait for that
            assert await stage.until_gone("n1") - start == pytest.approx(7.0, abs=0.001)
            assert instants(stage, "create", "pods/eviction", start) == []


async def test_a_pod_bound_in_the_instant_of_the_cordon_is_drained_too() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1.5)
            await stage.call("POST", "/api/v1/namespaces/shop/pods", a_pod_manifest("late", "n1", **STOPS_AFTER_5))
            assert await stage.until_gone("n1") - start == pytest.approx(6.5, abs=0.001)
            assert instants(stage, "create", "pods/eviction", start) == [1.5]


async def test_a_pod_bound_while_the_instance_is_waited_for_is_drained_too() -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=30.0)) as stage:
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        async with stage.controller() as controller:
            await stage.settle(controller)
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
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.call("DELETE", "/api/v1/namespaces/shop/pods/going")
            start = await stage.delete_node("n1")
            await stage.clock.sleep(8.9)
            assert {pod["metadata"]["name"] for pod in stage.pods_on("n1")} == {"static-n1", "tolerant", "going"}
            assert await stage.until_gone("n1") - start == pytest.approx(9.0, abs=0.001)
            assert [each.operation.name for each in stage.evictions] == ["plain"]


async def test_a_pod_stuck_in_terminating_is_given_up_after_exactly_a_minute() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("stuck", "n1", terminationGracePeriodSeconds=20))
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.cluster.kubelet.partition("n1")
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(20.0 + 60.0, abs=0.001)


async def test_waves_follow_each_other_when_the_pods_are_gone() -> None:
    critical = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}
    async with staged("n1") as stage:
        await stage.create(
            a_pod_manifest("ordinary", "n1", behaviour={"stop-seconds": 4}),
            a_pod_manifest("dns", "n1", behaviour={"stop-seconds": 3}, **critical),
        )
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            end = await stage.until_gone("n1")
            asked = [(each.operation.name, round(each.instant - start, 3)) for each in stage.evictions]
            assert asked == [("ordinary", 0.0), ("dns", 4.0)]
            assert end - start == pytest.approx(7.0, abs=0.001)


async def test_a_protected_pod_holds_the_node_until_the_instant_of_its_expiry() -> None:
    protected = {names.DO_NOT_DISRUPT: "100s"}
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations=protected))  # created at 0
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.clock.sleep(10)
            await stage.delete_node("n1")
            await stage.clock.sleep(1)
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            assert condition["message"] == (
                '1 pod left: shop/job (protected by do-not-disrupt "100s" until 2026-01-01T00:01:40Z)'
            )
            assert await stage.until_gone("n1") == pytest.approx(100.0, abs=0.001)


# -- the instance ------------------------------------------------------------------------------------------------------


async def test_the_instance_is_asked_for_until_it_is_gone_with_growing_pauses() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=60.0)) as stage, stage.controller() as controller:
        await stage.settle(controller)
        start = await stage.delete_node("n1")
        end = await stage.until_gone("n1") - start
        assert 62.0 <= end <= 72.0
        asked = [instant - start - 2.0 for instant in stage.provider.instants_of("state")]
        pauses = [later - earlier for earlier, later in pairwise(asked)]
        assert asked[0] == pytest.approx(0.0, abs=0.002)
        for pause, size in zip(pauses, [0.5, 1.0, 2.0, 4.0, 8.0] + [10.0] * 20, strict=False):
            assert size / 2 - 0.01 <= pause <= size + 0.01
        # An end that was accepted is asked for again once a minute, not with every look.
        assert len(stage.provider.instants_of("terminate")) <= 2


async def test_a_provider_that_fails_is_asked_again_and_the_finalizer_waits() -> None:
    async with staged("n1") as stage:
        stage.provider.moods.extend(ProviderUnavailable("throttled") for _ in range(5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(2.5)
            condition = stage.condition("n1", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert (condition["status"], condition["message"]) == ("False", "provider stand-in: throttled")
            end = await stage.until_gone("n1") - start
            asked = [instant - start - 2.0 for instant in stage.provider.instants_of("terminate")]
            pauses = [later - earlier for earlier, later in pairwise(asked)]
            for pause, size in zip(pauses, [1.0, 2.0, 4.0, 8.0, 16.0], strict=True):
                assert size / 2 <= pause <= size
            assert end == pytest.approx(asked[-1] + 2.0, abs=0.002)
        assert await reasons(stage, "n1") == [
            "Cordoned",
            "InstanceTerminationFailed",
            "InstanceTerminating",
            "InstanceTerminated",
        ]


async def test_termination_protection_holds_the_node_until_it_is_taken_off() -> None:
    async with staged("n1") as stage:
        refusal = ProviderRefused("termination protection is on", "take it off instance i-1")
        stage.provider.moods.extend([refusal] * 30)
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(3600)
            assert stage.node("n1") is not None
            condition = stage.condition("n1", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert "take it off instance i-1" in condition["message"]
            assert len(stage.provider.calls) < 30  # patient: the pauses have grown to five minutes
            stage.provider.moods.clear()
            freed = stage.clock.monotonic()
            assert await stage.until_gone("n1") - freed <= 300.0
            assert stage.instance_state("n1") == "terminated"


async def test_a_slow_provider_holds_up_no_other_node() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n2", **STOPS_AFTER_5))
        stage.provider.seconds = 8.0
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.delete_node("n2")
            assert await stage.until_gone("n1") - start == pytest.approx(2.0 + 16.0, abs=0.001)
            assert await stage.until_gone("n2") - start == pytest.approx(5.0 + 16.0, abs=0.001)


async def test_an_instance_that_is_gone_already_lets_a_node_go_at_once() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.cluster.cloud.terminate(stage.instances["n1"])
            await stage.clock.sleep(0.1)
            await stage.patch_node("n1", NOT_READY, "/status")
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") == start
            assert stage.evictions == []


async def test_gone_but_ready_skips_nothing() -> None:
    """The cloud may be mistaken about its own instances for a while; a kubelet that reports is not."""
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.provider._cloud._instances.clear()
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(5.0, abs=0.001)
            assert len(stage.evictions) == 1
            assert stage.provider.calls == [(round(start + 5.0, 3), "terminate")]


async def test_a_node_that_is_not_ready_but_has_its_instance_is_drained() -> None:
    """And the provider is asked about it now and then, not with every event of a pod."""
    async with staged("n1", kubelet=SILENT) as stage:
        await stage.create(*(a_pod_manifest(f"p{n}", "n1", behaviour={"stop-seconds": n}) for n in range(1, 16)))
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.patch_node("n1", NOT_READY, "/status")
            start = await stage.delete_node("n1")
            await stage.until_gone("n1")
            assert len(stage.evictions) == 15
            asked = [instant - start for instant in stage.provider.instants_of("state")]
            assert asked[:2] == pytest.approx([0.0, 10.0], abs=0.002)
            assert asked[2] == pytest.approx(15.0, abs=0.002)  # the drain is over: is the instance?


async def test_a_provider_that_cannot_tell_skips_nothing() -> None:
    async with staged("n1", kubelet=SILENT) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.patch_node("n1", NOT_READY, "/status")
            stage.provider.moods.append(ProviderUnavailable("unreachable"))
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(5.0, abs=0.001)


async def test_a_node_without_provider_id_is_never_let_go_without_a_word() -> None:
    async with staged() as stage:
        await stage.call("POST", "/api/v1/nodes", {"metadata": {"name": "bare"}})
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_node("bare")
            await stage.clock.sleep(1000)
            condition = stage.condition("bare", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert "node bare has no spec.providerID" in condition["message"]
            assert names.FINALIZER in condition["message"]  # the remedy
            await stage.patch_node("bare", {"spec": {"providerID": "sim:///zone-a/i-unknown"}})
            start = stage.clock.monotonic()
            assert await stage.until_gone("bare") - start <= 300


async def test_the_provider_none_ends_nothing_and_waits_for_nothing() -> None:
    async with staged("n1") as stage:
        none: Any = NoneProvider(NoneProvider.Options())
        stage.provider = none
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.001)
            assert stage.instance_state("n1") == "running"
        assert (await reasons(stage, "n1"))[-1] == "InstanceTerminated"


# -- volumes -----------------------------------------------------------------------------------------------------------


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
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(3)
            condition = stage.condition("n1", names.VOLUMES_DETACHED)
            assert condition is not None
            volume = attached["spec"]["source"]["persistentVolumeName"]
            assert (condition["status"], condition["message"]) == ("False", f"attached: {volume}")
            assert stage.provider.calls == []
            assert await stage.until_gone("n1") - start == pytest.approx(6.0, abs=0.01)
        assert "AwaitingVolumeDetachment" in await reasons(stage, "n1")


async def test_volumes_of_pods_that_stay_are_not_waited_for() -> None:
    tolerations = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "shop"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    async with staged("n1") as stage:
        await stage.cluster.create(claim)
        await stage.clock.sleep(1)
        await stage.create(a_pod_manifest("agent", "n1", tolerations=tolerations, volumes=volumes))
        await stage.clock.sleep(5)
        assert len(stage.server.store.table("volumeattachments.storage.k8s.io")) == 1
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.001)


# -- whose node it is ------------------------------------------------------------------------------------------------


async def test_a_held_node_that_is_not_managed_is_left_alone_and_told_about() -> None:
    async with staged() as stage:
        await stage.add_nodes("master", labels={names.CONTROL_PLANE_ROLE: ""})
        await stage.patch_node("master", {"metadata": {"finalizers": [names.FINALIZER]}})
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.delete_node("master")
            await stage.clock.sleep(60)
            node = stage.node("master")
            assert node is not None
            assert "unschedulable" not in node["spec"]
            assert stage.transport.of("patch", "nodes") == []
        assert await reasons(stage, "master") == ["UnmanagedNodeHeld"]


async def test_only_managed_nodes_get_the_finalizer() -> None:
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("other", settings=settings) as stage:
        await stage.add_nodes("mine", labels={"pool": "mine"})
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(5)
            await stage.add_nodes("later", labels={"pool": "mine"})
            await stage.clock.sleep(5)
            held = {each["metadata"]["name"]: each["metadata"].get("finalizers", []) for each in stage.nodes()}
            assert held == {"mine": [names.FINALIZER], "other": [], "later": [names.FINALIZER]}


async def test_finalizers_of_others_stay_and_ours_goes_last_of_ours() -> None:
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        await stage.patch_node("n1", {"metadata": {"finalizers": ["other.io/hold", names.FINALIZER]}})
        await stage.delete_node("n1")
        await stage.clock.sleep(30)
        node = stage.node("n1")
        assert node is not None
        assert node["metadata"]["finalizers"] == ["other.io/hold"]
        assert stage.instance_state("n1") == "terminated"
        assert controller.under_way() == ()


async def test_a_node_recreated_under_the_same_name_is_another_node() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1", behaviour={"stop-seconds": 50}, terminationGracePeriodSeconds=90))
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(3)
            await stage.patch_node("n1", {"metadata": {"finalizers": []}})  # somebody forces it
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


# -- conflicts and company ---------------------------------------------------------------------------------------------


async def test_a_conflict_storm_delays_the_cordon_and_loses_nothing() -> None:
    """Somebody writes to the node before each of our writes arrives; his writes stand."""
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        storms = iter(range(12))
        handle = stage.server.handle

        async def stormy(request: Any) -> Any:
            is_ours = request.method == "PATCH" and request.path == "/api/v1/nodes/n1"
            if is_ours and isinstance(request.body, bytes) and (n := next(storms, None)) is not None:
                await stage.patch_node("n1", {"metadata": {"labels": {"storm": str(n)}}})
            return await handle(request)

        stage.server.handle = stormy  # type: ignore[method-assign]  # the one way to be there just before
        start = await stage.delete_node("n1")
        end = await stage.until_gone("n1") - start
        assert next(storms, None) is None
        assert 2.0 <= end < 4.0
        conflicts = [each for each in stage.transport.of("patch", "nodes") if each.status == 409]
        assert len(conflicts) == 12
        assert stage.instance_state("n1") == "terminated"


async def test_two_nodes_with_hundreds_of_pods_leave_side_by_side() -> None:
    async with staged("n1", "n2") as stage:
        for node in ("n1", "n2"):
            await stage.create(
                *(a_pod_manifest(f"{node}-{n}", node, behaviour={"stop-seconds": 3}) for n in range(100))
            )
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.delete_node("n2")
            assert await stage.until_gone("n1", "n2") - start == pytest.approx(1.0 + 3.0, abs=0.05)
            assert len(stage.evictions) == 200
            assert set(stage.agreed().values()) == {1}
            # 100 in the burst, then 100 a second.
            late = [each.instant - start for each in stage.evictions[100:]]
            assert late == pytest.approx([n / 100 for n in range(1, 101)], abs=0.005)


# -- what people see ---------------------------------------------------------------------------------------------------


async def test_the_condition_names_the_first_three_and_is_written_every_ten_seconds_at_most() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(
            a_workload("Deployment", "web", 8, behaviour={"ready-seconds": 4, "stop-seconds": 1}),
            a_budget_manifest("web", maxUnavailable=1),
            a_pod_manifest("plain", "n1", behaviour={"stop-seconds": 2}),
        )
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.clock.sleep(20)
            on_n1 = sorted(p["metadata"]["name"] for p in stage.pods_on("n1"))
            assert len(on_n1) >= 4
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            message = condition["message"]
            assert (condition["status"], condition["reason"]) == ("False", "Draining")
            assert message.startswith(f"{len(on_n1)} pods left: shop/web-")
            assert message.count("shop/web-") == 3
            assert message.endswith(f", and {len(on_n1) - 3} more")
            assert "budget shop/web" in message
            turned = condition["lastTransitionTime"]
            await stage.until(lambda: len(stage.pods_on("n1")) == 1)
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            assert condition["lastTransitionTime"] == turned
            end = await stage.until_gone("n1") - start
            writes = [round(instant - start, 3) for instant in stage.status_writes("n1")]
            draining = [instant for instant in writes if instant < end]
            assert draining[0] == 0.0
            assert all(later - earlier >= 10.0 for earlier, later in pairwise(draining))
            assert len(draining) == 1 + int(end // 10)
            assert len(writes) - len(draining) <= 3  # Drained, VolumesDetached, InstanceTerminating


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(600)
            assert [round(instant - start, 3) for instant in stage.status_writes("n1")] == [0.0]
            events = await stage.events()
            assert [reason for _, reason, _ in events] == ["Cordoned", "Draining"]


async def test_a_heartbeat_between_two_of_our_writes_repeats_none_of_them() -> None:
    """The watch then shows a state of the node from between our writes: what we wrote last still counts."""
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            handle = stage.server.handle

            async def with_heartbeat(request: Any) -> Any:
                is_ours = request.path == "/api/v1/nodes/n1/status" and isinstance(request.body, bytes)
                if is_ours:
                    await stage.patch_node("n1", {"metadata": {"labels": {"beat": "1"}}})
                return await handle(request)

            stage.server.handle = with_heartbeat  # type: ignore[method-assign]  # the one way to be there just before
            start = await stage.delete_node("n1")
            await stage.clock.sleep(30)
            assert [round(instant - start, 3) for instant in stage.status_writes("n1")] == [0.0]


@pytest.mark.parametrize("fault", [Latency(1000.0, 1000.0), Refuse(500)], ids=["silent", "failing"])
async def test_a_condition_that_cannot_be_written_holds_nothing_up_for_long(fault: Fault) -> None:
    critical = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("ordinary", "n1"), a_pod_manifest("dns", "n1", **critical))
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.transport.before.add(Rule(fault=fault, path="nodes/n1/status"))
            start = await stage.delete_node("n1")
            # One condition before each of: the first wave, the volumes, the instance, its end.
            assert await stage.until_gone("n1") - start <= 21.0
            assert [each.operation.name for each in stage.evictions] == ["ordinary", "dns"]
            assert stage.evictions[1].instant - start <= 5.1


async def test_a_slow_condition_delays_no_instant() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "100s"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.transport.before.add(Rule(fault=Latency(3.0, 3.0), path="nodes/n1/status"))
            await stage.clock.sleep(96.0 - stage.clock.monotonic())
            await stage.delete_node("n1")
            await stage.until(lambda: stage.node("n1") is None)
            assert [each.instant for each in stage.evictions] == [pytest.approx(100.0, abs=0.001)]


async def test_a_budget_that_is_edited_in_the_middle_is_obeyed_at_once() -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 5}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2")
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(7)
            path = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web"
            merge = "application/merge-patch+json"
            await stage.call("PATCH", path, {"spec": {"maxUnavailable": 3}}, merge)
            await stage.clock.sleep(0.01)
            assert instants(stage, "create", "pods/eviction", start) == [0.0, 5.0, 7.0, 7.0]
            await stage.call("PATCH", path, {"spec": {"selector": {"matchLabels": {"app": "other"}}}}, merge)
            await stage.clock.sleep(0.01)
            assert instants(stage, "create", "pods/eviction", start)[4:] == [7.01, 7.01]
            assert set(stage.agreed().values()) == {1}


async def test_a_budget_that_appears_in_the_middle_is_obeyed() -> None:
    async with staged("n1") as stage:
        critical = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}
        await stage.create(
            a_pod_manifest("first", "n1", behaviour={"stop-seconds": 3}),
            a_workload("Deployment", "dns", 3, behaviour={"ready-seconds": 2}, pod=critical),
        )
        await stage.add_nodes("n2")
        async with stage.controller() as controller:
            await stage.settle(controller)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
            await stage.cluster.create(a_budget_manifest("dns", maxUnavailable=1))
            await stage.until_gone("n1")
            assert instants(stage, "create", "pods/eviction", start) == [0.0, 3.0, 5.0, 7.0]
