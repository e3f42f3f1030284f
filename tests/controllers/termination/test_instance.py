"""The step that terminates the instance: requested, polled, never leaked; and the release of a node without one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import anyio
import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from kubesim.server.api import JsonObject
from support.stage import (
    NOT_READY,
    SILENT,
    STOPS_AFTER_5,
    Stage,
    a_pod_manifest,
    reasons,
    staged,
    unregistered,
)

from gracectl.cloud.none import NoneProvider
from gracectl.cloud.provider import InstanceGone, InstanceState, ProviderRefused, ProviderUnavailable
from gracectl.model import names


async def test_the_instance_is_asked_for_until_it_is_gone_with_growing_pauses() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=60.0)) as stage, stage.settled():
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


async def test_a_termination_that_takes_long_is_requested_again_once_a_minute() -> None:
    """The provider may have lost the first request."""
    async with staged("n1", cloud=CloudSettings(terminate_delay=200.0)) as stage, stage.settled():
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        requested = stage.provider.instants_of("terminate")
        assert len(requested) >= 3
        assert all(60.0 <= later - earlier <= 70.1 for earlier, later in pairwise(requested))


async def test_a_provider_that_fails_is_asked_again_and_the_finalizer_waits() -> None:
    async with staged("n1") as stage:
        stage.provider.moods.extend(ProviderUnavailable("throttled") for _ in range(5))
        async with stage.settled():
            start = await stage.delete_node("n1")
            await stage.clock.sleep(2.5)
            condition = stage.condition("n1", names.INSTANCE_TERMINATING)
            assert condition is not None
            message = "provider stand-in: throttled; retrying until the instance is gone"
            assert (condition["status"], condition["message"]) == ("False", message)
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
            "NodeTerminated",
        ]


async def test_termination_protection_holds_the_node_until_it_is_taken_off() -> None:
    async with staged("n1") as stage:
        refusal = ProviderRefused("termination protection is on", "take it off instance i-1")
        stage.provider.moods.extend([refusal] * 30)
        async with stage.settled():
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


async def test_an_instance_that_is_gone_already_lets_a_node_go_at_once() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage, stage.settled():
        stage.cluster.cloud.terminate(stage.instances["n1"])
        await stage.clock.sleep(0.1)
        await stage.patch_node("n1", NOT_READY, "/status")
        start = await stage.delete_node("n1")
        assert await stage.until_gone("n1") == start
        assert stage.evictions == []


async def test_gone_but_ready_skips_nothing() -> None:
    """The cloud may be mistaken about its own instances for a while; a kubelet that reports is not."""
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage, stage.settled():
        stage.provider._cloud._instances.clear()
        start = await stage.delete_node("n1")
        assert await stage.until_gone("n1") - start == pytest.approx(5.0, abs=0.001)
        assert len(stage.evictions) == 1
        assert stage.provider.calls == [(round(start + 5.0, 3), "terminate")]


async def test_a_node_that_is_not_ready_but_has_its_instance_is_drained() -> None:
    """And the provider is asked about it now and then, not with every event of a pod."""
    objects = [*(a_pod_manifest(f"p{n}", "n1", behaviour={"stop-seconds": n}) for n in range(1, 16))]
    async with staged("n1", objects=objects, kubelet=SILENT) as stage, stage.settled():
        await stage.patch_node("n1", NOT_READY, "/status")
        start = await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert len(stage.evictions) == 15
        asked = [instant - start for instant in stage.provider.instants_of("state")]
        assert asked[:2] == pytest.approx([0.0, 10.0], abs=0.002)
        assert asked[2] == pytest.approx(15.0, abs=0.002)  # the drain is over: is the instance?


@pytest.mark.parametrize("answer", [InstanceState.UNKNOWN, InstanceState.ENDING])
async def test_no_answer_but_gone_releases_a_lost_node(answer: InstanceState, monkeypatch: pytest.MonkeyPatch) -> None:
    async def state(provider_id: str) -> InstanceState:
        return answer

    async with staged("n1", kubelet=SILENT) as stage, stage.controller() as controller:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.settle(controller)
        monkeypatch.setattr(stage.provider, "state", state)
        await stage.patch_node("n1", NOT_READY, "/status")
        await stage.delete_node("n1")
        await stage.clock.sleep(30)
        assert stage.node("n1") is not None


async def test_a_provider_that_raises_gone_where_it_is_asked_for_the_state_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its interface has the state GONE for that; both mean the same, with pods on the node and without."""

    async def state(provider_id: str) -> InstanceState:
        raise InstanceGone(provider_id)

    async with staged("n1", "n2", kubelet=SILENT) as stage, stage.controller() as controller:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.settle(controller)
        monkeypatch.setattr(stage.provider, "state", state)
        await stage.patch_node("n1", NOT_READY, "/status")
        for node in ("n1", "n2"):
            start = await stage.delete_node(node)
            assert await stage.until_gone(node) - start <= 2.5


