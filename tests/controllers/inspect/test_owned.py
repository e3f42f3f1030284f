"""Status of nodes that Karpenter drains, without a controller and without assistance: who, what blocks, until when."""

from __future__ import annotations

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.karpenter import LEASE, LEASE_NAMESPACE
from support.clients import a_client
from support.karpenter import ALONE, karpenter_stage, pod_of, status_of
from support.stage import a_budget_manifest, a_pod_manifest, a_workload, the_settings

from gracectl.cli.plan.text import Detail, plan_text
from gracectl.cli.status.messages import headline, pod_reason
from gracectl.inspect.forecast import forecast_drains
from gracectl.inspect.status import NodeStatus, claims_without_node_status
from gracectl.inspect.watcher import snapshot
from gracectl.policy.answers import Never, Unknown, Window
from gracectl.policy.forecast import Assumptions
from gracectl.policy.other_drains import PACES
from gracectl.policy.owners import DrainOwner
from gracectl.policy.plan import Outcome
from gracectl.policy.warnings import WarningKind

HERE = {"pod": {"nodeSelector": {"kubernetes.io/hostname": "k1"}}}
FOREVER = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}


def warned(status: NodeStatus, kind: WarningKind) -> list[str]:
    return [each.message for each in status.warnings if each.kind is kind]


async def test_the_words_say_that_karpenter_drains_and_what_blocks_it() -> None:
    web = a_workload("Deployment", "web", 1, **HERE)
    async with karpenter_stage("k1", objects=(web, a_budget_manifest("web", maxUnavailable=0))) as (stage, _):
        await stage.delete_node("k1")
        await stage.clock.sleep(4)
        status = await status_of(stage, "k1")
        assert status.owner is not None
        assert status.owner.owner is DrainOwner.KARPENTER
        assert status.since == stage.clock.now() - 4
        assert "; Karpenter drains it (label karpenter.sh/nodepool=default): step drain, 1 pod left" in headline(
            status, stage.clock.now()
        )
        assert status.is_never_drained
        (never,) = warned(status, WarningKind.NEVER_DRAINS)
        assert "budget shop/web allows no disruption" in never
        (pod,) = status.pods or ()
        assert pod.entry.outcome is Outcome.BLOCKED
        assert pod.remedy.startswith("run more pods, or widen it: kubectl patch pdb -n shop web --type merge -p ")
        assert not warned(status, WarningKind.NOT_MANAGED)
        (said,) = warned(status, WarningKind.OWNER_REPORTS)
        assert "FailedDraining: Failed to drain node, 1 pods are waiting to be evicted" in said


async def test_without_assistance_the_end_under_a_budget_is_unknown_and_never_earlier() -> None:
    web = a_workload("Deployment", "web", 4, **HERE)
    async with karpenter_stage("k1", objects=(web, a_budget_manifest("web", maxUnavailable=1))) as (stage, _):
        await stage.patch_node("k1", {"spec": {"unschedulable": False}})
        began = await stage.delete_node("k1")
        await stage.clock.sleep(0.5)
        status = await status_of(stage, "k1")
        assert isinstance(status.drained, Unknown)
        assert PACES[DrainOwner.KARPENTER] in status.drained.missing or "budget shop/web" in str(status.drained)
        assert status.drained.earliest is not None
        assert status.drained.earliest >= began


@pytest.mark.parametrize("pods", [1, 5])
async def test_pods_that_nothing_blocks_leave_within_the_range(pods: int) -> None:
    objects = tuple(a_pod_manifest(f"p{number}", "k1", behaviour={"stop-seconds": 3}) for number in range(pods))
    async with karpenter_stage("k1", objects=objects) as (stage, _):
        await stage.delete_node("k1")
        await stage.clock.sleep(0.5)
        status = await status_of(stage, "k1")
        assert isinstance(status.drained, Window)
        await stage.until_gone("k1")
        assert status.drained.earliest <= stage.clock.now() <= status.drained.latest


