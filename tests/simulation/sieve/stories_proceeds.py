"""Stories about how terminations proceed: what their pods, budgets, volumes and deadlines make of them."""

from __future__ import annotations

from typing import Any

from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Rule
from simulation.sieve.stories_starts import FOR_EVER, PAUSE, QUICK, STOPS, Telling, deleted, is_draining
from simulation.sieve.story import story
from simulation.worlds import VOLUME
from support.stage import NAMESPACE, Stage, a_budget_manifest, a_pod_manifest, a_workload, the_settings
from support.stories import a_daemon_set, with_grace_period

from gracectl.model import names
from gracectl.model.times import format_time

BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
MERGE = "application/merge-patch+json"
STUBBORN: Any = {"ignores-sigterm": "true"}
CRITICAL: Any = {"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL}


@story()
async def a_protection_is_waited_for(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(
        a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "20s"}),
        a_pod_manifest("a", "n1", behaviour=STOPS),
    )
    yield
    await deleted(stage, "n1")


@story()
async def a_protection_is_taken_off(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER, behaviour=STOPS))
    yield
    await stage.delete_node("n1")
    await stage.until(lambda: is_draining(stage, "n1"))
    await stage.clock.sleep(PAUSE)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/job"
    await stage.call("PATCH", path, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}}, MERGE)
    await stage.until_gone("n1")


@story()
async def pods_leave_in_waves(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(
        a_pod_manifest("ordinary", "n1", behaviour=STOPS),
        a_daemon_set("agent"),
        a_pod_manifest("dns", "n1", behaviour=STOPS, **CRITICAL),
    )
    yield
    await deleted(stage, "n1")


@story(settings=with_grace_period("40s"))
async def a_deadline_deletes_what_would_outlive_it(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(
        a_pod_manifest("protected", "n1", annotations=FOR_EVER, terminationGracePeriodSeconds=5),
        a_pod_manifest("long", "n1", behaviour=STUBBORN, terminationGracePeriodSeconds=20),
    )
    yield
    await deleted(stage, "n1")


@story(settings=with_grace_period("30s"))
async def pods_are_left_at_the_deadline(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(a_pod_manifest("a", "n1", terminationGracePeriodSeconds=5))
    yield
    stage.cluster.kubelet.partition("n1")
    await deleted(stage, "n1")


@story()
async def the_deadline_of_a_claim_deletes_what_would_outlive_it(stage: Stage) -> Telling:
    await stage.add_nodes("n1", claim=ClaimSpec(termination_grace_period="40s"))
    await stage.create(a_pod_manifest("protected", "n1", annotations=FOR_EVER, terminationGracePeriodSeconds=5))
    yield
    await stage.delete_claim("n1-claim")
    await stage.until_gone("n1")
    await stage.until_claims_gone("n1-claim")


@story()
async def a_deadline_is_written_during_a_drain(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER, terminationGracePeriodSeconds=3))
    yield
    await stage.delete_node("n1")
    await stage.until(lambda: is_draining(stage, "n1"))
    deadline = {names.TERMINATION_TIMESTAMP: format_time(stage.clock.now() + 30)}
    await stage.patch_node("n1", {"metadata": {"annotations": deadline}})
    await stage.until_gone("n1")


@story(
    settings=with_grace_period(
        "40s",
        shutdownGracePeriodByPodPriority=[
            {"priority": names.CRITICAL_PRIORITY, "shutdownGracePeriodSeconds": 4},
            {"priority": 0, "shutdownGracePeriodSeconds": 4},
        ],
    ),
)
async def each_wave_has_its_deadline(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    protected: Any = {"annotations": FOR_EVER, "terminationGracePeriodSeconds": 2}
    await stage.create(a_pod_manifest("low", "n1", **protected), a_pod_manifest("high", "n1", **protected, **CRITICAL))
    yield
    await deleted(stage, "n1")


@story(detach_seconds=25.0)
async def volumes_are_detached_slowly(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(
        a_workload("StatefulSet", "db", 2, behaviour=QUICK, serviceName="db", volumeClaimTemplates=[VOLUME])
    )
    await stage.add_nodes("n2")
    yield
    await deleted(stage, "n1")


@story()
async def a_webhook_is_slow_with_evictions(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(*(a_pod_manifest(name, "n1", behaviour=STOPS) for name in ("a", "b")))
    stage.transport.before.add(Rule(fault=Latency(4.0, 4.0), path="/pods/a/eviction"))
    yield
    await deleted(stage, "n1")


@story(settings=the_settings(eviction={"qps": 4, "burst": 2, "maxInFlight": 2}))
async def many_pods_without_a_budget_leave_at_the_rate_of_the_settings(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(*(a_pod_manifest(f"p{number}", "n1") for number in range(8)))
    yield
    await deleted(stage, "n1")


@story(settings=the_settings(eviction={"misconfiguredRetrySeconds": 5}))
async def a_pod_has_two_budgets_until_one_is_deleted(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(
        a_pod_manifest("web", "n1", behaviour=STOPS),
        a_budget_manifest("web", minAvailable=0),
        {**a_budget_manifest("web", minAvailable=0), "metadata": {"name": "second", "namespace": NAMESPACE}},
    )
    yield
    await stage.delete_node("n1")
    await stage.until(lambda: is_draining(stage, "n1"))
    await stage.clock.sleep(PAUSE)
    await stage.call("DELETE", f"{BUDGETS}/second")
    await stage.until_gone("n1")


@story()
async def a_budget_that_allows_nothing_is_edited(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(a_workload("Deployment", "web", 2, behaviour=QUICK), a_budget_manifest("web", minAvailable=2))
    await stage.add_nodes("n2")
    yield
    await stage.delete_node("n1")
    await stage.until(lambda: is_draining(stage, "n1"))
    await stage.clock.sleep(PAUSE)
    await stage.call("PATCH", f"{BUDGETS}/web", {"spec": {"minAvailable": 1}}, MERGE)
    await stage.until_gone("n1")


@story(settings=the_settings(leaderElection={"enabled": True}))
async def a_leader_drains_a_node(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await deleted(stage, "n1")