async def test_a_node_without_provider_id_is_never_let_go_without_a_word_and_goes_at_once_when_it_has_one() -> None:
    async with staged() as stage:
        await stage.call("POST", "/api/v1/nodes", {"metadata": {"name": "bare"}})
        async with stage.settled():
            await stage.delete_node("bare")
            await stage.clock.sleep(1000)
            condition = stage.condition("bare", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert "node bare has no spec.providerID" in condition["message"]
            assert names.FINALIZER in condition["message"]  # the remedy
            event_reasons = [each for each in await reasons(stage, "bare") if each == "InstanceTerminationFailed"]
            assert len(event_reasons) <= 4  # one in five minutes
            await stage.patch_node("bare", {"spec": {"providerID": "sim:///zone-a/i-unknown"}})
            start = stage.clock.monotonic()
            assert await stage.until_gone("bare") == start


@pytest.mark.parametrize(
    ("provider_id", "is_reported"), [("aws:///eu-central-1a/i-0abc", True), ("kind://docker/kind/n2", False)]
)
async def test_under_provider_none_the_machine_of_a_cloud_is_reported_to_keep_running(
    provider_id: str, is_reported: bool
) -> None:
    async with staged("n1") as stage:
        none: Any = NoneProvider(NoneProvider.Options())
        stage.provider = none
        await stage.call("POST", "/api/v1/nodes", {"metadata": {"name": "n2"}, "spec": {"providerID": provider_id}})
        async with stage.settled():
            await stage.delete_node("n2")
            await stage.until_gone("n2")
            await stage.clock.sleep(1)
        assert ("MachineKeepsRunning" in await reasons(stage, "n2")) is is_reported


async def test_a_pod_that_came_after_the_instance_was_asked_to_end_does_not_hold_a_node_without_one() -> None:
    """Bound past the scheduler; with its protection, nothing but the end of the instance could ever free the node."""
    slow = CloudSettings(terminate_delay=30.0)
    async with staged("n1", cloud=slow, kubelet=SILENT) as stage, stage.settled():
        start = await stage.delete_node("n1")
        await stage.clock.sleep(5.0)
        await stage.cluster.create(a_pod_manifest("late", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.patch_node("n1", NOT_READY, "/status")
        assert await stage.until_gone("n1") - start == pytest.approx(35.0, abs=10.0)
        assert stage.instance_state("n1") == "terminated"


async def test_a_provider_that_does_not_answer_is_asked_again() -> None:
    async with staged("n1") as stage, stage.settled():
        stage.provider.seconds = 100_000.0
        start = await stage.delete_node("n1")
        await stage.clock.sleep(62.3)
        condition = stage.condition("n1", names.INSTANCE_TERMINATING)
        assert condition is not None
        assert condition["message"] == "provider stand-in: no answer in 60 s; retrying until the instance is gone"
        stage.provider.seconds = 0.0
        assert await stage.until_gone("n1") - start <= 70.0


async def test_a_lost_node_of_a_provider_that_does_not_answer_is_drained_all_the_same() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("web", "n1")], kubelet=SILENT) as stage, stage.settled():
        stage.provider.seconds = 100_000.0
        await stage.patch_node("n1", NOT_READY, "/status")
        await stage.delete_node("n1")
        await stage.clock.sleep(6.0)
        assert [each.status for each in stage.evictions] == [201]


async def test_a_claim_whose_providerid_comes_late_ends_it_at_once() -> None:
    async with staged() as stage, stage.controller() as controller:
        stage.cluster.cloud.create("i-1", "x")
        await stage.create_claim("c", unregistered(providerID="sim:///zone-a/i-1"))
        await stage.settle(controller)
        stage.provider.moods.extend([ProviderUnavailable("throttled")] * 100)
        await stage.delete_claim("c")
        await stage.clock.sleep(1000)
        stage.provider.moods.clear()
        stage.cluster.cloud.create("i-2", "x")
        await stage.patch_claim("c", {"status": {"providerID": "sim:///zone-a/i-2"}}, "/status")
        start = stage.clock.monotonic()
        assert await stage.until_claims_gone("c") - start <= 0.01
        assert [(each.id, each.state) for each in stage.cluster.cloud.instances] == [
            ("i-1", "running"),
            ("i-2", "terminated"),
        ]


async def test_a_claim_that_names_another_instance_while_one_is_ending_has_that_one_ended_too() -> None:
    async with staged(cloud=CloudSettings(terminate_delay=20.0)) as stage, stage.controller() as controller:
        for instance in ("i-1", "i-2"):
            stage.cluster.cloud.create(instance, "x")
        await stage.create_claim("c", unregistered(providerID="sim:///zone-a/i-1"))
        await stage.settle(controller)
        await stage.delete_claim("c")
        await stage.clock.sleep(0.5)
        await stage.patch_claim("c", {"status": {"providerID": "sim:///zone-a/i-2"}}, "/status")
        await stage.clock.sleep(0.5)
        assert [(each.id, each.state) for each in stage.cluster.cloud.instances] == [
            ("i-1", "shutting-down"),
            ("i-2", "shutting-down"),
        ]


async def test_whatever_a_provider_raises_is_told_and_tried_again() -> None:
    async with staged("n1") as stage:
        stage.provider.moods.extend([RuntimeError("no\x1b[31m such attribute"), TimeoutError(), KeyError("zone")])
        async with stage.settled():
            start = await stage.delete_node("n1")
            await stage.clock.sleep(2.1)
            condition = stage.condition("n1", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert (condition["status"], condition["reason"], condition["message"]) == (
                "False",
                "ProviderFailed",
                "provider stand-in: unexpected failure: RuntimeError: no\\x1b[31m such attribute; retrying until the "
                "instance is gone",
            )
            await stage.until_gone("n1")
            asked = [instant - start - 2.0 for instant in stage.provider.instants_of("terminate")]
            for pause, size in zip((b - a for a, b in pairwise(asked)), [1.0, 2.0, 4.0], strict=True):
                assert size / 2 <= pause <= size
        assert "InstanceTerminationFailed" in await reasons(stage, "n1")


async def test_a_cancellation_that_none_asked_for_is_a_failure_of_the_provider() -> None:
    """It ended the reconcile of the node, its deadline timer, and in the end the process: seed 5019."""
    async with staged("n1") as stage, stage.settled():
        stray: Any = asyncio.CancelledError()
        stage.provider.moods.extend([stray, stray])
        await stage.delete_node("n1")
        with anyio.fail_after(60):
            await stage.until_gone("n1")
        assert stage.instance_state("n1") == "terminated"
        said = [message for _, reason, message in await stage.events() if reason == "InstanceTerminationFailed"]
        assert said == ["provider stand-in: unexpected failure: CancelledError: ; retrying until the instance is gone"]


# -- what was gone stays gone ------------------------------------------------------------------------------------------


def reinstall(stage: Stage, node: str) -> None:
    """The machine runs again, under the same providerID."""
    del stage.cluster.cloud._instances[stage.instances[node]]
    stage.cluster.cloud.create(stage.instances[node], node)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_instance_that_was_gone_is_not_ended_again(is_restarted: bool, is_lost: bool) -> None:
    """Its node waits at the finalizer meanwhile. `is_lost`: it was gone before anything was asked of it."""
    async with staged("n1", kubelet=SILENT) as stage:
        held = Rule(fault=Refuse(403), method="PATCH", path="/nodes/n1$")
        async with stage.mortal() if is_restarted else stage.controller() as controller:
            await stage.settle(controller)
            if is_lost:
                stage.cluster.cloud.terminate(stage.instances["n1"])
                await stage.clock.sleep(0.1)
                await stage.patch_node("n1", NOT_READY, "/status")
                stage.transport.before.add(held)
            stage.provider.seconds = 1.0
            await stage.delete_node("n1")
            await stage.clock.sleep(3.5)
            stage.transport.before.add(held)
            await stage.clock.sleep(1.0)
            condition = stage.condition("n1", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert (condition["status"], condition["reason"]) == ("True", names.INSTANCE_GONE)
            calls = stage.provider.instants_of("terminate")
            reinstall(stage, "n1")
            await stage.patch_node("n1", {"status": {"conditions": [*others(stage), READY]}}, "/status")
            if not is_restarted:
                await stage.clock.sleep(100)
                assert stage.node("n1") is not None
                stage.transport.before.clear()
                await stage.until_gone("n1")
        stage.transport.before.clear()
        async with stage.controller():
            await stage.until_gone("n1")
        assert stage.provider.instants_of("terminate") == calls
        assert stage.instance_state("n1") == "running"


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_condition_that_a_kubelet_writes_skips_neither_drain_nor_provider(is_ready: bool) -> None:
    async with staged("n1", kubelet=SILENT) as stage:
        pod = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})
        await stage.create(pod)
        message = f"instance sim:///zone-a/{stage.instances['n1']} is gone"
        forged = {"type": names.INSTANCE_TERMINATING, "status": "True", "reason": names.INSTANCE_GONE}
        ready = READY if is_ready else {"type": "Ready", "status": "False"}
        conditions = [ready, {**forged, "message": message}]
        await stage.patch_node("n1", {"status": {"conditions": conditions}}, "/status")
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(30.0)
            assert [each["metadata"]["name"] for each in stage.pods_on("n1")] == ["job"]
            assert not stage.evictions
            patch = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}}
            await stage.call("PATCH", "/api/v1/namespaces/shop/pods/job", patch, "application/merge-patch+json")
            await stage.until_gone("n1")
        assert stage.provider.instants_of("state")
        assert stage.instance_state("n1") == "running"
        messages = [text for name, reason, text in await stage.events() if (name, reason) == ("n1", "InstanceShared")]
        assert messages == [f"instance kept: sim:///zone-a/{stage.instances['n1']} was gone before, and is running now"]