async def test_a_deadline_bounds_the_range_with_karpenters_lateness() -> None:
    held = a_pod_manifest("held", "k1", terminationGracePeriodSeconds=20, **FOREVER)
    async with karpenter_stage("k1", objects=(held,), claim={"termination_grace_period": "1m"}) as (stage, _):
        began = stage.clock.now()
        await stage.delete_node("k1")
        await stage.clock.sleep(2)
        status = await status_of(stage, "k1")
        assert status.deadline is not None
        assert (status.deadline.at, status.deadline.grace_period) == (began + 60, 60)
        pod = pod_of(status, "held")
        assert pod.entry.deleted_by == began + 40 + 11
        assert "; deleted within 0:49" in pod_reason(pod, stage.clock.now())
        assert isinstance(status.drained, Window)
        await stage.until(lambda: not stage.pods_on("k1"))
        assert status.drained.earliest <= stage.clock.now() <= status.drained.latest


async def test_what_only_gracectl_takes_for_protection_does_not_protect_from_karpenter() -> None:
    annotations = {"odd": {"karpenter.sh/do-not-disrupt": "soon"}, "old": {"karpenter.sh/do-not-evict": "true"}}
    objects = tuple(a_pod_manifest(name, "k1", annotations=each) for name, each in annotations.items())
    async with karpenter_stage("k1", objects=objects) as (stage, _):
        await stage.delete_node("k1")
        await stage.clock.sleep(0.01)
        status = await status_of(stage, "k1")
        assert {pod.entry.outcome for pod in status.pods or ()} <= {Outcome.EVICT, Outcome.TERMINATING}
        assert isinstance(status.drained, Window)


async def test_protection_that_never_ends_is_never_and_the_remedy_is_the_claims_deadline() -> None:
    async with karpenter_stage("k1", objects=(a_pod_manifest("held", "k1", **FOREVER),)) as (stage, _):
        await stage.delete_node("k1")
        await stage.clock.sleep(3)
        status = await status_of(stage, "k1")
        assert isinstance(status.drained, Never)
        (warning,) = [each for each in status.warnings if each.kind is WarningKind.NEVER_DRAINS]
        assert "kubectl annotate pod -n shop held karpenter.sh/do-not-disrupt-" in warning.remedy
        assert "kubectl annotate nodeclaim k1-claim --overwrite karpenter.sh/nodeclaim-termination-timestamp=" in (
            warning.remedy
        )
        soon = "2026-01-01T00:05:00Z"
        await stage.patch_claim("k1-claim", {"metadata": {"annotations": {
            "karpenter.sh/nodeclaim-termination-timestamp": soon}}})  # fmt: skip
        await stage.until_gone("k1")


async def test_a_karpenter_that_does_not_begin_is_named_after_its_lease_has_run_out() -> None:
    async with karpenter_stage("k1") as (stage, karpenter):
        stolen = {"spec": {"holderIdentity": "thief", "renewTime": "2099-01-01T00:00:00.000000Z"}}
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE}"
        await stage.call("PATCH", lease, stolen, "application/merge-patch+json")
        karpenter.kill()
        await stage.delete_node("k1")
        await stage.clock.sleep(4)
        status = await status_of(stage, "k1")
        assert (status.step, status.waits_for) == ("cordon", "its taint is missing")
        assert not warned(status, WarningKind.OWNER_WAITS)
        await stage.clock.sleep(2)
        status = await status_of(stage, "k1")
        (warning,) = [each for each in status.warnings if each.kind is WarningKind.OWNER_WAITS]
        assert warning.message.startswith("drain not started: Karpenter has not put the taint karpenter.sh/disrupted")
        assert warning.remedy == "see whether a Karpenter leads, and renews its Lease: kubectl get leases -A -o yaml"


async def test_a_drain_of_ours_under_the_same_budget_has_an_unknown_end() -> None:
    web = a_workload("Deployment", "web", 2, pod={"nodeSelector": {"spread": "yes"}})
    async with karpenter_stage("k1", objects=()) as (stage, _):
        for name in ("k1", "other"):
            await stage.patch_node(name, {"metadata": {"labels": {"spread": "yes"}}})
        await stage.create(web, a_budget_manifest("web", maxUnavailable=1))
        await stage.patch_node("other", {"metadata": {"finalizers": ["karpenter.sh/termination"]}})
        await stage.delete_node("k1")
        await stage.delete_node("other")
        await stage.clock.sleep(0.01)
        for name in ("k1", "other"):
            status = await status_of(stage, name)
            assert isinstance(status.drained, Unknown), name
        assert "Karpenter" in str(status.drained)
        assert status.owner is None


