"""Drains of Karpenter without assistance: metrics and one trace of each, and no request but reads."""

from __future__ import annotations

from support.karpenter import karpenter_stage
from support.stage import a_budget_manifest, a_pod_manifest, a_workload
from support.traces import Collector

from gracectl.model.times import parse_time
from gracectl.telemetry.spans import Trace

FOR_ITSELF = {"leases", "selfsubjectaccessreviews"}
HERE = {"pod": {"nodeSelector": {"kubernetes.io/hostname": "k1"}}}


async def test_a_drain_by_karpenter_alone_is_one_trace_with_what_held_it() -> None:
    web = a_workload("Deployment", "web", 1, **HERE)
    async with karpenter_stage("k1", objects=(web, a_budget_manifest("web", maxUnavailable=0))) as (stage, _):
        collector = Collector(stage)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.delete_node("k1")
            node = stage.node("k1")
            assert node is not None
            await stage.clock.sleep(30)
            (progress,) = controller.under_way()
            assert (progress.name, progress.step, progress.pods_left) == ("k1", "drain", 1)
            await stage.call(
                "PATCH",
                "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web",
                {"spec": {"maxUnavailable": 1}},
                "application/merge-patch+json",
            )
            await stage.until_gone("k1")
            await stage.clock.sleep(1)
        root = collector.the("terminate node")
        began = parse_time(node["metadata"]["deletionTimestamp"])
        assert (root.name, root.trace) == ("terminate node", Trace.of(node["metadata"]["uid"], began))
        assert (root.attributes["gracectl.owner"], root.attributes["gracectl.assisted"]) == ("Karpenter", False)
        assert "blocked by budget shop/web" in str(root.attributes["gracectl.held"])
        operations = [each.operation for each in stage.transport.executed]
        written = {each.verb for each in operations if each.name != "other" and each.resource not in FOR_ITSELF}
        assert written <= {"get", "list", "watch"}


async def test_a_deadline_is_karpenters_alone() -> None:
    held = a_pod_manifest("held", "k1", annotations={"karpenter.sh/do-not-disrupt": "true"})
    async with karpenter_stage("k1", objects=(held,), claim={"termination_grace_period": "1m"}) as (stage, _):
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.delete_node("k1")
            await stage.until_gone("k1")
        assert not stage.transport.of("delete", "pods")