async def test_a_condition_of_a_node_counts_for_nothing_where_its_claim_says_otherwise() -> None:
    async with staged("n1", claim=ClaimSpec(), kubelet=SILENT) as stage:
        message = f"instance sim:///zone-a/{stage.instances['n1']} is gone"
        forged = {"type": names.INSTANCE_TERMINATING, "status": "True", "reason": names.INSTANCE_GONE}
        await stage.patch_node("n1", {"status": {"conditions": [READY, {**forged, "message": message}]}}, "/status")
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.until_gone("n1")
        assert stage.instance_state("n1") == "terminated"


READY = {"type": "Ready", "status": "True"}


def others(stage: Stage) -> list[JsonObject]:
    """The node's conditions but Ready."""
    node = stage.node("n1")
    assert node is not None
    return [each for each in node["status"]["conditions"] if each["type"] != "Ready"]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_claim_does_not_end_an_instance_again_that_was_gone(is_restarted: bool) -> None:
    async with staged() as stage:
        stage.cluster.cloud.create("i-1", "x")
        stage.instances["x"] = "i-1"
        await stage.create_claim("c", unregistered(providerID="sim:///zone-a/i-1"))
        async with stage.mortal() if is_restarted else stage.controller() as controller:
            await stage.settle(controller)
            stage.transport.before.add(Rule(fault=Refuse(403), method="PATCH", path="/nodeclaims/c$"))
            await stage.delete_claim("c")
            await stage.clock.sleep(10)
            assert stage.instance_state("x") == "terminated"
            calls = len(stage.provider.calls)
            reinstall(stage, "x")
            if not is_restarted:
                await stage.clock.sleep(100)
                stage.transport.before.clear()
                await stage.until_claims_gone("c")
        stage.transport.before.clear()
        async with stage.controller():
            await stage.until_claims_gone("c")
        assert len(stage.provider.calls) == calls
        assert stage.instance_state("x") == "running"
