"""Dry runs: the whole story is decided, logged and measured, and the server is asked for no write."""

from __future__ import annotations

import logging

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import DropWatch, Reset, Rule
from kubesim.server.api import JsonObject
from support.disruption import AT_ONCE, NODE_BUDGETS, TERMINABLE, a_node_budget_manifest
from support.inprocess import Stutter
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings

from gracectl.model import names


def written(stage: Stage) -> list[str]:
    """What the server was asked to change by controllers."""
    return [f"{each.operation}" for each in stage.transport.executed if each.request.method != "GET"]


def would(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says would be done, in order."""
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    return [message.removeprefix("would ") for message in messages if message.startswith("would ")]


async def held(stage: Stage, *nodes: str) -> None:
    """Give these nodes our finalizer, as a controller before has done."""
    for node in nodes:
        await stage.patch_node(node, {"metadata": {"finalizers": [names.FINALIZER]}})


def instance_of(stage: Stage, node: str) -> str:
    node_object = stage.node(node)
    assert node_object is not None
    return str(node_object["spec"]["providerID"])


def versions(stage: Stage) -> dict[str, str]:
    things: list[JsonObject] = [
        *stage.nodes(),
        *(pod for node in stage.nodes() for pod in stage.pods_on(node["metadata"]["name"])),
    ]
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in things}


async def test_the_end_of_a_deleted_node_is_decided_to_the_last_step_and_nothing_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", "n2") as stage:
        await stage.create(
            a_workload("StatefulSet", "web", 3, pod={"nodeName": "n1"}), a_budget_manifest("web", maxUnavailable=1)
        )
        await held(stage, "n1", "n2")
        stage.is_dry_run = True
        await stage.delete_node("n1")
        before = versions(stage)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(120)
            assert controller.under_way() == ()
            [done] = controller.finished()
            samples = {each.metric.name: each.value for each in controller.process.samples() if each is not None}
        assert written(stage) == []
        assert versions(stage) == before
        assert stage.instance_state("n1") == "running"
        assert stage.provider.instants_of("terminate") == []
        assert done.name == "n1"
        said = would(caplog)
        assert [each for each in said if "pod" in each] == [f"evict pod shop/web-{number}" for number in range(3)]
        assert said[0].startswith("change node n1: ")
        assert "spec.taints" in said[0]
        assert said[-2:] == [
            f"terminate instance {instance_of(stage, 'n1')}",
            "change node n1: metadata.finalizers; it would be gone",
        ]
        assert samples["gracectl_dry_run"] == 1
        assert len(said) == len(set(said))


async def test_a_labelled_node_without_finalizer_is_followed_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", "n2", objects=[a_pod_manifest("app", "n1")], settings=the_settings(**AT_ONCE)) as stage:
        stage.is_dry_run = True
        await stage.patch_node("n1", TERMINABLE)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(60)
        assert written(stage) == []
        said = would(caplog)
        assert said.count("change node n1: metadata.finalizers") == 1
        assert said.index("delete node n1") < said.index("evict pod shop/app")
        assert said[-2:] == [
            f"terminate instance {instance_of(stage, 'n1')}",
            "change node n1: metadata.finalizers; it would be gone",
        ]


async def test_the_drain_for_a_maintenance_ends_with_the_node_at_rest_and_follows_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", objects=[a_pod_manifest("app", "n1")]) as stage:
        stage.is_dry_run = True
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}})
            await stage.clock.sleep(30)
            assert [each.step for each in controller.under_way()] == ["drained"]
            await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: None}}})
            await stage.clock.sleep(30)
            assert controller.under_way() == ()
        assert "evict pod shop/app" in would(caplog)
        assert written(stage) == []


async def test_a_watch_that_breaks_shows_real_changes_of_an_object_that_was_changed_here() -> None:
    async with staged("n1") as stage:
        stage.is_dry_run = True
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(1200)  # each watch has ended and begun again
            await stage.create(a_pod_manifest("app", "n1"))
            await stage.patch_node("n1", TERMINABLE)
            await stage.clock.sleep(60)
            assert [each.name for each in controller.finished()] == ["n1"]
        assert written(stage) == []


async def test_volumes_of_pods_that_are_gone_here_hold_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    templates = [{"metadata": {"name": "data"}, "spec": claim}]
    async with staged("n1") as stage:
        await stage.create(a_workload("StatefulSet", "db", 1, serviceName="db", volumeClaimTemplates=templates))
        await held(stage, "n1")
        await stage.clock.sleep(30)
        await stage.delete_node("n1")
        stage.is_dry_run = True
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(30)
            assert [each.name for each in controller.finished()] == ["n1"]
        assert len(stage.server.store.table("volumeattachments.storage.k8s.io")) == 1
        assert written(stage) == []


async def test_a_deadline_and_a_claim_are_followed_to_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stubborn = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})
    async with staged(
        "n1", settings=the_settings(nodeGroups=[{"selector": {}, "terminationGracePeriod": "100s"}])
    ) as stage:
        await stage.create(stubborn)
        await held(stage, "n1")
        await stage.delete_node("n1")
        stage.is_dry_run = True
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(120)
            assert [each.name for each in controller.finished()] == ["n1"]
        said = would(caplog)
        assert "delete pod shop/job, with 30 s of grace" in said
        assert said[-1] == "change node n1: metadata.finalizers; it would be gone"
        assert written(stage) == []


@pytest.mark.parametrize("deleted", ["claim", "node"])
async def test_a_claim_and_its_node_go_together(deleted: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", objects=[a_pod_manifest("a", "n1")], claim=ClaimSpec()) as stage:
        await held(stage, "n1")
        await stage.patch_claim("n1-claim", {"metadata": {"finalizers": [names.FINALIZER]}})
        await (stage.delete_claim("n1-claim") if deleted == "claim" else stage.delete_node("n1"))
        stage.is_dry_run = True
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(60)
            assert [each.name for each in controller.finished()] == ["n1"]
            assert [each.name for each in controller._manager.claims.registry.finished()] == ["n1-claim"]
        said = would(caplog)
        assert said.count("evict pod shop/a") == 1
        assert "change nodeclaim n1-claim: metadata.finalizers; it would be gone" in said
        assert written(stage) == []


@pytest.mark.parametrize("seed", range(4))
async def test_watches_that_break_and_stutter_change_nothing_of_it(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", "n2", seed=seed, settings=the_settings(**AT_ONCE)) as stage:
        await stage.create(
            *(a_pod_manifest(f"a-{number}", "n1") for number in range(8)),
            a_workload("StatefulSet", "web", 4, pod={"nodeName": "n1"}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await held(stage, "n1", "n2")
        await stage.delete_node("n1")
        stage.is_dry_run = True
        stage.transport.stutter = Stutter(0.5, 3.0)
        stage.transport.before.add(Rule(fault=DropWatch(2.0), probability=0.7))
        stage.transport.before.add(Rule(fault=Reset(), probability=0.1))
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(30)
            await stage.patch_node("n2", TERMINABLE)
            await stage.clock.sleep(300)
            assert sorted(each.name for each in controller.finished()) == ["n1", "n2"]
        evicted = [each for each in would(caplog) if each.startswith("evict")]
        assert len(evicted) == len(set(evicted)) == 12
        assert written(stage) == []


async def test_budgets_for_nodes_and_what_is_pending_are_followed_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", "n2", labels={"pool": "a"}, settings=the_settings(**AT_ONCE)) as stage:
        await stage.call("POST", NODE_BUDGETS, a_node_budget_manifest(maxUnavailable=1))
        stage.is_dry_run = True
        for node in ("n1", "n2"):
            await stage.patch_node(node, TERMINABLE)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(120)
            assert [each.name for each in controller.finished()] == ["n1", "n2"]
        said = would(caplog)
        assert said.index("change node n1: metadata.finalizers; it would be gone") < said.index("delete node n2")
        assert "change node n2: status.conditions" in said[: said.index("delete node n2")]
        assert written(stage) == []