async def test_an_idle_node_of_karpenter_says_what_holds_it() -> None:
    async with karpenter_stage("k1") as (stage, _):
        await stage.patch_node("k1", {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}})
        status = await status_of(stage, "k1", ALONE)
        (warning,) = status.warnings
        assert (warning.kind, warning.remedy) == (
            WarningKind.OWNER_HOLDS,
            "let Karpenter disrupt it: kubectl annotate node k1 karpenter.sh/do-not-disrupt-",
        )


async def test_with_assistance_the_forecast_is_gracectls_and_holds() -> None:
    settings = the_settings(assist={"karpenter": True})
    pace = {"ready-seconds": 5, "stop-seconds": 2}
    web = a_workload("Deployment", "web", 4, behaviour=pace, pod={"nodeSelector": {"spread": "yes"}})
    async with karpenter_stage("k1", settings=settings) as (stage, _):
        await stage.patch_node("k1", {"metadata": {"labels": {"spread": "yes"}}})
        await stage.create(web, a_budget_manifest("web", maxUnavailable=1))
        await stage.patch_node("other", {"metadata": {"labels": {"spread": "yes"}}})
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.delete_node("k1")
            await stage.clock.sleep(0.2)
            status = await status_of(stage, "k1", settings.termination)
            assert (status.is_assisted, isinstance(status.drained, Window)) == (True, True)
            assert "and gracectl assists: step drain" in headline(status, stage.clock.now())
            await stage.until(lambda: not stage.pods_on("k1"))
        assert isinstance(status.drained, Window)
        assert stage.clock.now() <= status.drained.latest


async def test_a_claim_of_karpenter_without_a_node_says_who_ends_it() -> None:
    slow = CloudSettings(terminate_delay=100.0)
    async with karpenter_stage("k1", claim={"termination_grace_period": "5m"}, cloud=slow) as (stage, karpenter):
        began = stage.clock.now()
        await stage.delete_node("k1")
        await stage.clock.sleep(8)
        karpenter.kill()
        await stage.patch_node("k1", {"metadata": {"finalizers": None}})
        cluster = await snapshot(a_client(stage), lambda node: True)
        (claim,) = claims_without_node_status(cluster, ALONE, stage.clock.now())
        assert claim.deadline is not None
        assert (claim.name, claim.nodes, claim.deadline.at) == ("k1-claim", (), began + 300)
        assert claim.waits_for == "Karpenter: the end of its instance"


async def test_plan_of_an_idle_node_says_that_karpenter_would_drain_it() -> None:
    web = a_workload("Deployment", "web", 1, **HERE)
    async with karpenter_stage("k1", objects=(web,), claim={"termination_grace_period": "5m"}) as (stage, _):
        cluster, now = await snapshot(a_client(stage), lambda node: True), stage.clock.now()
        forecast = forecast_drains(cluster, ALONE, ["k1"], now, Assumptions())
        text = "\n".join(str(each) for each in plan_text(forecast, Detail()).nodes)
        assert "Karpenter drains it (label karpenter.sh/nodepool=default); gracectl does not assist" in text
        (node,) = forecast.nodes
        assert node.deadline is not None
        assert node.deadline.at == now + 300
        assert (node.is_terminating, node.is_requested) == (False, False)
        assert not {WarningKind.NOT_MANAGED, WarningKind.FINALIZER_MISSING} & {each.kind for each in node.warnings}
        assert isinstance(node.forecast.drained, Window)
        await stage.delete_node("k1")
        await stage.until(lambda: not stage.pods_on("k1"))
        assert stage.clock.now() <= node.forecast.drained.latest
        await stage.until_gone("k1")
        assert stage.clock.now() >= node.forecast.drained.earliest
